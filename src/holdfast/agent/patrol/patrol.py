"""A patrol: one bounded, read-only look at every run of this account on this box (MON-02).

`run_patrol` looks, judges by `core.patrol.patrol`, and answers; it changes nothing, restarts nothing, and signals
nobody (MON-15). What it could not see is UNKNOWN in its answer, never left out. With a memory (`remember`) a failure
that was told once is not told again, while what still is wrong stays wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.agent.view.scheduled import ask_by_name
from holdfast.core.patrol.evidence import LIMITS, AlarmEvidence, CompletionEvidence, RunEvidence, RunStatus, StallLimits
from holdfast.core.patrol.patrol import AGING, RECENT_S, PatrolRemark, judge_run
from holdfast.host import clock
from holdfast.host.process.offload import OffloadFailed
from holdfast.model.record import replace

from . import watch
from .tick import ObservedRun, PatrolResult

if TYPE_CHECKING:
    from .memory import PatrolMemory

EACH_S = 5.0
"""Seconds that one run, or one directory of runs, may take to answer."""
WHOLE_S = 25.0
"""Seconds for a whole tick, so that it ends within half a minute whatever hangs (MON-14)."""


SCHEDULERS_S = 13.0
"""Seconds that asking a scheduler may take."""
_Look = tuple[str, str, RunEvidence | str]


def run_patrol(
    roots: Iterable[str], *, limits: StallLimits = LIMITS, each_s: float = EACH_S, whole_s: float = WHOLE_S
) -> PatrolResult:
    """Look once at every run of this account under `roots`. Never raises for what it finds; takes at most `whole_s`.

    A root that does not exist has no runs; one that cannot be read is named in `PatrolResult.blind`.
    """
    began, roots = clock.monotonic_s(), tuple(dict.fromkeys(os.path.abspath(root) for root in roots))
    deadline, blind, runs, foreign = began + whole_s, [], [], 0
    for root in roots:
        try:
            names, others = watch.list_runs(root, max(0.1, min(each_s, deadline - clock.monotonic_s())))
        except (OffloadFailed, OSError) as error:
            if "FileNotFoundError" not in str(error):
                blind.append(f"{root}: {error}")
            continue
        runs += [(root, name) for name in names]
        foreign += others
    looks = list(watch.look_at_many(runs, limits, each_s=each_s, deadline=deadline))
    seen = [_judge(root, run_id, answer, limits) for root, run_id, answer in _hear_schedulers(looks, deadline)]
    return PatrolResult(
        at=clock.utc_now(),
        host=os.uname().nodename,
        roots=roots,
        seen=tuple(seen),
        blind=tuple(blind),
        foreign=foreign,
        took_s=round(clock.monotonic_s() - began, 3),
    )


def _hear_schedulers(looks: list[_Look], deadline: float) -> list[_Look]:
    """The looks with what schedulers say of the runs without an end, and of those that may wait again.

    One question for all, where there is time.
    """
    open_runs = {
        f"{root}/{run_id}": answer.ending.scheduler
        for root, run_id, answer in looks
        if not isinstance(answer, str) and answer.ending.scheduler and _may_be_queued(answer.ending)
    }
    if not open_runs or deadline - clock.monotonic_s() < SCHEDULERS_S:
        return looks
    words, _ = ask_by_name(open_runs)
    return [
        (root, run_id, answer)
        if isinstance(answer, str) or f"{root}/{run_id}" not in words
        else (root, run_id, replace(answer, ending=replace(answer.ending, word=words[f"{root}/{run_id}"])))
        for root, run_id, answer in looks
    ]


def _may_be_queued(ending: CompletionEvidence) -> bool:
    if not ending.outcome:
        return True
    return ending.outcome != "succeeded" and ending.ended_age_s is not None and ending.ended_age_s < RECENT_S


def _judge(root: str, run_id: str, answer: RunEvidence | str, limits: StallLimits) -> ObservedRun:
    look = RunEvidence(CompletionEvidence(unread=(answer,)), AlarmEvidence()) if isinstance(answer, str) else answer
    return ObservedRun(
        run_id=run_id,
        run_dir=f"{root}/{run_id}",
        attempt=look.attempt,
        judgement=judge_run(run_id, look.ending, look.vitals, limits),
        alive=look.alive,
        step=look.vitals.step,
        progress_age_s=look.vitals.progress_age_s,
        damaged=look.damaged,
    )


def compare_with_memory(tick: PatrolResult, memory: PatrolMemory) -> PatrolResult:
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


def _find_lost_roots(tick: PatrolResult, memory: PatrolMemory) -> list[str]:
    live = {RunStatus.RUNNING.value, RunStatus.WAITING.value, RunStatus.STALLED.value}
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


def _compare(seen: ObservedRun, told: str | None) -> ObservedRun:
    if told != seen.told:
        return seen
    judgement = seen.judgement
    if judgement.standing in (RunStatus.FINISHED, RunStatus.DEAD) and _is_recorded(judgement.ending):
        # Its end is on record and was told: history. What can still be mended is told until it is.
        judgement = replace(judgement, ending=replace(judgement.ending, escalate=False))
    return replace(seen, judgement=judgement, news=False)


def _is_recorded(ending: PatrolRemark) -> bool:
    return ending.row in AGING
