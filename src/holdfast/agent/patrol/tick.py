"""The answer of one patrol: each run that was looked at, what it means, and the exit code that follows."""

from __future__ import annotations

from holdfast.core.patrol.evidence import RunStatus
from holdfast.core.patrol.patrol import RunJudgement, summarise_runs
from holdfast.model.errors import StorageError
from holdfast.model.record import record

EXIT_FINE = 0
EXIT_ESCALATE = 1
EXIT_BLIND = StorageError.exit_code
"""The patrol could not look at all."""


@record
class ObservedRun:
    """One run in a tick: what was seen, what it means, and whether that is news since the last tick.

    `damaged` is as in `RunEvidence`.
    """

    run_id: str
    run_dir: str
    attempt: int
    judgement: RunJudgement
    alive: bool = False
    step: int | None = None
    progress_age_s: float | None = None
    news: bool = True
    damaged: str = ""

    @property
    def standing(self) -> RunStatus:
        """Where it stands."""
        return self.judgement.standing

    @property
    def escalate(self) -> bool:
        """Whether a person is needed."""
        return self.judgement.escalate

    @property
    def told(self) -> str:
        """What a memory keeps of it: attempt and rows, so that a change of either is news."""
        return f"{self.attempt} {self.standing.value} {' '.join(self.judgement.rows)}"


@record
class PatrolResult:
    """The answer of one patrol of `roots`. `blind` names directories of runs that could not be looked at, and why."""

    at: str
    host: str
    roots: tuple[str, ...]
    seen: tuple[ObservedRun, ...]
    blind: tuple[str, ...] = ()
    foreign: int = 0
    took_s: float = 0.0
    notice: str = ""

    @property
    def summary(self) -> str:
        """The status line, also when nothing changed."""
        words = summarise_runs(seen.standing for seen in self.seen)
        what = "1 directory" if len(self.blind) == 1 else f"{len(self.blind)} directories"
        return f"{words}; {what} of runs could not be looked at" if self.blind else words

    @property
    def alive(self) -> int:
        """How many runs have a living process, counted by recorded identity."""
        return sum(seen.alive for seen in self.seen)

    @property
    def escalations(self) -> tuple[ObservedRun, ...]:
        """The runs that need a person."""
        return tuple(seen for seen in self.seen if seen.escalate)

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a person is needed, 74 when nothing could be looked at."""
        if self.blind and not self.seen:
            return EXIT_BLIND
        return EXIT_ESCALATE if self.blind or self.escalations else EXIT_FINE
