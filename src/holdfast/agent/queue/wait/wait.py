"""Waiting for jobs: until every one is proven done, or nothing goes on by itself any more.

What is waited for is asked of the queue again after each event (its directory changed, its worker ended); nothing is
counted from events. A wait ends as soon as no open job of the roster can go on without a person: a pause, a held job,
a failed predecessor or a worker that cannot be had must not look like work that takes long.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import look_for_worker
from holdfast.agent.view.changes import ChangeWatch
from holdfast.host.clock import monotonic_s
from holdfast.model.queue import JobState
from holdfast.model.record import field, record

from .roster import WaitState, look

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.queue.presence import WorkerFacts
    from holdfast.store.queue.queue import Queue

    from .roster import AwaitedJobs

LOOK_AGAIN_S = 30.0
"""The longest time without a look, for what no event tells: a clock that was set, a claim of another box."""
GATHER_S = 0.05
"""How long changes are gathered into one look: a busy worker commits hundreds of times a second."""
COME_UP_S = 10.0
"""How long a worker may take from its start to the first thing that it commits."""
MOST_STARTS = 3
"""How many workers are started in vain, one after the other, before that is the answer."""


@record(frozen=False)
class _WorkerGuard:
    """Keeps a worker at work while something is open, and notices when starting one is in vain."""

    queue: Queue
    started: int = 0
    problems: list[str] = field(default_factory=list)
    started_at: float = 0.0
    before: dict[JobState, int] = field(default_factory=dict)

    def tend(self, seen: WaitState) -> tuple[WorkerFacts | None, str]:
        """The worker, and why there is none to be had (else empty)."""
        if seen.counts != self.before:
            self.started, self.before = 0, seen.counts
        facts, problem = look_for_worker(self.queue)
        if facts is not None or problem:
            return facts, problem
        if self.started and monotonic_s() - self.started_at < COME_UP_S / MOST_STARTS:
            return None, ""
        if self.started >= MOST_STARTS:
            if self.problems:
                return None, self.problems[-1]
            log = f"{self.queue.directory}/worker.log"
            return None, f"no worker stays: {self.started} were started and did nothing; see {log}"
        self.started += 1
        self.started_at = monotonic_s()
        self.problems.clear()
        start_worker(self.queue, self.problems)
        return None, ""


def wait_for(
    queue: Queue, roster: AwaitedJobs, *, deadline: float | None, tell: Callable[[WaitState], None]
) -> tuple[WaitState, bool]:
    """Sleep until nothing of the roster is open or can go on; the last look, and whether the time was up first."""
    worker, most = _WorkerGuard(queue), 0
    with ChangeWatch(queue.directory) as changes:
        while True:
            seen = look(queue, roster)
            most = max(most, seen.total)
            seen = WaitState(seen.counts, seen.stuck, most - seen.total)
            tell(seen)
            if not seen.open or seen.stuck:
                return seen, False
            facts, problem = worker.tend(seen)
            if problem:
                return WaitState(seen.counts, problem, seen.gone), False
            limit_s = LOOK_AGAIN_S if facts is not None else COME_UP_S / MOST_STARTS
            if deadline is not None:
                limit_s = min(limit_s, deadline - monotonic_s())
                if limit_s <= 0:
                    return seen, True
            if facts is not None:
                changes.watch(facts.process)
            changes.wait(limit_s)
            time.sleep(GATHER_S)


def wait_idle(queue: Queue) -> None:
    """Sleep until no job is at work."""
    worker = _WorkerGuard(queue)
    with ChangeWatch(queue.directory) as changes:
        while active := queue.active():
            facts, problem = worker.tend(WaitState({JobState.RUNNING: len(active)}))
            if problem:
                return
            if facts is not None:
                changes.watch(facts.process)
            changes.wait(LOOK_AGAIN_S if facts is not None else COME_UP_S / MOST_STARTS)
            time.sleep(GATHER_S)
