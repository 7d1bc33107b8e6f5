"""What a fault is, as data: what happens, what must be said about it, what it needs, and what its run executes.

Three sentences are kept apart, because each can be wrong alone: the fault happened (`FaultProof`, read from the
kernel's own facts), the verdict (`expects`), and where no failure must follow at all (`prevented`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from holdfast.model.record import field, record
from holdfast.model.verdict import FailureClass, LiveClass


class Need(str, Enum):
    """What this box must have for a fault to be possible."""

    MOUNT_NAMESPACE = "mount_namespace"
    """A mount namespace of one's own: root, or user namespaces for everybody."""
    FUSE = "fuse"
    LOOP_EXT4 = "loop_ext4"
    """Root, mkfs.ext4, mount and loop devices."""
    MEMORY_CGROUP = "memory_cgroup"
    TORCH = "torch"
    NVML_LIBRARY = "nvml_library"
    """A stand-in for libnvidia-ml.so.1 that reads ``FAKE_NVML_STATE``, named with ``--nvml-library``."""
    USER_MODE_LINUX = "user_mode_linux"


class Stage(str, Enum):
    """What is set up around the run. Mounts are made in a mount namespace that ends with the fault."""

    PLAIN = "plain"
    SMALL_DISK = "small_disk"
    """A tmpfs of one MiB at the disk's place."""
    FEW_INODES = "few_inodes"
    LOOP_DISK = "loop_disk"
    """A small ext4 on a loop device."""
    FROZEN_DISK = "frozen_disk"
    """The same, frozen once the run says that it is ready."""
    FUSE = "fuse"
    SMALL_SHM = "small_shm"
    """A tmpfs of one MiB over /dev/shm."""
    CARD = "card"
    """One pretended card."""
    KERNEL_LOG = "kernel_log"
    """No run: records in the place of the kernel's log, read as that is."""


class FaultAct(str, Enum):
    """What the guard does once the run has said that it is ready."""

    NOTHING = "nothing"
    KILL_JOB = "kill_job"
    STOP_JOB = "stop_job"
    """SIGSTOP, as from a terminal or a debugger."""
    TERM_JOB = "term_job"
    ASK_STOP = "ask_stop"
    """``holdfast stop``."""
    KILL_KEEPERS = "kill_keepers"
    """SIGKILL to the run's supervisor and keeper."""
    NEIGHBOUR_OOM = "neighbour_oom"
    """The kernel kills for lack of memory in another group, and then the job is killed from outside."""
    NEIGHBOURS = "neighbours"
    """Others use every CPU."""
    EDIT_SCRIPT = "edit_script"
    FREEZE = "freeze"
    CARD = "card"
    """Change the pretended card as `Fault.card_after` says."""


class ProofKind(str, Enum):
    """A fact that proves that the fault happened, and where it is read."""

    SIGNAL = "signal"
    """The signal that ended the job: the keeper's wait status."""
    CODE = "code"
    """The exit code that ended the job."""
    ERRNO = "errno"
    """The error that a system call gave the payload."""
    OOM_KILL = "oom_kill"
    """The kernel's counter of the run's group, or of the host, moved."""
    STATE = "state"
    """A thread of the job is in this state: /proc/PID/task/*/stat."""
    WORDS = "words"
    """The job printed this."""
    MARK = "mark"
    """The payload wrote this word when it had seen to it itself."""
    ENDING = "ending"
    """The exit record says this of the end, such as which check refused."""
    KERNEL_EVENT = "kernel_event"
    """The kernel log's reader has seen such an event."""
    OUTCOME = "outcome"
    """The exit record's outcome."""


@record
class FaultProof:
    """One fact that must be seen."""

    seen: ProofKind
    value: str


@record
class Fault:
    """One fault.

    `expects` are the classes that are right, the best first; empty when `prevented` says that no failure may follow.
    `payload` is a module of `faults.payloads` and its arguments, `command` a command in its place in which ``{python}``
    and ``{box}`` are replaced (a payload's words then follow it). `job` are further keys of the job file. `card_before`
    are lines of the pretended card's state at the start, `card_after` those that change with `FaultAct.CARD`.
    """

    name: str
    summary: str
    expects: tuple[FailureClass | LiveClass, ...]
    proofs: tuple[FaultProof, ...]
    payload: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    gotchas: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    stage: Stage = Stage.PLAIN
    stage_option: str = ""
    act: FaultAct = FaultAct.NOTHING
    job: Mapping[str, object] = field(default_factory=dict)
    card_before: Mapping[str, str] = field(default_factory=dict)
    card_after: Mapping[str, str] = field(default_factory=dict)
    records: tuple[str, ...] = ()
    """For `Stage.KERNEL_LOG`: ``priority,sequence,microseconds,flags;text``."""
    prevented: str = ""
    healthy: bool = False
    """A control: nothing is wrong, and no trouble may be seen."""
    slow: bool = False
    """Takes more than about ten seconds."""
    settle_s: float = 0.0
    """Seconds for which the trouble lasts before the verdict is asked."""

    @property
    def live(self) -> bool:
        """Whether the verdict is asked while the run lives."""
        return bool(self.expects) and isinstance(self.expects[0], LiveClass)


class FaultJudgement(str, Enum):
    """How one fault went."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_REAL = "not_real"
    """The fault did not happen, so nothing is proven."""
    IMPOSSIBLE = "impossible"
    """This box cannot do it."""
    BROKEN = "broken"
    """The sandbox failed, or no verdict was given."""


@record
class FaultReport:
    """One fault as it went: what was expected, what was seen, what was said."""

    name: str
    judgement: FaultJudgement
    expected: tuple[str, ...] = ()
    said: str = ""
    detector: str = ""
    confidence: str = ""
    proven: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    verdict_seconds: float = 0.0
    """What asking for the verdict took."""
    box: str = ""
    """The sandbox, when it was kept."""
    verdict: dict[str, object] = field(default_factory=dict)
