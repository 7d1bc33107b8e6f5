"""JobSpec: everything a person can say about a run, resolved, with units made plain.

This is what a job file or the command line decodes into, what `run.json` stores, and all that the supervisor knows of
the wish. Seconds and bytes are numbers here; their notation lives in `units`. Defaults are the documented ones.
"""

from __future__ import annotations

from enum import Enum

from .container import ContainerSpec
from .gpu import GpuRequest
from .record import field, record


class Priority(str, Enum):
    """CPU and I/O priority of the job: LOW is nice 10 and best-effort level 7 (ETIQ-01), BACKGROUND nice 19.

    AUTO is LOW where other accounts work on the box or a rules file is in force, else NORMAL.
    """

    AUTO = "auto"
    BACKGROUND = "background"
    LOW = "low"
    NORMAL = "normal"


GRACE_MAX_S = 600.0
"""How far a grace may be extended while a save makes progress, unless the job says otherwise."""


class IsolationLevel(str, Enum):
    """How a job is contained, best first; AUTO takes the first that works here."""

    AUTO = "auto"
    PID_NAMESPACE = "pid_namespace"
    CGROUP_V2 = "cgroup_v2"
    CGROUP_V1 = "cgroup_v1"
    SUBREAPER = "subreaper"
    PROCESS_GROUP = "process_group"


class OrphanPolicy(str, Enum):
    """What becomes of the job when its supervisor dies (PROC-23)."""

    KEEP = "keep"
    KILL = "kill"


class UnenforcedPolicy(str, Enum):
    """What to do about a limit that nothing on this box can enforce."""

    FAIL = "fail"
    WARN = "warn"


class StallAction(str, Enum):
    """What becomes of a run that makes no progress: told only, or stopped as well."""

    REPORT = "report"
    STOP = "stop"


class PtraceScope(str, Enum):
    """Which processes of the same account may attach to the job under Yama's scope 1 (docs/adr/0016)."""

    ANY = "any"
    NONE = "none"


class TrackerMode(str, Enum):
    """Experiment tracker mode given to the job; NONE leaves its environment alone."""

    OFFLINE = "offline"
    ONLINE = "online"
    NONE = "none"


@record
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


@record
class Timeouts:
    """Deadlines of the phases in seconds; `total_s` covers everything from the start of the attempt."""

    preflight_s: float = 120.0
    run_s: float | None = None
    postflight_s: float = 300.0
    total_s: float | None = None


@record
class StallOptions:
    """The clocks beside the wall clock, in seconds of watching; 0 is off.

    `no_progress_s` since the last step (None: learned from the steps seen), `no_output_s` since the last output,
    `startup_s` until the first step, and for a phase not seen before (None: 2 h, or `no_progress_s` if longer).
    """

    no_progress_s: float | None = None
    no_output_s: float = 0.0
    startup_s: float | None = None
    action: StallAction = StallAction.REPORT


@record
class Limits:
    """Resource limits of the whole job tree. Bytes; `cpus` in cores (0.5 is half of one core, LIM-05).

    `affinity` lists CPU numbers; `cpu_weight` is cgroup v2's scale 1..10000 (100 is the default). `swap_bytes` is what
    the tree may have in swap beside its memory limit; None is none, where the kernel can bar it.
    """

    memory_bytes: int | None = None
    memory_high_bytes: int | None = None
    cpus: float | None = None
    cpu_weight: int | None = None
    affinity: tuple[int, ...] = ()
    tasks: int | None = None
    open_files: int | None = None
    unenforced: UnenforcedPolicy = UnenforcedPolicy.FAIL
    swap_bytes: int | None = None


@record
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


@record
class Retries:
    """Attempts that holdfast begins by itself after a failure that may pass (docs/retries.md).

    At most `max` in a row; the first waits `wait_s` seconds before its checks, each further one three times as long.
    `out_of_memory` is for jobs of the queue.
    """

    max: int = 1
    wait_s: float = 5.0
    out_of_memory: OutOfMemory = OutOfMemory.NEVER


@record
class Checkpoints:
    """What the training library is told about checkpoints; None leaves it to the script (CKPT-09, CKPT-06).

    `every` is ``auto``, seconds (``600s``) or steps (``500 steps``); `mirror` a directory that outlives the box, in
    which each run gets one of its own; `interruptions_s` the mean time between interruptions that people expect here.
    """

    every: str | None = None
    keep: int | None = None
    mirror: str | None = None
    interruptions_s: float | None = None


