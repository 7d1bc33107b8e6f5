"""Everything known about the end of one attempt, as readings: what `gather` fills and `detect` judges. Pure.

A number that could not be read is a `Reading` with a reason, never zero. The aftermath is the part that only the box
itself could tell and that changes later (counters, disks, kernel log); it is taken once, soon after the end, and kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.evidence import NOT_LOOKED, Detection, KernelEvent, KernelKind, KernelLog, LogFacts, Reading
from holdfast.model.record import field, record

from .detect.signals import find_signal

if TYPE_CHECKING:
    from holdfast.model.finding import Finding
    from holdfast.model.gpu import XidEvent
    from holdfast.model.run import Ended

Facts = dict[str, Any]
UNREAD: Reading[Any] = Reading(unread=NOT_LOOKED)
FULL_BYTES = 16 * 1024**2
"""Less than this is a full disk: no checkpoint fits, and file systems keep some for themselves."""
CLOCKS_PART_S = 60.0
"""How far the kernel log's clock and ours may be apart (`compare.KERNEL_SLACK_S`)."""
LATE_S = 120.0
"""A look later than this after the end may count what happened to others since."""


@record
class LevelChange:
    """OOM kills counted at one level of the memory groups since the launch. `own`: the run's own group."""

    path: str
    kills: Reading[int]
    limit_bytes: int | None = None
    own: bool = False


@record
class DiskChange:
    """A disk of the run at launch and at the end. `role`: ``run``, ``checkpoints``, ``data``, ``work``, ``shm``.

    `devices` are the block devices that carry it, by the kernel's names; None where that could not be told.
    """

    role: str
    path: str
    free_bytes: Reading[int]
    free_inodes: int | None = None
    total_bytes: int | None = None
    read_only: bool = False
    was_read_only: bool | None = None
    devices: tuple[str, ...] | None = None


