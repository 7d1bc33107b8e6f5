"""The code of an attempt: copies of what it starts from, and whether its script runs from the copy (OBS-05, PROC-20).

Made when a run is created, and again when a person starts an attempt and something was changed since, a file or the
state of the repository: then it is in ``code.json`` of that attempt and holds for those after it. What holdfast begins
by itself runs no changed file of those that were copied.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import list_attempts
from holdfast.agent.view.source_change import find_file_changes_within, list_git, read_code, read_origin
from holdfast.core.job.redact import redact_code, redact_text
from holdfast.core.run.scripts import asks_for_itself, find_shell_script, is_shell, split_shebang
from holdfast.host.files import files
from holdfast.host.files.snapshot import (
    LOCK_NAMES,
    MOST_SCRIPTS,
    SCRIPT_ENDS,
    GitReader,
    copy_file,
    find_repository,
    find_upwards,
    is_script,
    read_difference,
    save_difference,
    was_read,
)
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.origin import AttemptCode, FileCopy, GitFacts, PinnedScript
from holdfast.model.record import record, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.job import JobSpec
    from holdfast.model.origin import FileChange

LOOK_WITHIN_S = 10.0
SHOWN_DIGITS = 12
"""Of a commit."""


@record
class RenewedCode:
    """What a person's next attempt runs other than the one before; `code` is None where that is nothing.

    `changes` are files that are not what was recorded, `moved` says in words that the repository is in another state
    (empty: it is not), `unknown` what of its state could not be told.
    """

    code: AttemptCode | None = None
    changes: tuple[FileChange, ...] = ()
    moved: str = ""
    unknown: str = ""


@record
class _RepositoryLook:
    """The state of the repository for an attempt that begins, with the difference that is to be saved.

    `facts` is None where the code is one that a desk has sent: there is no repository here. `new`: what is recorded
    does not say so. In words: `moved` that it is another state than the last one that was read, `unknown` what could
    not be told.
    """

    facts: GitFacts | None = None
    difference: bytes | None = None
    new: bool = False
    moved: str = ""
    unknown: str = ""


def copy_code(spec: JobSpec, built: str, *, run_dir: str) -> AttemptCode:
    """Copy config, scripts and lock file of a job into the run's snapshot; `spec` has the command as asked for.

    `built` is where the run lies now; commands name the copies by `run_dir`, where it is going to lie.

    Raises:
        OSError: a copy cannot be written.
    """
    copies: list[FileCopy] = []
    if spec.config is not None:
        copies.append(copy_file("config", spec.config, built, clean=redact_text)[0])
    pinned = _pin_entry(spec, built, copies)
    _copy_scripts(spec, built, copies)
    lock = find_upwards(spec.workdir, LOCK_NAMES, stop=find_repository(spec.workdir))
    if lock is not None:
        copies.append(copy_file("lock", lock, built, clean=redact_text)[0])
    return AttemptCode(_pinned_command(spec, pinned, built, run_dir), tuple(copies), pinned)


def copy_job_file(path: str, built: str) -> FileCopy:
    """Copy a job file for the record.

    Raises:
        OSError: the copy cannot be written.
    """
    return copy_file("job", path, built, clean=redact_text)[0]


def names_other_files(before: JobSpec, after: JobSpec) -> bool:
    """Whether a changed job starts from other files: another command or configuration, or in another directory."""
    return (before.command, before.config, before.workdir) != (after.command, after.config, after.workdir)


def find_code_changes(run_dir: str, *, anew: bool = False, recorded: bool = False) -> tuple[FileChange, ...]:
    """Which files were changed since the last copies. Raises as `renew_code` does, and writes nothing."""
    changes = () if anew else find_file_changes_within(run_dir, LOOK_WITHIN_S)
    if recorded:
        _refuse_unpinned(run_dir, changes)
    return changes


def find_code_moved(run_dir: str, job: JobSpec, environ: Mapping[str, str]) -> tuple[str, str]:
    """Whether the repository of a job is in another state than was recorded last, and what cannot be told, in words.

    Both are empty where nothing is to be said. Writes nothing.
    """
    try:
        look = _look_at_repository(run_dir, job, environ)
    except (OSError, wire.WireError):
        return "", ""
    return look.moved, look.unknown


def renew_code(
    run_dir: str, job: JobSpec, environ: Mapping[str, str], *, anew: bool = False, recorded: bool = False
) -> RenewedCode:
    """What a person's next attempt runs where files, or the state of the repository, are not those of the last one.

    `job` is that of the attempt, with the command as asked for; `anew`: it names other files than the last one did.
    `recorded`: what was copied is run as it was recorded. `environ` is for git. The caller holds the run's lock.

    Raises:
        UsageError: `recorded`, and something was changed that is read from its place, so that no copy runs instead.
        StorageError: the files cannot be read in time, or copies not be written.
    """
    changes = find_code_changes(run_dir, anew=anew, recorded=recorded)
    try:
        look = _look_at_repository(run_dir, job, environ)
        if not recorded and (changes or anew):
            made = copy_code(job, run_dir, run_dir=run_dir)
        elif look.new:
            made = read_code(run_dir)
        else:
            return RenewedCode(None, changes, unknown=look.unknown)
    except (OSError, wire.WireError) as error:
        raise StorageError(f"the changed files of {run_dir} cannot be copied: {error}", hint="see df") from error
    git = None if look.facts is None else save_difference(look.facts, look.difference, run_dir)
    words = [] if recorded else [change.words for change in changes]
    code = replace(made, changed=(*words, *filter(None, [look.moved])), git=git)
    return RenewedCode(code, changes, look.moved, look.unknown)


def _look_at_repository(run_dir: str, job: JobSpec, environ: Mapping[str, str]) -> _RepositoryLook:
    """The state of the repository of a job against the last one that was read.

    Names of files that git does not know are no other state: most are what the run itself wrote. A look that failed
    is none either, and the attempt has no state that is proven then. A difference that was saved already is named.

    Raises:
        OSError, WireError: what was recorded cannot be read.
    """
    origin = read_origin(run_dir)
    if origin.get("code") is not None:
        return _RepositoryLook()
    states = list_git(run_dir, max(list_attempts(run_dir), default=0), origin)
    attempt, known = next(states, (0, GitFacts()))
    in_force = known
    while not was_read(known):
        attempt, known = next(states, (0, GitFacts()))
    with closing(GitReader(job.workdir, environ)) as git:
        facts, difference = git.read(clean=redact_code)
    if not was_read(facts):
        return _tell_unread(facts, attempt, in_force)
    saved = read_difference(known, run_dir)
    before, now = _has_changes(known, saved), _has_changes(facts, difference)
    same, again = (known.commit, before) == (facts.commit, now), difference is not None and difference == saved
    if same and (again or not now or facts.commit is None):
        return _RepositoryLook(replace(facts, diff=known.diff), new=in_force is not known)
    if same and (saved is None or difference is None):
        lost = f"could not be read ({facts.note})" if difference is None else f"is not recorded of attempt {attempt}"
        unknown = f"what differs from commit {(facts.commit or '')[:SHOWN_DIGITS]} {lost}"
        new = in_force is not known or (saved, difference) != (None, None)
        words = f"{unknown}: whether it is another one now cannot be told"
        return _RepositoryLook(facts, difference, new=new, unknown=words)
    was, now_is = _describe_state(known, before), _describe_state(facts, now, other=same)
    moved = f"the repository was {was}, is {now_is}" if attempt else ""
    if again:
        return _RepositoryLook(replace(facts, diff=known.diff), new=True, moved=moved)
    return _RepositoryLook(facts, difference, new=True, moved=moved)


def _tell_unread(facts: GitFacts, attempt: int, in_force: GitFacts) -> _RepositoryLook:
    """What a look that failed comes to; the last state that was read is that of `attempt` (0: none was)."""
    if not attempt:
        return _RepositoryLook(facts)
    last = f"the last known one is that of attempt {attempt}"
    noted = GitFacts(note=f"{facts.note}; {last}")
    words = f"the state of the repository could not be read ({facts.note}): {last}"
    return _RepositoryLook(noted, new=noted != in_force, unknown=words)


def _has_changes(facts: GitFacts, difference: bytes | None) -> bool:
    """Whether a file that git knows is changed, and not only one there that it does not know."""
    named = facts.diff is not None or difference is not None
    return facts.dirty is True and (named or bool(facts.note) or not facts.untracked)


def _describe_state(facts: GitFacts, changed: bool, *, other: bool = False) -> str:  # noqa: FBT001 - two of a kind
    if facts.commit is None:
        return f"at no known commit{f' ({facts.note})' if facts.note else ''}"
    files = {False: "clean", None: "changes unknown", True: "with files that git does not know"}[facts.dirty]
    state = f"with {'other ' if other else ''}changes" if changed else files
    return f"at {facts.commit[:SHOWN_DIGITS]} ({state})"


def _refuse_unpinned(run_dir: str, changes: tuple[FileChange, ...]) -> None:
    loose = [change for change in changes if not change.pinned]
    if loose:
        kept = [f"cp {run_dir}/{change.copy} {change.source}" for change in loose if change.copy is not None]
        raise UsageError(
            f"{'; '.join(change.words for change in loose)}: only a shell script runs from its copy",
            hint=f"put back what was recorded: {'; '.join(kept)}" if kept else "put it back as it was",
        )


def _pin_entry(spec: JobSpec, run_dir: str, copies: list[FileCopy]) -> PinnedScript | None:
    """Copy the first file that the command names, and decide whether it runs from the copy."""
    shell = find_shell_script(spec.command)
    words = range(len(spec.command)) if shell is None else range(shell.index, shell.index + 1)
    for index in words:
        path = os.path.join(spec.workdir, spec.command[index])
        if (index == 0 and "/" not in spec.command[0]) or not os.path.isfile(path):
            continue
        if index == 0 and not is_script(path):
            continue
        copy, data = copy_file("entry", path, run_dir, clean=redact_code)
        copies.append(copy)
        may_run = data is not None and os.access(path, os.X_OK)
        direct = index == 0 and may_run and is_shell(split_shebang(_first_line(data or b"")) or ())
        return _decide_pin(spec, copy, data) if shell is not None or direct else None
    return None


def _copy_scripts(spec: JobSpec, run_dir: str, copies: list[FileCopy]) -> None:
    """Copy the scripts that the command names behind its first file: those of a launcher or a wrapper."""
    known = {copy.source for copy in copies}
    named = (os.path.join(spec.workdir, word) for word in spec.command[1:] if word.endswith(SCRIPT_ENDS))
    scripts = [path for path in dict.fromkeys(named) if path not in known and os.path.isfile(path)]
    copies += [copy_file("entry", path, run_dir, clean=redact_code)[0] for path in scripts[:MOST_SCRIPTS]]


def _first_line(data: bytes) -> str:
    return data[:256].split(b"\n", 1)[0].decode("utf-8", "replace")


def _decide_pin(spec: JobSpec, copy: FileCopy, data: bytes | None) -> PinnedScript:
    if copy.copy is None or data is None:
        note = copy.note or "it cannot be copied"
    elif asks_for_itself(data.decode("utf-8", "replace")):
        note = "it uses its own path ($0 or BASH_SOURCE), which a copy would change"
    elif b"\r" in data[:256].split(b"\n", 1)[0]:
        note = "its first line ends in a carriage return"
    else:
        return PinnedScript(copy.source, copy.copy, spec.command)
    return PinnedScript(copy.source, None, spec.command, f"runs from its place, so do not edit it meanwhile: {note}")


def _pinned_command(spec: JobSpec, pinned: PinnedScript | None, built: str, run_dir: str) -> tuple[str, ...]:
    """The command with the copy in the script's place, its interpreter in front when the ``#!`` line named it."""
    if pinned is None or pinned.copy is None:
        return spec.command
    copy = f"{run_dir}/{pinned.copy}"
    shell = find_shell_script(spec.command)
    if shell is not None:
        return (*spec.command[: shell.index], copy, *spec.command[shell.index + 1 :])
    words = split_shebang(_first_line(files.read_bytes(f"{built}/{pinned.copy}")))
    assert words is not None, "only a script with an interpreter line is pinned"
    return (*words, copy, *spec.command[1:])
