"""A patrol: one bounded, read-only look at every run of this account on this box (MON-02).

`tick` looks, judges by `core.patrol`, and answers; it changes nothing, restarts nothing, and signals nobody (MON-15).
What it could not see is UNKNOWN in its answer, never left out. With a memory (`remember`) a failure that was told once
is not told again, while what still is wrong stays wrong.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.patrol import Judgement, Line, judge, summarise
from ..core.patrol_evidence import LIMITS, Ending, Look, Standing, Vitals
from ..host import clock
from ..model.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..core.patrol_evidence import StallLimits
    from .patrolling.memory import Memory

EACH_S = 5.0
"""Seconds that one run, or one directory of runs, may take to answer."""
WHOLE_S = 25.0
"""Seconds for a whole tick, so that it ends within half a minute whatever hangs (MON-14)."""
EXIT_FINE = 0
EXIT_ESCALATE = 1
EXIT_BLIND = StorageError.exit_code
"""The patrol could not look at all."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One run in a tick: what was seen, what it means, and whether that is news since the last tick."""

    run_id: str
    run_dir: str
    attempt: int
    judgement: Judgement
    alive: bool = False
    step: int | None = None
    progress_age_s: float | None = None
    news: bool = True

    @property
    def standing(self) -> Standing:
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


@dataclass(frozen=True, slots=True)
class Tick:
    """The answer of one patrol of `roots`. `blind` names directories of runs that could not be looked at, and why."""

    at: str
    host: str
    roots: tuple[str, ...]
    seen: tuple[Seen, ...]
    blind: tuple[str, ...] = ()
    foreign: int = 0
    took_s: float = 0.0
    notice: str = ""

    @property
    def summary(self) -> str:
        """The status line, also when nothing changed."""
        words = summarise(seen.standing for seen in self.seen)
        return f"{words}; {len(self.blind)} places could not be looked at" if self.blind else words

    @property
    def alive(self) -> int:
        """How many runs have a living process, counted by recorded identity."""
        return sum(seen.alive for seen in self.seen)

    @property
    def escalations(self) -> tuple[Seen, ...]:
        """The runs that need a person."""
        return tuple(seen for seen in self.seen if seen.escalate)

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a person is needed, 74 when nothing could be looked at."""
        if self.blind and not self.seen:
            return EXIT_BLIND
        return EXIT_ESCALATE if self.blind or self.escalations else EXIT_FINE


def tick(
    roots: Iterable[str], *, limits: StallLimits = LIMITS, each_s: float = EACH_S, whole_s: float = WHOLE_S
) -> Tick:
    """Look once at every run of this account under `roots`. Never raises for what it finds; takes at most `whole_s`.

    A root that does not exist has no runs; one that cannot be read is named in `Tick.blind`.
    """
    from ..host.offload import OffloadFailed
    from .patrolling import watching

    began, roots = clock.monotonic_s(), tuple(dict.fromkeys(os.path.abspath(root) for root in roots))
    deadline, blind, runs, foreign = began + whole_s, [], [], 0
    for root in roots:
        try:
            names, others = watching.list_runs(root, max(0.1, min(each_s, deadline - clock.monotonic_s())))
        except (OffloadFailed, OSError) as error:
            if "FileNotFoundError" not in str(error):
                blind.append(f"{root}: {error}")
            continue
        runs += [(root, name) for name in names]
        foreign += others
    seen = []
    for root, run_id, answer in watching.look_at(runs, limits, each_s=each_s, deadline=deadline):
        seen.append(_judge(root, run_id, answer, limits))
    return Tick(
        at=clock.utc_now(),
        host=os.uname().nodename,
        roots=roots,
        seen=tuple(seen),
        blind=tuple(blind),
        foreign=foreign,
        took_s=round(clock.monotonic_s() - began, 3),
    )


def _judge(root: str, run_id: str, answer: Look | str, limits: StallLimits) -> Seen:
    look = Look(Ending(unread=(answer,)), Vitals()) if isinstance(answer, str) else answer
    return Seen(
        run_id=run_id,
        run_dir=f"{root}/{run_id}",
        attempt=look.attempt,
        judgement=judge(run_id, look.ending, look.vitals, limits),
        alive=look.alive,
        step=look.vitals.step,
        progress_age_s=look.vitals.progress_age_s,
    )


def since(tick: Tick, memory: Memory) -> Tick:
    """The tick against what was told before: what is news, and no more alarm about an end that was told already.

    A directory of runs that is not there any more, though runs in it had not ended, was not looked at: its disk may be
    gone.
    """
    return replace(
        tick,
        blind=(*tick.blind, *_find_lost_roots(tick, memory)),
        seen=tuple(_compare(seen, memory.told.get(seen.run_dir)) for seen in tick.seen),
        notice=memory.notice or tick.notice,
    )


def _find_lost_roots(tick: Tick, memory: Memory) -> list[str]:
    live = {Standing.RUNNING.value, Standing.WAITING.value, Standing.STALLED.value}
    lost: dict[str, int] = {}
    for run_dir, told in memory.told.items():
        root = os.path.dirname(run_dir)
        if root in tick.roots and told.split(" ")[1:2] and told.split(" ")[1] in live:
            lost[root] = lost.get(root, 0) + 1
    return [
        f"{root}: it does not exist any more, and {count} of its runs had not ended at the last patrol"
        for root, count in lost.items()
        if not any(seen.run_dir.startswith(f"{root}/") for seen in tick.seen)
        and not any(text.startswith(f"{root}:") for text in tick.blind)
        and not os.path.lexists(root)
    ]


def _compare(seen: Seen, told: str | None) -> Seen:
    if told != seen.told:
        return seen
    judgement = seen.judgement
    if judgement.standing in (Standing.FINISHED, Standing.DEAD) and _is_recorded(judgement.ending):
        # Its end is on record and was told: history. What can still be mended is told until it is.
        judgement = replace(judgement, ending=replace(judgement.ending, escalate=False))
    return replace(seen, judgement=judgement, news=False)


def _is_recorded(ending: Line) -> bool:
    from ..core.patrol import AGING

    return ending.row in AGING
