"""The shapes that gatherers hand to detectors. Plain data; nothing here reads or decides.

`Reading` is the base of all of it: a fact, or the reason why it could not be read. A detector that meets an unread
fact answers UNKNOWN, never NO.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

from holdfast.model.record import field, record
from holdfast.model.verdict import Clue, Confidence, FailureClass, LiveClass

T = TypeVar("T")


@record
class Reading(Generic[T]):
    """A fact, or why it could not be read. `unread` is empty exactly when `value` counts."""

    value: T | None = None
    unread: str = ""

    @property
    def known(self) -> bool:
        """Whether `value` counts."""
        return not self.unread


NOT_LOOKED = "not looked at"
"""`Reading(unread=NOT_LOOKED)`: nobody has tried to read it."""


class Answer(str, Enum):
    """A detector's answer. UNKNOWN is "the evidence could not be read", which is not NO."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


@record
class Detection:
    """What one detector says.

    `detector` is its id (``V1``; docs/diagnosis.md has the table), `kind` the class that it speaks for. `facts` are
    values for the action's text (``{path}``, ``{card}``).
    """

    detector: str
    kind: FailureClass | LiveClass
    answer: Answer
    confidence: Confidence = Confidence.POSSIBLE
    evidence_for: tuple[Clue, ...] = ()
    evidence_against: tuple[Clue, ...] = ()
    unknown: tuple[Clue, ...] = ()
    gotchas: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------ the job's words


class LineRole(str, Enum):
    """What a line of a log can be: a cause, what follows from a cause elsewhere, or support for another finding.

    Advice that frameworks print ("Consider passing CUDA_LAUNCH_BLOCKING=1") matches nothing at all.
    """

    ROOT = "root"
    CASCADE = "cascade"
    CONFIRMATION = "confirmation"


@record
class LogMatch:
    """One line that a pattern knows. `offset` is in bytes of the file; `rank` is None where the line names none."""

    pattern: str
    role: LineRole
    kind: FailureClass | None
    line: str
    offset: int
    rank: int | None = None
    remedy: str = ""
    values: dict[str, str] = field(default_factory=dict)


@record
class LogFacts:
    """What the output of one attempt says.

    `matches` are in the file's order, at most a few of each pattern (the first and the last). `exception` is the last
    line of the last traceback (``KeyError: 'lr'``), `message` the further lines of what it says, `traceback` its text,
    `tail` the last lines. `whole` is False when
    not all of the file was looked at; `binary` when it is not text.
    """

    path: str
    size_bytes: int
    matches: tuple[LogMatch, ...] = ()
    exception: str = ""
    traceback: str = ""
    message: tuple[str, ...] = ()
    tail: str = ""
    whole: bool = True
    binary: bool = False


# -------------------------------------------------------------------------------------------------------- the kernel's


class KernelKind(str, Enum):
    """What a line of the kernel's log is about."""

    OOM_KILL = "oom_kill"
    """``oom-kill:constraint=...``: values `constraint`, `oom_memcg`, `task_memcg`, `task`, `uid`."""
    OOM_VICTIM = "oom_victim"
    """``Killed process``: values `total_vm_kb`, `anon_rss_kb`."""
    HUNG_TASK = "hung_task"
    SOFT_LOCKUP = "soft_lockup"
    SEGFAULT = "segfault"
    """Values `library`, `address`."""
    XID = "xid"
    """Values `code`, `pci` (lower case, ``0000:3b:00.0``), `process`, `gpu_instance`."""
    CARD_LOST = "card_lost"
    """The card fell off the bus, said without a Xid. Value `pci`."""
    NFS = "nfs"
    """Values `server`, `state` (``not responding`` or ``OK``)."""
    READ_ONLY = "read_only"
    IO_ERROR = "io_error"
    """Value `device`."""


@record
class KernelEvent:
    """One known line of the kernel's log.

    `seconds` is since boot (the log's own clock). `trusted` is False where a process, not the kernel, wrote the line:
    such lines have a facility other than 0 (Documentation/ABI/testing/dev-kmsg) and prove nothing.
    """

    kind: KernelKind
    seconds: float
    text: str
    sequence: int = 0
    pid: int | None = None
    comm: str = ""
    trusted: bool = True
    values: dict[str, str] = field(default_factory=dict)


@record
class KernelLog:
    """The known lines since a position. `lost` is True when the ring buffer was overwritten since then.

    `first_seconds` is when the oldest line that is still there was written: the log says nothing of the time before.
    """

    events: tuple[KernelEvent, ...] = ()
    lost: bool = False
    first_seconds: float = 0.0
