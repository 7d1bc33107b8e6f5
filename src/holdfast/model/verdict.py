"""What diagnosis says about one run: a class from a closed list, how sure, on what evidence, and one action.

A verdict keeps three kinds of evidence apart: what speaks for it, what speaks against it, and what could not be read.
The third is never folded into the second: an unreadable counter is not a clean one.
"""

from __future__ import annotations

from enum import Enum

from .record import record


class FailureClass(str, Enum):
    """Why a run ended without success. Closed: every end has exactly one of these (FAIL-01)."""

    OUT_OF_MEMORY = "out_of_memory"
    """The box's or the group's RAM ran out and the kernel, or a daemon for it, killed."""
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    SHARED_MEMORY = "shared_memory"
    """Shared memory was full, or a mapping was cut (SIGBUS)."""
    RESOURCE_LIMIT = "resource_limit"
    """A limit of the process: open files, CPU seconds, file size, address space, tasks."""
    DISK_FULL = "disk_full"
    """Bytes, inodes or quota."""
    STORAGE_FAULT = "storage_fault"
    """Input/output error, read-only file system, stale handle."""
    HARDWARE = "hardware"
    """The card: fatal Xid, uncorrectable memory, lost."""
    THROTTLED = "throttled"
    ENVIRONMENT = "environment"
    """Missing package or library, driver and framework that do not fit, a silent fall back to the CPU."""
    COMMUNICATION = "communication"
    """A collective or a peer: time-outs, connections, a rank that was not there."""
    TRANSIENT = "transient"
    """Somebody else's short failure: a tracker at start, a name server, a dropped transfer."""
    SYNC_FAILED = "sync_failed"
    """The training is done, its results did not arrive."""
    BUG = "bug"
    """An exception or exit code of the job's own."""
    NATIVE_CRASH = "native_crash"
    """SIGSEGV, SIGABRT, SIGILL, SIGFPE in native code."""
    DIVERGED = "diverged"
    SUSPICIOUS_FINISH = "suspicious_finish"
    """Exit 0, and too fast or without its last step."""
    RESULT_MISSING = "result_missing"
    EXEC_FAILED = "exec_failed"
    KILLED = "killed"
    """A signal from outside, sender unknown."""
    REBOOT = "reboot"
    CONTAINER_RESTART = "container_restart"
    HANG_UP = "hang_up"
    """The terminal or session went, and with it the job."""
    PREEMPTED = "preempted"
    TIMED_OUT = "timed_out"
    STALLED = "stalled"
    """Ended by holdfast because it made no progress."""
    STOPPED = "stopped"
    LEASE_MISMATCH = "lease_mismatch"
    SUPERVISOR_LOST = "supervisor_lost"
    REFUSED = "refused"
    """It never ran: a check failed or the cards are busy."""
    UNKNOWN = "unknown"


class LiveClass(str, Enum):
    """What a live run is doing. The first group is well, the second hangs, the third is slow or at risk."""

    PROGRESSING = "progressing"
    STARTING = "starting"
    """Before its first steps, or in a phase that may take long (compile, evaluation, saving)."""
    BUFFERED = "buffered"
    """Alive and moving while its log stands still: block-buffered output."""

    STORAGE_WAIT = "storage_wait"
    PAUSED = "paused"
    """Stopped by a signal, a terminal or a debugger."""
    DEADLOCK = "deadlock"
    BUSY_NO_PROGRESS = "busy_no_progress"
    WAITING_FOR_CHILD = "waiting_for_child"
    NETWORK_WAIT = "network_wait"
    COLLECTIVE_HANG = "collective_hang"
    EXIT_HANG = "exit_hang"
    ZOMBIE = "zombie"

    LOADER_BOUND = "loader_bound"
    CPU_BOUND = "cpu_bound"
    """The card idles while the job's own CPU work goes on: slow, not dead."""
    OVERSUBSCRIBED = "oversubscribed"
    NOISY_NEIGHBOUR = "noisy_neighbour"
    THRASHING = "thrashing"
    GPU_THROTTLED = "gpu_throttled"
    GPU_UNDERFED = "gpu_underfed"
    CPU_FALLBACK = "cpu_fallback"
    STRAGGLER = "straggler"
    SLOWER_THAN_BEFORE = "slower_than_before"
    UNCLEAR = "unclear"


