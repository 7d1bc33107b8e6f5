"""Where a run comes from: who asked for it, from where, with which code (OBS-05). The content of ``run.json``.

Written once, before anything else of the run exists, and never changed. Nothing in it is a secret: argument vectors and
copies are redacted where they looked like one, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from .job import JobSpec
from .queue import CellRef


@dataclass(frozen=True, slots=True)
class FileCopy:
    """One file as it was when the run was created.

    `role` is ``config``, ``entry`` or ``lock``; `source` its absolute path, `copy` the copy's path inside the run
    directory (None: not copied, `note` says why), `sha256` of the original's bytes, `size` in bytes. `redacted`: the
    copy lacks what looked like secrets, so it does not have that hash.
    """

    role: str
    source: str
    copy: str | None = None
    sha256: str | None = None
    size: int | None = None
    redacted: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class GitFacts:
    """The state of the repository around the working directory.

    `dirty` is None when it could not be told; `diff` is the path of the saved difference inside the run directory.
    `untracked` names at most a hundred files that git does not know. `note` says why something is missing.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    diff: str | None = None
    untracked: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class PinnedScript:
    """A shell script that runs from its copy, because a shell reads a script while it runs it (PROC-20).

    `argv` is the command as it was asked for; the job's own command names the copy. When `copy` is None the script runs
    from its place and `note` says why.
    """

    source: str
    copy: str | None
    argv: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class CodeSnapshot:
    """What ran: copies, the repository's state, the pinned script, the declared seed (None: not stated)."""

    files: tuple[FileCopy, ...] = ()
    git: GitFacts = GitFacts()
    script: PinnedScript | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The content of ``run.json``. `argv` is the redacted command line of holdfast, `python` its interpreter.

    `job_sha256` is over the job's canonical JSON, so equal jobs have equal hashes on every box.
    `cell` says of which cell of a queue this is the run; None: nobody queued it.
    """

    run_id: str
    created_at: str
    job: JobSpec
    job_sha256: str
    user: str
    uid: int
    host: str
    cwd: str
    argv: tuple[str, ...]
    python: str
    version: str
    snapshot: CodeSnapshot = CodeSnapshot()
    cell: CellRef | None = None
