"""Compares what a run would run now with what was recorded: its job, its copied files (FAIL-16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.core.job.job_hash import hash_encoded_job
from holdfast.host.files import files
from holdfast.host.files.job_change import read_newest
from holdfast.host.files.snapshot import hash_file
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.origin import AttemptCode, FileChange, GitFacts, RunOrigin

from .observe import list_attempts


def read_origin(run_dir: str) -> dict[str, Any]:
    """The content of ``run.json``; empty when it cannot be read."""
    path = f"{run_dir}/{wire.RUN}"
    try:
        return wire.parse_object(files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return {}


def read_code(run_dir: str, attempt: int | None = None) -> AttemptCode:
    """What an attempt (None: the newest) runs: its own ``code.json``, that of one before it, else ``run.json``.

    Raises:
        OSError, WireError: what says it cannot be read.
    """
    newest = max(list_attempts(run_dir), default=0) if attempt is None else attempt
    found = read_newest(run_dir, newest, wire.CODE)[1]
    if found:
        return wire.decode(AttemptCode, found, wire.CODE)
    path = f"{run_dir}/{wire.RUN}"
    origin = wire.decode(RunOrigin, wire.parse_object(files.read_bytes(path), path), path)
    return AttemptCode(origin.job.command, origin.snapshot.files, origin.snapshot.script)


def find_git(run_dir: str, attempt: int, origin: Mapping[str, Any]) -> GitFacts | None:
    """The state of the repository in which an attempt was begun; None where none is recorded.

    The newest of `list_git`, which raises. What holdfast begins by itself has that of the attempt before.
    """
    return next((facts for _, facts in list_git(run_dir, attempt, origin)), None)


def list_git(run_dir: str, attempt: int, origin: Mapping[str, Any]) -> Iterator[tuple[int, GitFacts]]:
    """The recorded states of the repository at or before an attempt, newest first, each with its attempt.

    Those in ``code.json``, and last that in `origin`, the content of ``run.json``.

    Raises:
        WireError: what may say one cannot be read; the words name the file.
    """
    number = attempt
    while number > 0:
        try:
            number, found = read_newest(run_dir, number, wire.CODE)
            facts = _decode_git(found.get("git"))
        except (OSError, wire.WireError) as error:
            raise wire.WireError(f"{wire.CODE} cannot be read: {error}") from error
        if facts is not None:
            yield number, facts
        number -= 1
    snapshot = origin.get("snapshot")
    try:
        facts = _decode_git(snapshot.get("git") if isinstance(snapshot, dict) else None)
    except wire.WireError as error:
        raise wire.WireError(f"{wire.RUN} cannot be read: {error}") from error
    if facts is not None:
        yield 1, facts


def _decode_git(value: object) -> GitFacts | None:
    return None if value is None else wire.decode(GitFacts, value, "git")


def find_change(run_dir: str, attempt: int | None = None) -> str:
    """How the job or its files differ from what an attempt recorded; empty when all are proven equal (FAIL-16)."""
    record = read_origin(run_dir)
    try:
        origin = wire.decode(RunOrigin, record)
        # An ordered job's own hash is from before the paths of this box were put in.
        stated = origin.resolved_sha256 or ("" if origin.ordered_by else origin.job_sha256)
        if stated and rehash_job(record) != stated:
            return f"{wire.RUN} does not have the job whose hash was recorded with it"
        return "; ".join(change.words for change in find_file_changes(run_dir, attempt))
    except (OSError, wire.WireError) as error:
        return f"{wire.RUN} cannot be read: {error}"


def find_file_changes(run_dir: str, attempt: int | None = None) -> tuple[FileChange, ...]:
    """The config, script and lock files that are not what an attempt recorded.

    Raises:
        OSError, WireError: what was recorded cannot be read.
    """
    code, changes = read_code(run_dir, attempt), []
    running = None if code.script is None else code.script.copy
    for copy in code.files:
        if copy.sha256 is None:
            continue
        try:
            words = "" if hash_file(copy.source) == copy.sha256 else f"{copy.source} was changed"
        except OSError as error:
            words = f"{copy.source} cannot be read any more ({error.strerror})"
        if words:
            pinned = copy.copy is not None and copy.copy == running
            changes.append(FileChange(copy.role, copy.source, copy.copy, words, pinned))
    return tuple(changes)


def rehash_job(record: dict[str, Any]) -> str:
    """The hash of the job in a ``run.json`` as it was asked for: a pinned script runs from its copy; "" without one.

    Of the stored values, not of what this version would make of them: a key that came later changes no hash.
    """
    job, snapshot = record.get("job"), record.get("snapshot")
    pinned = snapshot.get("script") if isinstance(snapshot, dict) else None
    if not isinstance(job, dict):
        return ""
    return hash_encoded_job({**job, "command": pinned.get("argv")} if isinstance(pinned, dict) else job)


def find_change_within(run_dir: str, limit_s: float, attempt: int | None = None) -> str:
    """As `find_change`, in a disposable child: the files may lie on a mount that hangs."""
    try:
        return str(Offload(lambda: find_change(run_dir, attempt)).wait(limit_s))
    except (OffloadFailed, OSError) as error:
        return f"whether it was changed cannot be told: {error}"


def find_file_changes_within(run_dir: str, limit_s: float) -> tuple[FileChange, ...]:
    """As `find_file_changes` of the newest attempt, in a disposable child.

    Raises:
        StorageError: the files could not be compared, or not in time.
    """
    try:
        found = Offload(lambda: wire.encode(find_file_changes(run_dir))).wait(limit_s)
    except (OffloadFailed, OSError) as error:
        why = f"whether the files of {run_dir} were changed cannot be told: {error}"
        raise StorageError(why, hint="see that its script and configuration can be read") from error
    return tuple(wire.decode(FileChange, item) for item in found)