@record
class EndedEvidence:
    """One attempt's end. `words` are what the output says, already judged; `tenants` others on the run's cards.

    `pids` are processes of the run by number (as the supervisor saw them), `group` is the last part of its control
    group's name. `looked_s` is how long after the end the box was looked at, `earlier_kills` what its own group had
    counted some time before the end. `silent_supervisor`: its supervisor wrote nothing. `tasks_limit` is the job's
    own limit of processes and threads (``limits.tasks``), `files_limit` that of open files (``limits.open_files``).
    `expandable`: its torch had expandable segments, as
    holdfast sets them. `heard` are the Xids that the driver reported to the supervisor, `xid_severities` what the
    rules of its box said of some codes. `checkpoint`: there is something to go on from; `has_cards`: it was given
    cards (None: not known). `leftovers` are processes that the job had just begun when its leader left with 0, and
    that were ended. `piped`: its command sends output through `tee`. `closing_lines`: so many lines its shell prints
    itself at the end, whatever became of the programs before. `stood` are the places in Python where its processes
    stood when a limit ran out and all of them wrote their stacks, before anything was done to them. `ranks`: its
    command, its plan or its environment speaks of several. `time_limit_s` is the limit of the whole attempt, also of
    the time before its job began.
    """

    run_id: str
    attempt: int
    ended: Ended
    rebooted: Reading[bool] = UNREAD
    init_restarted: Reading[bool] = UNREAD
    own_kills: Reading[int] = UNREAD
    host_kills: Reading[int] = UNREAD
    levels: tuple[LevelChange, ...] = ()
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    kernel: Reading[KernelLog] = UNREAD
    kernel_from_s: float | None = None
    kernel_until_s: float | None = None
    killers: Reading[tuple[str, ...]] = UNREAD
    log: Reading[LogFacts] = UNREAD
    words: tuple[Detection, ...] = ()
    disks: tuple[DiskChange, ...] = ()
    cards: tuple[Facts, ...] = ()
    cards_before: tuple[Facts, ...] = ()
    cards_unread: str = ""
    tenants: tuple[str, ...] = ()
    heartbeat: Facts = field(default_factory=dict)
    session: Facts = field(default_factory=dict)
    rlimits: Facts = field(default_factory=dict)
    scheduler: str = ""
    findings: tuple[Finding, ...] = ()
    pids: frozenset[int] = frozenset()
    group: str = ""
    duration_s: float | None = None
    expected_s: float | None = None
    problems: tuple[str, ...] = ()
    looked_s: float | None = None
    earlier_kills: int | None = None
    silent_supervisor: bool = False
    tasks_limit: int | None = None
    files_limit: int | None = None
    expandable: bool = False
    checkpoint: bool | None = None
    has_cards: bool | None = None
    leftovers: tuple[str, ...] = ()
    piped: bool = False
    closing_lines: int = 0
    stood: Reading[tuple[str, ...]] = UNREAD
    heard: tuple[XidEvent, ...] = ()
    xid_severities: dict[int, str] = field(default_factory=dict)
    ranks: bool = False
    time_limit_s: float | None = None

    @property
    def code(self) -> int | None:
        """The job's exit code; None when a signal ended it or nobody saw the end."""
        return None if self.ended.status is None else self.ended.status.code

    @property
    def signal(self) -> int | None:
        """What ended it, when that was a signal, also when a shell between says it as 128 + number."""
        status = self.ended.status
        return None if status is None else find_signal(status.code, status.signal)

    @property
    def witnessed(self) -> bool:
        """Whether somebody saw how the job ended."""
        return self.ended.status is not None

    @property
    def ran(self) -> bool:
        """Whether the job was ever started."""
        return self.ended.refusal is None and (self.ended.started_at is not None or self.witnessed)

    @property
    def late(self) -> bool:
        """Whether the box was looked at so late that its counters may tell of others."""
        return self.looked_s is not None and self.looked_s > LATE_S

    @property
    def survived_kills(self) -> bool:
        """Whether the kernel's kills within its group lie so long before the end that they are not the end.

        A sample that had counted them all already is one witness, the times of the kernel's log are another.
        """
        kills = self.own_kills.value
        if kills and self.earlier_kills is not None and self.earlier_kills >= kills:
            return True
        if self.kernel_until_s is None or self.kernel_unread:
            return False
        ours = [event for event in self.find_kernel_events(KernelKind.OOM_KILL) if self.is_ours(event)]
        # `kernel_until_s` is a minute after the end already, because the clocks part; as much again is left free here.
        return bool(ours) and max(event.seconds for event in ours) < self.kernel_until_s - 2 * CLOCKS_PART_S

    @property
    def exception(self) -> str:
        """The last line of the traceback that ended it, from its output or its training's own record."""
        if self.log.value is not None and self.log.value.exception:
            return self.log.value.exception
        stop = self.ended.stop
        lines = [] if stop is None else [line for line in stop.traceback.splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""

    @property
    def kernel_unread(self) -> str:
        """Why the kernel log proves nothing by its silence: it was not read, or not from the launch on."""
        log = self.kernel.value
        if log is None:
            return self.kernel.unread or NOT_LOOKED
        if self.rebooted.value and not self.witnessed:
            return "it began anew when the box was restarted"
        begin = self.kernel_from_s
        if log.lost and begin is not None and log.first_seconds > begin:
            return "its beginning was overwritten or is not shown"
        return ""

    def find_kernel_events(self, *kinds: KernelKind) -> tuple[KernelEvent, ...]:
        """Trusted events of these kinds that fall into the life of the attempt."""
        if self.kernel.value is None:
            return ()
        begin = self.kernel_from_s if self.kernel_from_s is not None else float("-inf")
        end = self.kernel_until_s if self.kernel_until_s is not None else float("inf")
        return tuple(
            event
            for event in self.kernel.value.events
            if event.kind in kinds and event.trusted and begin <= event.seconds <= end
        )

    def is_ours(self, event: KernelEvent) -> bool:
        """Whether an event names a process or the control group of this run."""
        group = event.values.get("task_memcg", "")
        return (event.pid is not None and event.pid in self.pids) or bool(self.group and f"/{self.group}" in group)