HANGS = frozenset(
    {
        LiveClass.STORAGE_WAIT,
        LiveClass.PAUSED,
        LiveClass.DEADLOCK,
        LiveClass.BUSY_NO_PROGRESS,
        LiveClass.WAITING_FOR_CHILD,
        LiveClass.NETWORK_WAIT,
        LiveClass.COLLECTIVE_HANG,
        LiveClass.EXIT_HANG,
        LiveClass.ZOMBIE,
    }
)
"""Classes in which a run does not move any more."""


class Confidence(str, Enum):
    """How sure. CERTAIN: a witness of its own (counter, exit record); LIKELY: words or two signs; else POSSIBLE."""

    POSSIBLE = "possible"
    LIKELY = "likely"
    CERTAIN = "certain"


class RetryPolicy(str, Enum):
    """What may be done without asking a person (FAIL-02): bounded, and with the same configuration."""

    NEVER = "never"
    SAME = "same"
    """Run the identical configuration again."""
    AFTER_SCRATCH = "after_scratch"
    """Prune declared scratch, look again, then as SAME; else ask."""
    ELSEWHERE = "elsewhere"
    """Again, on another card: this one is set aside."""
    WHEN_ALONE = "when_alone"
    """Again only when a co-tenant has left the card."""


NOT_REPEATED = "is not repeated without a person"
"""Behind the name of a class after which no attempt is begun, however many are allowed."""


@record
class Clue:
    """One piece of evidence: what was seen, where it was read, when (ISO UTC; empty: on looking)."""

    text: str
    source: str = ""
    at: str = ""

    @property
    def place(self) -> str:
        """Where it was read, for people: a file of the attempt by its name alone."""
        _, found, within = self.source.rpartition("/attempts/")
        return within.partition("/")[2] if found else self.source


@record
class Verdict:
    """The class, how sure, the evidence, and one action.

    `detector` names the rule that decided (docs/diagnosis.md), `gotchas` are ids of the catalogue (`holdfast explain`),
    `also` other classes for which something speaks, best first, `also_for` the first clue of each that has one,
    `cards` UUIDs of cards that are at fault, `wait_s` how long another attempt has to wait at least, where what failed
    says so.
    """

    kind: FailureClass | LiveClass
    confidence: Confidence
    action: str
    evidence_for: tuple[Clue, ...] = ()
    evidence_against: tuple[Clue, ...] = ()
    unknown: tuple[Clue, ...] = ()
    detector: str = ""
    gotchas: tuple[str, ...] = ()
    retry: RetryPolicy = RetryPolicy.NEVER
    also: tuple[str, ...] = ()
    also_for: tuple[Clue, ...] = ()
    cards: tuple[str, ...] = ()
    wait_s: float = 0.0

    @property
    def cause(self) -> str:
        """The first evidence that says more than how it ended, in one line; empty without, and where it is unknown."""
        if self.kind is FailureClass.UNKNOWN:
            return ""
        return next((" ".join(clue.text.split()) for clue in self.evidence_for if clue.source != "state.json"), "")

    @property
    def others(self) -> tuple[str, ...]:
        """The other classes for people, each with what speaks for it: ``bug: KeyError: 'lr'  [output.log]``."""
        known = dict.fromkeys(self.also, "")
        for clue in self.also_for:
            kind, _, text = clue.text.partition(": ")
            known[kind] = f": {' '.join(text.split())}{f'  [{clue.place}]' if clue.source else ''}"
        return tuple(f"{kind}{words}" for kind, words in known.items())
