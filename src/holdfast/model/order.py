"""An order: all that a place needs to take a job, and nothing of the desk it came from."""

from __future__ import annotations

from .job import JobSpec
from .profile import Profile
from .record import field, record

ORDER_FORMAT = 1


@record
class CodeRef:
    """The code of a job: a tree by the hash of its manifest, and where in it the job's working directory is.

    `workdir` is relative to the tree's top (empty: the top). `commit` and `dirty` are what git said at the desk.
    """

    tree: str
    files: int
    bytes: int
    workdir: str = ""
    commit: str | None = None
    dirty: bool | None = None


@record
class Order:
    """What ``agent submit`` and ``agent stand`` carry out.

    In `job` a relative path means below the working directory of the code; ``~`` and ``$NAME`` are the box's. `secrets`
    are names of what `holdfast secret push` put there, never values. `argv` is the desk's redacted command line, `by`
    who asked and `desk` from which machine. `setup` are lines of sh of the user's own place configuration. `env_from`
    is as in `Place`. `gpu_wait_s` is as in `RunOrigin`. `place` is what the desk calls the place. `scheduler` is as
    in `RunOrigin`, and `native` are the place's options of its own, which those of the job stand over.
    `after` names runs of the scheduler there that are to be proven done before it begins. `profile` is what the box
    needs of the place's profile (`core.profile.variables.for_box`); its hooks are in `setup` already.
    """

    run_id: str
    job: JobSpec
    job_sha256: str
    bundle: str
    code: CodeRef | None = None
    secrets: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    env_from: str = "none"
    argv: tuple[str, ...] = ()
    by: str = ""
    desk: str = ""
    created_at: str = ""
    gpu_wait_s: float | None = None
    place: str = ""
    scheduler: str = ""
    native: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    profile: Profile | None = None
    format: int = ORDER_FORMAT


@record
class ChangeOrder:
    """A job that was read at the desk for a run that is there: what a restart is to make of the run's own job.

    `job` is as in `Order`; with `keeps_command` its command means nothing, and the run's stays. `code` is the tree that
    is at the desk now, and `files` what is in it, as `core.code.manifest.state_files` has it, without the files
    `besides`, which were read into the job; `code` is None where the run's code is to stay, whatever it is at the desk.
    `setup` is as in `Order`.
    """

    job: JobSpec
    keeps_command: bool = False
    code: CodeRef | None = None
    files: dict[str, str] = field(default_factory=dict)
    besides: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    format: int = ORDER_FORMAT


@record
class RunRef:
    """A run that a place has taken: where it is, for whoever asks again. `native_id` is a scheduler's own name for it.

    `fresh` is False when the run was there already, with the same job.
    """

    place: str
    run_id: str
    run_dir: str
    native_id: str | None = None
    fresh: bool = True
