"""Where a run comes from: who asked for it, from where, with which code (OBS-05). The content of ``run.json``.

Written once, before anything else of the run exists, and never changed. Nothing in it is a secret: argument vectors and
copies are redacted where they looked like one, and say so.
"""

from __future__ import annotations

from .job import JobSpec
from .order import CodeRef
from .profile import Profile
from .queue import JobRef
from .record import field, record


@record
class FileCopy:
    """One file as it was when it was recorded: when the run was created, or a later attempt of changed code.

    `role` is ``config``, ``entry``, ``lock`` or ``job`` (the job file); `source` its absolute path, `copy` the copy's
    path inside the run directory (None: not copied, `note` says why), `sha256` of the original's bytes, `size` in
    bytes. `redacted`: the copy lacks what looked like secrets, so it does not have that hash.
    """

    role: str
    source: str
    copy: str | None = None
    sha256: str | None = None
    size: int | None = None
    redacted: bool = False
    note: str = ""


@record
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


@record
class PinnedScript:
    """A shell script that runs from its copy, because a shell reads a script while it runs it (PROC-20).

    `argv` is the command as it was asked for; the job's own command names the copy. When `copy` is None the script runs
    from its place and `note` says why.
    """

    source: str
    copy: str | None
    argv: tuple[str, ...]
    note: str = ""


@record
class CodeSnapshot:
    """What ran: copies, the repository's state, the pinned script, the declared seed (None: not stated)."""

    files: tuple[FileCopy, ...] = ()
    git: GitFacts = GitFacts()
    script: PinnedScript | None = None
    seed: int | None = None


@record
class AttemptCode:
    """The content of an attempt's ``code.json``: what it and those after it run, where that differs from ``run.json``.

    Written when a person starts an attempt of which files were changed, or the repository moved or could not be read.
    `command` names the copy of a pinned script; `files`, `script` and `git` are as in `CodeSnapshot`; `git` is the
    state as the attempt was begun, None: as of the attempt before. `changed` says in words what differs from the code
    before.
    """

    command: tuple[str, ...]
    files: tuple[FileCopy, ...] = ()
    script: PinnedScript | None = None
    changed: tuple[str, ...] = ()
    git: GitFacts | None = None


@record
class FileChange:
    """A file that is not what was recorded, in words. `pinned`: the attempt runs from its copy, not from `source`."""

    role: str
    source: str
    copy: str | None
    words: str
    pinned: bool = False


@record
class RunOrigin:
    """The content of ``run.json``. `argv` is the redacted command line of holdfast, `python` its interpreter.

    `job_sha256` is over the job's canonical JSON, so equal jobs have equal hashes on every box.
    `queued` says of which job of a queue this is the run; None: nobody queued it. `gpu_wait_s` is for how many seconds
    its attempts wait for cards where the job itself says nothing; None: they do not.
    `environment` are the variables that say where holdfast's own files are (rules, leases), for a supervisor that
    settles the run later; never the job's. `job_file` is the job file that `job` was read from; None without one.
    Of a run that another machine ordered, `bundle` is the hash of the holdfast that it came with, `code` the tree that
    it runs (None: none was sent) and `ordered_by` who asked for it where (``anna@desk``); `job_sha256` is then over the
    job as it was ordered, before the paths of this box were put in, and `resolved_sha256` over the one that is here.
    `scheduler` names who starts its attempts where that is no supervisor of ours (``slurm``); empty: holdfast does.
    `after` are the ids of runs of the same scheduler that are to be proven done before. `place` is what the desk that
    ordered it calls this box;
    `profile` is that of the place.
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
    queued: JobRef | None = None
    gpu_wait_s: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    job_file: FileCopy | None = None
    bundle: str | None = None
    code: CodeRef | None = None
    ordered_by: str = ""
    resolved_sha256: str = ""
    scheduler: str = ""
    after: tuple[str, ...] = ()
    place: str = ""
    profile: Profile | None = None


@record
class KeyChange:
    """One value of a job that somebody changed: the field of `JobSpec` with dots, and both values as JSON has them."""

    key: str
    before: object = None
    after: object = None


@record
class JobChange:
    """The content of an attempt's ``job.json``: the job from this attempt on, because somebody changed it.

    ``run.json`` stays what was asked for first. `job` has the command as asked for (`AttemptCode` has what runs);
    `changed` is against the job that was in force before. `job_file` is the job file that it was read from, if any.
    """

    job: JobSpec
    changed: tuple[KeyChange, ...]
    by: str
    at: str
    job_file: FileCopy | None = None
