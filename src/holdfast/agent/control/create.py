"""Making a run: its directory, what is written once, its first attempt. After this a supervisor can be started.

A run's directory is built whole under a hidden name, with its first attempt, and then renamed: whoever is killed before
leaves nothing that anybody takes for a run. The rename alone decides whether a run id is free (RAIL-08). A further
attempt is made in the same way. What a killed maker leaves is removed by `sweep_run` and `remove.sweep_root`.

Nothing secret is stored: a job that names a secret in its command or environment is refused with the way to pass it,
because a recorded job could not be started again without it, and a command line is open to every user of the box.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast.agent.view.observe import list_attempts, observe_run, read_attempts
from holdfast.agent.view.page.handbook_text import render_handbook
from holdfast.agent.view.run_view import is_never_taken
from holdfast.agent.view.source_change import rehash_job
from holdfast.core.job.job_hash import hash_job
from holdfast.core.job.nodes import refuse_nodes
from holdfast.core.job.redact import redact_argv, redact_code
from holdfast.core.recorded_environment import select_recorded
from holdfast.core.refuse_secrets import refuse_secrets
from holdfast.host.box import read_box
from holdfast.host.clock import boot_epoch_s, utc_now
from holdfast.host.files import files, trees
from holdfast.host.files.ownership import make_own_directory
from holdfast.host.files.snapshot import GitReader
from holdfast.host.formats.own_bundle import find_own_bundle
from holdfast.host.process.processes import user_name
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, ResourceBusy, StorageError, UsageError
from holdfast.model.ids import build_run_id, is_run_id
from holdfast.model.origin import CodeSnapshot, GitFacts, RunOrigin
from holdfast.model.record import record, replace
from holdfast.model.run import Created, RunState

from .job.code import copy_code, copy_job_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.model.job import JobSpec
    from holdfast.model.order import CodeRef
    from holdfast.model.origin import AttemptCode, JobChange
    from holdfast.model.profile import Profile
    from holdfast.model.queue import JobRef
    from holdfast.model.requeue import AttemptPlacement

MOST_ATTEMPTS = 10_000
MOST_IDS = 100


class RunExists(UsageError):
    """The preset run id is taken."""


@record
class OrderedRun:
    """What a run has beyond its job when another machine ordered it; the fields are as in `RunOrigin`.

    `lay_out` puts the code into the new run's directory, which has a hidden name yet, and answers the job with the
    paths that it has there.
    """

    job_sha256: str
    bundle: str | None
    code: CodeRef | None
    by: str
    lay_out: Callable[[str], JobSpec]
    scheduler: str = ""
    after: tuple[str, ...] = ()
    place: str = ""
    profile: Profile | None = None


def create_run(  # noqa: PLR0913 - all that a run begins with
    spec: JobSpec,
    runs_root: str,
    *,
    argv: Sequence[str],
    cwd: str,
    environ: Mapping[str, str],
    run_id: str | None = None,
    queued: JobRef | None = None,
    gpu_wait_s: float | None = None,
    job_file: str | None = None,
    ordered: OrderedRun | None = None,
    durable: bool = True,
) -> tuple[str, str]:
    """Make a run with its first attempt in state `created`; answers (run directory, run id).

    Args:
        spec: The resolved job; paths are absolute.
        runs_root: Made when missing, mode 0700.
        argv: The command line of holdfast, for the record; redacted here.
        cwd: From where it was called.
        environ: The caller's environment, for finding git; of it only holdfast's own settings are stored.
        run_id: A preset id; refused when it exists.
        queued: The queue's job that this is the run of.
        gpu_wait_s: For how long its attempts wait for cards where the job says nothing about it.
        job_file: The file that the job was read from, for the record.
        ordered: Of a run that another machine ordered; the paths of `spec` are then as they were written there.
        durable: The run is on the disk on return; else a power cut may take it, and the caller can make it again.

    Raises:
        RunExists: the preset id is taken.
        UsageError: the job names a secret or asks for several nodes here, or the preset id is malformed.
        NotPermitted: others could replace the runs root.
        StorageError: the run directory cannot be written.
    """
    refuse_secrets(spec)
    refuse_nodes(spec, "" if ordered is None else ordered.scheduler)
    if run_id is not None and not is_run_id(run_id):
        raise UsageError(f"{run_id!r} is not a run id", hint="write it like 20261120-104501-digits-3fa2")
    fill = partial(
        _fill,
        spec=spec,
        argv=argv,
        cwd=cwd,
        environ=environ,
        queued=queued,
        gpu_wait_s=gpu_wait_s,
        job_file=job_file,
        ordered=ordered,
        durable=durable,
    )
    # A umask that takes from the owner, too, would make directories that nobody can enter.
    previous = os.umask(0o077)
    try:
        root = _open_root(runs_root)
        run_dir = _make_run_directory(root, run_id, spec.name, fill, durable=durable)
        return run_dir, os.path.basename(run_dir)
    finally:
        os.umask(previous)


def _make_run_directory(root: str, run_id: str | None, name: str, fill: Callable[..., None], *, durable: bool) -> str:
    """Make the directory of a run, whole, under its preset id or the first new one that is free; answers its path.

    Raises:
        RunExists: the preset id is taken.
        StorageError: it cannot be written.
    """
    for _ in range(MOST_IDS):
        chosen = run_id or build_run_id(_stamp(), name, os.urandom(2).hex())
        run_dir = f"{root}/{chosen}"
        try:
            _make_whole(run_dir, partial(fill, run_dir=run_dir))
            if durable:
                files.sync_directory(root)
        except FileExistsError as error:
            if run_id is not None:
                raise RunExists(f"run {run_id} exists already in {root}", hint="leave the id out") from error
            continue
        except OSError as error:
            what = error.filename if isinstance(error.filename, str) else run_dir
            seen, look = files.explain_refusal(error, root)
            raise StorageError(f"{what}: {seen}", hint=f"see {look} there") from error
        return run_dir
    raise StorageError(f"{MOST_IDS} run ids in a row are taken in {root}", hint="choose another --runs")


def _make_whole(path: str, fill: Callable[[str], None]) -> None:
    """Make a directory that nobody sees before `fill` has put everything in.

    Raises:
        FileExistsError: there is one already.
        OSError: it cannot be made; nothing is left of it.
    """
    built = files.name_temporary(path)
    os.mkdir(built, 0o700)
    try:
        fill(built)
        try:
            # An empty directory in its place, which says nothing, is replaced.
            os.rename(built, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
            raise
    except BaseException:
        files.remove_tree(built)
        raise


def _open_root(path: str) -> str:
    path = os.path.abspath(path)
    make_own_directory(path, "the runs directory", "name another one with --runs")
    return path


def _stamp() -> str:
    now = utc_now()
    return f"{now[0:4]}{now[5:7]}{now[8:10]}-{now[11:13]}{now[14:16]}{now[17:19]}"


def _fill(  # noqa: PLR0913 - as above
    built: str,
    *,
    run_dir: str,
    spec: JobSpec,
    argv: Sequence[str],
    cwd: str,
    environ: Mapping[str, str],
    queued: JobRef | None = None,
    gpu_wait_s: float | None = None,
    job_file: str | None = None,
    ordered: OrderedRun | None = None,
    durable: bool = True,
) -> None:
    """Everything of a new run but its name: written into `built`, which is going to be `run_dir`."""
    run_id = os.path.basename(run_dir)
    for name in (wire.SNAPSHOT, wire.ARTIFACTS, wire.CHECKPOINTS, wire.ATTEMPTS):
        os.mkdir(f"{built}/{name}", 0o700)
    if ordered is None:
        with closing(GitReader(spec.workdir, environ)) as git:
            code = copy_code(spec, built, run_dir=run_dir)
            facts = git.collect(built, clean=redact_code)
    else:
        spec = ordered.lay_out(built)
        code = copy_code(spec, built, run_dir=run_dir)
        facts = _facts_of(ordered.code)
    origin = RunOrigin(
        run_id=run_id,
        created_at=utc_now(),
        job=replace(spec, command=code.command),
        job_sha256=hash_job(spec) if ordered is None else ordered.job_sha256,
        user=user_name(os.geteuid()),
        uid=os.geteuid(),
        host=os.uname().nodename,
        cwd=cwd,
        argv=redact_argv(argv)[0],
        python=sys.executable,
        version=__version__,
        snapshot=CodeSnapshot(code.files, facts, code.script, spec.seed),
        queued=queued,
        gpu_wait_s=gpu_wait_s,
        environment=select_recorded(environ),
        job_file=None if job_file is None else copy_job_file(job_file, built),
        bundle=find_own_bundle(),
    )
    if ordered is not None:
        origin = replace(
            origin,
            bundle=ordered.bundle,
            code=ordered.code,
            ordered_by=ordered.by,
            cwd=origin.job.workdir,
            scheduler=ordered.scheduler,
            after=ordered.after,
            place=ordered.place,
            profile=ordered.profile,
        )
        # What was laid out is going to lie elsewhere; no other text has this name in it.
        encoded = _rename(wire.encode(origin), built, run_dir)
        origin = wire.decode(RunOrigin, {**encoded, "resolved_sha256": rehash_job(encoded)}, wire.RUN)
    files.commit(f"{built}/{wire.RUN}", wire.to_bytes(origin), durable=durable)
    # Not synced: it can be written again from the rest at any time.
    files.append(f"{built}/{wire.HANDBOOK}", render_handbook(run_dir, 1, origin.job).encode("utf-8", "replace"))
    _make_attempt(built, run_id, 1)


def _facts_of(code: CodeRef | None) -> GitFacts:
    """What git said at the desk; there is no repository here."""
    if code is None:
        return GitFacts(note="no code was sent with the order")
    return GitFacts(commit=code.commit, dirty=code.dirty, note=f"as the desk said; the code is the tree {code.tree}")


def _rename(value: Any, before: str, after: str) -> Any:  # noqa: ANN401 - JSON
    """A JSON value with `before` replaced by `after` in all of its texts."""
    if isinstance(value, str):
        return value.replace(before, after)
    if isinstance(value, list):
        return [_rename(item, before, after) for item in value]
    if isinstance(value, dict):
        return {key: _rename(item, before, after) for key, item in value.items()}
    return value


def next_attempt(
    run_dir: str,
    reason: str,
    *,
    placement: AttemptPlacement | None = None,
    code: AttemptCode | None = None,
    change: JobChange | None = None,
    generation: int | None = None,
    only: int | None = None,
) -> int:
    """Make the next attempt of a run, in state `created`, and answer its number; earlier ones stay (POST-10).

    `reason` is why (``restart``, ``retry``, ``requeue``); it stands in the state until a supervisor takes the attempt
    up. `placement` says where it may run, beyond what the job says, `code` what it runs where that was changed, and
    `change` how somebody changed the job for this attempt and all after it. `generation` is that of the attempt before
    where this one follows by itself; None: somebody asked for it. `only` is the one number that it may get.

    Raises:
        NoSuchRun: the directory holds no run.
        ResourceBusy: somebody else has made `only`.
        StorageError: it cannot be written.
    """
    try:
        origin = wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)
        run_id = str(origin["run_id"])
        numbers = read_attempts(run_dir)
    except (OSError, KeyError, wire.WireError) as error:
        raise NoSuchRun(f"{run_dir} does not hold a run: {error}", hint="see `holdfast ls`") from error
    sweep_run(run_dir)
    highest = max(numbers, default=0)
    candidates = range(highest + 1, highest + MOST_ATTEMPTS)
    for number in candidates if only is None else (only,):
        try:
            _make_attempt(
                run_dir,
                run_id,
                number,
                reason,
                placement,
                code,
                change=change,
                generation=number if generation is None else generation,
            )
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(f"{run_dir} attempt {number}: {error.strerror}", hint="see df") from error
        return number
    if only is not None:
        raise ResourceBusy(f"attempt {only} of {run_id} was begun by somebody else", hint=f"holdfast show {run_id}")
    raise StorageError(f"{run_dir} has too many attempts", hint="start a new run")


def amend_attempt(run_dir: str, attempt: int, *, code: AttemptCode | None, change: JobChange | None) -> None:
    """Give an attempt that nobody has taken up other code, or another change of the job; None leaves what it has.

    Raises:
        StorageError: it cannot be written.
    """
    place = wire.attempt_dir(run_dir, attempt)
    try:
        # In this order: whoever is killed in between finds the job that it changes as it was before.
        for name, value in ((wire.CODE, code), (wire.JOB, change)):
            if value is not None:
                files.commit(f"{place}/{name}", wire.to_bytes(value))
    except OSError as error:
        raise StorageError(f"{place}: {error.strerror}", hint="see df") from error


def take_back_run(run_dir: str) -> None:
    """Remove a run of which nothing was ever begun; any other stays.

    Raises:
        OSError: it stays.
    """
    if os.path.isdir(run_dir) and is_never_taken(observe_run(run_dir)):
        files.take_away(run_dir)


def sweep_run(run_dir: str, *, dry_run: bool = False) -> int:
    """Remove what commits and makers that were killed left in a run; answers how many. It is nobody's after an hour."""
    attempts = f"{run_dir}/{wire.ATTEMPTS}"
    places = (run_dir, attempts, *(wire.attempt_dir(run_dir, number) for number in list_attempts(run_dir)))
    count = 0
    for place in places:
        names = trees.list_stale(place)
        count += len(names) if dry_run or not names else trees.remove_entries(place, names)
    return count