@record
class Results:
    """The copy of the results to storage that lasts, made after the job's success (docs/results.md).

    `paths` are relative to the run directory; empty: `artifacts` and the metrics. `to` is a directory in which each run
    gets one of its own; None: nothing is copied. A copy is tried `tries` times, `wait_s` seconds after the first one
    that failed and three times as long after each further one. `prune_scratch`: once the copy is proven, what
    `disk.scratch` names is removed.
    """

    to: str | None = None
    paths: tuple[str, ...] = ()
    tries: int = 3
    wait_s: float = 10.0
    prune_scratch: bool = False


@record
class Notify:
    """Whom to tell: an argument vector that gets the message as JSON on stdin, and URLs that get it by POST.

    ``alert`` in `on` is everything that needs a person while the job runs: no progress, a disk that fills, a fault.
    ``group`` is the end of the last job of a group of the queue.
    """

    command: tuple[str, ...] = ()
    webhook: tuple[str, ...] | str | None = None
    on: tuple[str, ...] = ("alert", "ended")


class SmtpTls(str, Enum):
    """How a connection to a mail server is protected: by STARTTLS, from its first byte, or not at all."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


@record
class Channels:
    """Further ways by which `Notify` tells people; an address is a URL, or ``secret:NAME`` of a secret of the box.

    `email` goes by the box's own sendmail, or by the server `smtp` (``HOST`` or ``HOST:PORT``) as `smtp_user`, whose
    password is the secret that `smtp_password` names. `every` is how often a run that runs is told of: ``21600s``,
    ``500 steps``, ``2 epochs``.
    """

    slack: tuple[str, ...] = ()
    discord: tuple[str, ...] = ()
    ntfy: tuple[str, ...] = ()
    email: tuple[str, ...] = ()
    email_from: str | None = None
    smtp: str | None = None
    smtp_user: str | None = None
    smtp_password: str | None = None
    smtp_tls: SmtpTls = SmtpTls.STARTTLS
    every: str | None = None


@record
class JobSpec:
    """One job, resolved. Paths are absolute; `command` is an argument vector and never meets a shell.

    `grace_s` None means derived from the measured checkpoint time; `threads` None means derived from the CPU quota;
    `nice` in the rules may change what Priority.LOW means. `secrets` are uses of what this account keeps on the box,
    as `core.job.secret_names` reads them; their values are in no record. `setup` are lines of sh before the command;
    `smoke` is the argument vector of a cheap trial on the CPU before the start, empty without one. `slurm` are long
    options of sbatch, which only places of kind slurm look at. Neither they nor `channels` are part of the job's hash.
    `nodes` is on how many nodes of a scheduler's job the command runs at once; cards and limits are of each.
    """

    name: str
    command: tuple[str, ...]
    workdir: str
    env: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    gpus: GpuRequest = field(default_factory=GpuRequest)
    gpu: GpuOptions = GpuOptions()
    timeouts: Timeouts = Timeouts()
    grace_s: float | None = None
    grace_max_s: float = GRACE_MAX_S
    limits: Limits = Limits()
    priority: Priority = Priority.AUTO
    containment: IsolationLevel = IsolationLevel.AUTO
    on_supervisor_death: OrphanPolicy = OrphanPolicy.KEEP
    inputs: tuple[str, ...] = ()
    config: str | None = None
    data: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    results: Results = Results()
    disk: DiskNeeds = DiskNeeds()
    checkpoints: Checkpoints = Checkpoints()
    caches: str | None = None
    retries: Retries = Retries()
    expected_s: float | None = None
    stall: StallOptions = StallOptions()
    output_max_bytes: int = 200 * 1024**2
    health_every_s: float = 30.0
    tracker: TrackerMode = TrackerMode.OFFLINE
    threads: int | None = None
    container: ContainerSpec = ContainerSpec()
    login_shell: bool = False
    pty: bool = False
    allow_install: bool = False
    ptrace: PtraceScope = PtraceScope.ANY
    notify: Notify = Notify()
    channels: Channels = Channels()
    seed: int | None = None
    setup: tuple[str, ...] = ()
    smoke: tuple[str, ...] = ()
    skip_smoke: bool = False
    slurm: dict[str, str] = field(default_factory=dict)
    nodes: int = 1
