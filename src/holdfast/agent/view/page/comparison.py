"""What an attempt of one run has other than that of another run, or than a later one: its job, code, where it ran.

Reads records only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.page.dossier import require_attempt
from holdfast.agent.view.run_view import RunView
from holdfast.agent.view.source_change import find_git, read_code
from holdfast.core.control_characters import one_line
from holdfast.core.job.changes import list_changes
from holdfast.core.job.environment import LIBRARY, PATH
from holdfast.host.files.job_change import find_job
from holdfast.host.files.snapshot import read_difference
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.job import JobSpec
from holdfast.model.origin import FileCopy, GitFacts, KeyChange, RunOrigin
from holdfast.model.record import record

SHOWN_DIGITS = 12
OF_ONE_RUN = ("HOLDFAST_", "SLURM_")
"""Beginnings of variables that say which run or job of a scheduler it is, or follow from its job, which is compared."""
OF_ONE_START = frozenset({"HOSTNAME", "PWD", "TERM", "MASTER_PORT", "XDG_RUNTIME_DIR", "CONDA_SHLVL"})
"""Variables that are other ones with each machine, directory, terminal or start."""
MOST_NAMED = 5
LONGEST_NAME = 100


@record
class RunComparison:
    """What `run_id` has other than `against`: values of the job, and in words files, code, and where it ran.

    `attempt` and `against_attempt` are the attempts that were compared.

    `environment` are the recorded variables of the job's environment that have another value (None: not set). Left out
    are those that the job states, and what differs from run to run anyway: ids, the run's directory, a port.
    `uncompared` says in words what of the code and the environment is not recorded.
    """

    run_id: str
    against: str
    changed: tuple[KeyChange, ...]
    others: tuple[str, ...]
    environment: tuple[KeyChange, ...] = ()
    uncompared: tuple[str, ...] = ()
    attempt: int = 0
    against_attempt: int = 0


@record
class _Side:
    """An attempt of a run: its view, with the job, the files and the repository's state of that attempt."""

    view: RunView
    job: JobSpec
    origin: RunOrigin
    files: tuple[FileCopy, ...]
    git: GitFacts

    @property
    def seed(self) -> object:
        """The one that its training told of; None: of none."""
        return self.view.heartbeat.get("seed")


def compare_runs(run_dir: str, against: str, attempt: int | None = None) -> RunComparison:
    """Compare what was recorded of an attempt (None: the newest) with that of the newest of another, or the same, run.

    Raises:
        NoSuchRun: there is no such attempt.
        StorageError: the records of one of them cannot be read.
    """
    old, new = _read(against), _read(run_dir, attempt)
    changed = tuple(change for change in list_changes(old.job, new.job) if change.key != "name")
    seeds = _compare_seeds((old.job.seed, old.seed), (new.job.seed, new.seed))
    return RunComparison(
        new.origin.run_id,
        old.origin.run_id,
        changed,
        (*seeds, *_list_others(old, new)),
        tuple(_compare_environments(old, new)),
        tuple(_list_uncompared(old, new)),
        new.view.attempt,
        old.view.attempt,
    )


def _read(run_dir: str, attempt: int | None = None) -> _Side:
    """What is recorded of an attempt of a run, the newest unless told.

    Raises:
        NoSuchRun: there is no such attempt.
        StorageError: it cannot be read.
    """
    view = observe_run(run_dir, attempt=attempt)
    if attempt is not None:
        require_attempt(view, attempt)
    try:
        return _Side(
            view,
            wire.decode(JobSpec, find_job(view.record, view.change)),
            wire.decode(RunOrigin, view.record, wire.RUN),
            read_code(view.run_dir, view.attempt).files,
            find_git(view.run_dir, view.attempt, view.record) or GitFacts(),
        )
    except (OSError, wire.WireError) as error:
        raise StorageError(f"{run_dir}: its job cannot be read: {error}", hint=f"holdfast show {run_dir}") from error


def _compare_seeds(old: tuple[int | None, object], new: tuple[int | None, object]) -> tuple[str, ...]:
    """What is to be said of the seeds in use where those that the jobs state do not tell it.

    Of each run: the seed that its job states, and the one that its training told of.
    """
    (stated_before, before), (stated_now, now) = old, new
    if before is not None and before == now and stated_before != stated_now:
        return (f"both trained with seed {now}, whatever their jobs state",)
    if before != now and (before, now) != (stated_before, stated_now):
        was, uses = ("not told" if seed is None else seed for seed in (before, now))
        return (f"seed in use {was} -> {uses}",)
    return ()


