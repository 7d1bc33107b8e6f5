"""JobSpec: everything a person can say about a run, resolved, with units made plain.

This is what a job file or the command line decodes into, what `run.json` stores, and all that the supervisor knows of
the wish. Seconds and bytes are numbers here; their notation lives in `units`. Defaults are the documented ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .gpu import GpuRequest


class Priority(str, Enum):
    """CPU and I/O priority of the job: LOW is nice 10 and best-effort level 7 (ETIQ-01)."""

    LOW = "low"
    NORMAL = "normal"


class Rung(str, Enum):
    """How a job is contained, best first; AUTO takes the first that works here."""

    AUTO = "auto"
    PID_NAMESPACE = "pid_namespace"
    CGROUP_V2 = "cgroup_v2"
    CGROUP_V1 = "cgroup_v1"
    SUBREAPER = "subreaper"
    PROCESS_GROUP = "process_group"


class Orphan(str, Enum):
    """What becomes of the job when its supervisor dies (PROC-23)."""

    KEEP = "keep"
    KILL = "kill"


class Unenforced(str, Enum):
    """What to do about a limit that nothing on this box can enforce."""

    FAIL = "fail"
    WARN = "warn"


class StallAction(str, Enum):
    """What becomes of a run that makes no progress: told only, or stopped as well."""

    REPORT = "report"
    STOP = "stop"


class Ptrace(str, Enum):
    """Which processes of the same account may attach to the job under Yama's scope 1 (docs/adr/0016)."""

    ANY = "any"
    NONE = "none"


class Tracker(str, Enum):
    """Experiment tracker mode given to the job; NONE leaves its environment alone."""

    OFFLINE = "offline"
    ONLINE = "online"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """How cards are chosen and waited for. Bytes and seconds; None is "no limit stated".

    `memory_share` (0 < share <= 1) is what torch may take of each card's memory; the training library applies it.
    `memory_bytes` is what the job will use of each card; on shared cards that much is reserved for it.
    `verify`: before the start the job's own torch is asked whether it sees a card.
    """

    min_free_bytes: int | None = None
    wait_s: float = 0.0
    share: bool = False
    max_hold_s: float | None = None
    idle_window_s: float = 2.0
    memory_share: float | None = None
    verify: bool = True
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines of the phases in seconds; `total_s` covers everything from the start of the attempt."""

    preflight_s: float = 120.0
    run_s: float | None = None
    postflight_s: float = 300.0
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """The clocks beside the wall clock, in seconds of watching; 0 is off.

    `no_progress_s` since the last step (None: learned from the steps seen), `no_output_s` since the last output,
    `startup_s` until the first step, and for a phase not seen before (None: 2 h, or `no_progress_s` if longer).
    """

    no_progress_s: float | None = None
    no_output_s: float = 0.0
    startup_s: float | None = None
    action: StallAction = StallAction.REPORT


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of the whole job tree. Bytes; `cpus` in cores (0.5 is half of one core, LIM-05).

    `affinity` lists CPU numbers; `cpu_weight` is cgroup v2's scale 1..10000 (100 is the default).
    """

    memory_bytes: int | None = None
    memory_high_bytes: int | None = None
    cpus: float | None = None
    cpu_weight: int | None = None
    affinity: tuple[int, ...] = ()
    tasks: int | None = None
    open_files: int | None = None
    unenforced: Unenforced = Unenforced.FAIL


@dataclass(frozen=True, slots=True)
class DiskNeeds:
    """The disk gate. `min_free_bytes` and `min_free_inodes` must remain on every mount in use.

    `checkpoint_bytes` x (`keep` + 1 for the one being written) is the checkpoint budget (PRE-07). `expected_files` is
    how many files the job will make (STOR-08), `scratch` patterns of what may be removed when a disk is full (STOR-03).
    """

    min_free_bytes: int = 1_000_000_000
    min_free_inodes: int = 1000
    checkpoint_bytes: int = 0
    keep: int = 1
    paths: tuple[str, ...] = ()
    expected_files: int = 0
    scratch: tuple[str, ...] = ()


class OutOfMemory(str, Enum):
    """What the queue does once after a card's memory ran out: nothing, again unshared, again on a larger card."""

    NEVER = "never"
    ALONE = "alone"
    LARGER = "larger"


@dataclass(frozen=True, slots=True)
class Retries:
    """Attempts that holdfast begins by itself after a failure that may pass (docs/retries.md).

    At most `max` in a row; the first waits `wait_s` seconds before its checks, each further one three times as long.
    `out_of_memory` is for cells of the queue.
    """

    max: int = 1
    wait_s: float = 5.0
    out_of_memory: OutOfMemory = OutOfMemory.NEVER


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What the training library is told about checkpoints; None leaves it to the script (CKPT-09, CKPT-06).

    `every` is ``auto``, seconds (``600s``) or steps (``500 steps``); `mirror` a directory that outlives the box, in
    which each run gets one of its own; `interruptions_s` the mean time between interruptions that people expect here.
    """

    every: str | None = None
    keep: int | None = None
    mirror: str | None = None
    interruptions_s: float | None = None


@dataclass(frozen=True, slots=True)
class Notify:
    """Whom to tell: an argument vector that gets the message as JSON on stdin, and a URL that gets it by POST.

    ``alert`` in `on` is everything that needs a person while the job runs: no progress, a disk that fills, a fault.
    """

    command: tuple[str, ...] = ()
    webhook: str | None = None
    on: tuple[str, ...] = ("alert", "ended")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, resolved. Paths are absolute; `command` is an argument vector and never meets a shell.

    `grace_s` None means derived from the measured checkpoint time; `threads` None means derived from the CPU quota;
    `nice_default` in rules may change what Priority.LOW means.
    """

    name: str
    command: tuple[str, ...]
    workdir: str
    env: dict[str, str] = field(default_factory=dict)
    gpus: GpuRequest = field(default_factory=GpuRequest)
    gpu: GpuOptions = GpuOptions()
    timeouts: Timeouts = Timeouts()
    grace_s: float | None = None
    grace_max_s: float = 600.0
    limits: Limits = Limits()
    priority: Priority = Priority.LOW
    containment: Rung = Rung.AUTO
    on_supervisor_death: Orphan = Orphan.KEEP
    inputs: tuple[str, ...] = ()
    config: str | None = None
    data: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    disk: DiskNeeds = DiskNeeds()
    checkpoints: Checkpoints = Checkpoints()
    caches: str | None = None
    retries: Retries = Retries()
    expected_s: float | None = None
    stall: Stall = Stall()
    output_max_bytes: int = 200 * 1024**2
    health_every_s: float = 30.0
    tracker: Tracker = Tracker.OFFLINE
    threads: int | None = None
    image: str | None = None
    login_shell: bool = False
    pty: bool = False
    allow_install: bool = False
    ptrace: Ptrace = Ptrace.ANY
    notify: Notify = Notify()
    seed: int | None = None