def _make_attempt(  # noqa: PLR0917 - all that an attempt begins with
    run_dir: str,
    run_id: str,
    number: int,
    reason: str = "start",
    placement: AttemptPlacement | None = None,
    code: AttemptCode | None = None,
    *,
    generation: int = 1,
    change: JobChange | None = None,
) -> None:
    """Make an attempt with its state, and where it may run.

    Raises:
        FileExistsError: there is one of this number.
        OSError: it cannot be written.
    """
    state = RunState(
        run_id=run_id,
        attempt=number,
        version=0,
        box=read_box(),
        created_at=utc_now(),
        supervisor=None,
        state=Created(),
        generation=generation,
        boot_epoch_s=boot_epoch_s(),
    )

    def fill(built: str) -> None:
        if placement is not None:
            files.commit(f"{built}/{wire.PLACEMENT}", wire.to_bytes(placement))
        if code is not None:
            files.commit(f"{built}/{wire.CODE}", wire.to_bytes(code))
        if change is not None:
            files.commit(f"{built}/{wire.JOB}", wire.to_bytes(change))
        # Nothing has been done yet, so nothing is lost with it in a power cut (docs/adr/0012); run.json is on the disk.
        files.commit(f"{built}/{wire.STATE}", wire.to_bytes(state, reason=reason), durable=False)

    previous = os.umask(0o077)
    try:
        _make_whole(wire.attempt_dir(run_dir, number), fill)
    finally:
        os.umask(previous)