def _list_others(old: _Side, new: _Side) -> Iterator[str]:
    before, after = ({f"{file.role} {file.source}": file.sha256 for file in side.files} for side in (old, new))
    for name in dict.fromkeys([*before, *after]):
        if name in before and name in after:
            if before[name] != after[name]:
                yield f"{name} is another one"
        else:
            yield f"{name} is recorded of {_name_side(*((new, old) if name in after else (old, new)))} alone"
    for what, was, now in (
        ("commit", _name_commit(old), _name_commit(new)),
        ("code sent", _name_tree(old.origin), _name_tree(new.origin)),
        ("host", old.origin.host, new.origin.host),
        ("python", *_name_pythons(old, new)),
        ("holdfast's python", old.origin.python, new.origin.python),
        ("holdfast", old.origin.version, new.origin.version),
    ):
        if was != now:
            yield f"{what} {was or '-'} -> {now or '-'}"
    kept = not any(map(_lacks_difference, (old, new)))
    if kept and _name_commit(old) == _name_commit(new) and _read_difference(old) != _read_difference(new):
        yield f"what differs from commit {(new.git.commit or '')[:SHOWN_DIGITS]} is another one: show --diff"


def _name_side(side: _Side, other: _Side) -> str:
    run_id = side.origin.run_id
    return run_id if run_id != other.origin.run_id else f"attempt {side.view.attempt} of {run_id}"


def _read_difference(side: _Side) -> bytes | None:
    return read_difference(side.git, side.view.run_dir)


def _lacks_difference(side: _Side) -> bool:
    """Whether files that git knows were changed, and how is not recorded; of code that was sent the tree says it."""
    named = side.git.diff is not None or bool(side.git.note)
    return side.origin.code is None and side.git.dirty is True and named and _read_difference(side) is None


def _name_pythons(old: _Side, new: _Side) -> tuple[str, str]:
    """Those that the jobs' commands ran under; none where that is not known of both."""
    was, now = (side.view.manifest.get("python") for side in (old, new))
    return (was, now) if isinstance(was, str) and isinstance(now, str) else ("", "")


def _list_uncompared(old: _Side, new: _Side) -> Iterator[str]:
    for side, other in ((old, new), (new, old)):
        run_id, git = _name_side(side, other), side.git
        if _read_environment(side) is None:
            yield f"the environment of {run_id} is not recorded"
        if side.origin.code is not None:
            continue
        if git.commit is None:
            why = git.note or "no commit is recorded"
            yield f"of the code of {run_id} only script, configuration and lock file are recorded: {why}"
        if _lacks_difference(side):
            yield f"what differs from the commit of {run_id} is not recorded: {git.note or 'it cannot be read'}"
        if git.untracked:
            more = ", ..." if len(git.untracked) > MOST_NAMED else ""
            names = ", ".join(one_line(name, LONGEST_NAME) for name in git.untracked[:MOST_NAMED])
            yield f"what git does not know is not recorded of {run_id}: {names}{more}"


def _compare_environments(old: _Side, new: _Side) -> Iterator[KeyChange]:
    before, after = _read_environment(old), _read_environment(new)
    if before is None or after is None:
        return
    stated = {*old.job.env, *new.job.env, *OF_ONE_START}
    for name in sorted({*before, *after} - stated):
        was, now = before.get(name), after.get(name)
        if name.startswith(OF_ONE_RUN) or _leave_run_out(name, was, before) == _leave_run_out(name, now, after):
            continue
        yield KeyChange(name, was, now)


def _read_environment(side: _Side) -> dict[str, str] | None:
    """The part of the job's environment that is recorded; None where there is no record."""
    values = side.view.manifest.get("environment")
    return {str(name): str(value) for name, value in values.items()} if isinstance(values, dict) else None


def _leave_run_out(name: str, value: str | None, environment: Mapping[str, str]) -> str | None:
    """A value without what is of this run alone: its directory and its id, and what holdfast appends to a path."""
    if value is None:
        return None
    if name == PATH:
        value = ":".join(part for part in value.split(":") if part != environment.get(LIBRARY))
    run_dir, run_id = (environment.get(f"HOLDFAST_{what}", "") for what in ("RUN_DIR", "RUN_ID"))
    attempt = f"{run_dir}/{wire.ATTEMPTS}/{environment.get('HOLDFAST_ATTEMPT', '')}"
    for own in filter(None, (attempt, run_dir, run_id) if run_dir else (run_id,)):
        value = value.replace(own, "")
    return value or None


def _name_commit(side: _Side) -> str:
    """What git said, at the desk where the code was sent from one."""
    git = side.git if side.origin.code is None else side.origin.code
    return f"{git.commit[:SHOWN_DIGITS]}{', with changes' if git.dirty else ''}" if git.commit else ""


def _name_tree(origin: RunOrigin) -> str:
    return "" if origin.code is None else origin.code.tree[:SHOWN_DIGITS]
