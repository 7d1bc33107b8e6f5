"""Agreement through a key-value store of torch.distributed, for ranks on several hosts.

Each rank has a daemon thread that looks at the store a few times per second; the training loop itself only compares two
local numbers per step. A round:

1. A rank with a proposal posts the request of this round (compare_set: one wins).
2. Each thread answers with a promise: the step that its loop has begun. The loop goes on, but not past that step. The
   threads answer while the loops sit in collectives, so nobody waits for a rank that waits for somebody.
3. Whoever is to judge (rank 0 and the one who asked) has all promises and posts the farthest: the verdict.
4. Each loop goes on until that step and acts. Its thread then looks for the next round.

The store is only ever asked without waiting: a blocking ``get`` would hold the client's lock (TCPStore serialises its
operations) and with it the main thread's own use of the store.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, cast

from .agreement import JOIN_TIMEOUT_S, Action, AgreementLost, RankDecision, RankProposal, nobody_published, shorten

POLL_S = 0.25
"""How often a thread looks for a request: one small question per rank."""

BUSY_POLL_S = 0.01
"""How often while a round is under way, and while waiting for a value."""

ANSWER_TIMEOUT_S = 120.0
"""How long a loop waits between two steps for the verdict of a round."""

LEAVE_S = 2.0
TRIES = 3


class Store(Protocol):
    """What is used of torch.distributed.Store. Source: torch/_C/_distributed_c10d.pyi."""

    def set(self, key: str, value: str | bytes, /) -> None:
        """Put a value."""

    def get(self, key: str, /) -> bytes:
        """Read a value; waits for it, so it is only called after `check`."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of the keys are there."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Put a value if the present one is as expected ("" for none); answers what is there afterwards."""


VOID = -1
"""The promise of a rank without further steps, and the verdict on a save that could not be whole."""


class StoreAgreement:
    """Agreement of ranks that share a store. Made on all ranks with the same key."""

    def __init__(
        self,
        store: object,
        *,
        rank: int,
        world: int,
        key: str,
        timeout_s: float = JOIN_TIMEOUT_S,
        poll_s: float = POLL_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """Meet the other ranks and start the thread.

        Raises:
            AgreementLost: somebody did not come in time.
        """
        self.rank, self.world = rank, world
        self._store, self._prefix = _connect(store), f"holdfast/{key}"
        self._poll_s, self._answer_timeout_s = poll_s, answer_timeout_s
        # Guards what both sides use: the loop's `_begun` against the thread's `_limit`, and the round.
        self._changed = threading.Condition()
        self._begun: int | None = None
        self._limit = math.inf
        self._round = 1
        self._promised = False
        self._finished = False
        self._proposal: RankProposal | None = None
        self._decision: RankDecision | None = None
        self._broken = ""
        self._leaving = False
        self._pid = os.getpid()
        self._wake = threading.Event()
        self.token = self._meet(timeout_s)
        self._thread = threading.Thread(target=self._serve, name="holdfast-agreement", daemon=True)
        self._thread.start()
        # A daemon thread inside a call of the store when the interpreter ends can abort the process (CPython before
        # 3.14 ends such a thread by unwinding through the C++ frames); so it is ended before.

        atexit.register(self.close)

    # ------------------------------------------------------------------------------------------------------ each step

    def arrive(self, done: int, proposal: RankProposal | None) -> RankDecision | None:
        """As `Agreement.arrive`: without a decision, one uncontended lock and a comparison."""
        with self._changed:
            self._begun = done + 1
            if done < self._limit and proposal is None:
                return None
        return self._look(done, proposal)

    def _look(self, done: int, proposal: RankProposal | None) -> RankDecision | None:
        with self._changed:
            if proposal is not None and proposal != self._proposal:
                self._proposal = proposal
                self._wake.set()
            self._hold(done)
            decision = self._decision
            if decision is None or done < decision.step:
                return None
            self._decision, self._limit = None, math.inf
            self._round, self._promised = decision.sequence + 1, False
            if self._proposal is not None and self._proposal.action <= decision.action:
                self._proposal = None
        self._wake.set()
        return decision

    def _hold(self, done: int) -> None:
        """Wait, at the promised step, for the verdict. The lock is held on entry and exit."""
        end = time.monotonic() + self._answer_timeout_s
        while self._promised and self._decision is None and done >= self._limit and not self._broken:
            left_s = end - time.monotonic()
            if left_s <= 0:
                self._broken = f"no verdict within {self._answer_timeout_s:.0f} s"
            # In slices: a handler of the main thread runs between them at the latest.
            self._changed.wait(min(left_s, 0.5))
        if self._broken and (self._proposal is not None or done >= self._limit):
            others = "rank" if self.world == 2 else f"{self.world - 1} ranks"
            raise AgreementLost(
                f"rank {self.rank} cannot agree with the other {others}: {self._broken}",
                "look at their output: one of them ended or hangs, or the store's host is gone",
            )

    def finish(self, done: int) -> None:
        """As `Agreement.finish`: the thread goes on answering that this rank has no more steps."""
        with self._changed:
            self._begun, self._finished = done, True
            self._proposal, self._decision, self._limit = None, None, math.inf
            self._changed.notify_all()
        self._wake.set()

    # ------------------------------------------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        """Answer until `close`; an error of the store is tried again a few times, then said at the next need."""
        failures = 0
        while not self._leaving and failures < TRIES:
            try:
                busy = self._serve_once()
                failures = 0
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the training goes on without it
                failures, busy = failures + 1, False
                problem = str(error).partition("\n")[0][:200] or type(error).__name__
            self._wake.wait(BUSY_POLL_S if busy else self._poll_s)
            self._wake.clear()
        if failures:
            with self._changed:
                self._broken = f"the store failed {failures} times: {problem}"
                self._changed.notify_all()

    def _serve_once(self) -> bool:
        """One look at the store; answers whether a round is under way."""
        with self._changed:
            number, proposal, promised, decided = self._round, self._proposal, self._promised, self._decision
            finished = self._finished
        if decided is not None:
            return False
        name = f"{self._prefix}/{number}"
        if not self._has(f"{name}/request"):
            if proposal is None or finished:
                return False
            self._ask(name, proposal)
        if not promised and not self._promise(name, number):
            return False
        if self._is_judge(name):
            self._judge(name)
        if self._has(f"{name}/verdict"):
            self._take(number, json.loads(self._store.get(f"{name}/verdict")))
        return True

    def _ask(self, name: str, proposal: RankProposal) -> None:
        request = {"rank": self.rank, "action": int(proposal.action), "reason": shorten(proposal.reason)}
        self._store.compare_set(f"{name}/request", "", json.dumps(request))

    def _is_judge(self, name: str) -> bool:
        """The one who asked, and the lowest rank that is still there."""
        if json.loads(self._store.get(f"{name}/request"))["rank"] == self.rank:
            return True
        return self.rank == 0 or self._have(f"{self._prefix}/left/{rank}" for rank in range(self.rank))

    def _promise(self, name: str, number: int) -> bool:
        """Answer with the step that the loop has begun, and hold it there; False while it has not arrived at all."""
        with self._changed:
            if self._begun is None or self._round != number:
                return False
            # A rank without further steps promises nothing and is not held.
            step = VOID if self._finished else self._begun
            self._promised = True
            if not self._finished:
                self._limit = step
        try:
            self._store.set(f"{name}/promise/{self.rank}", str(step))
        except Exception:
            with self._changed:
                self._promised = False
            raise
        return True

    def _judge(self, name: str) -> None:
        """Post the verdict when everybody has promised or left; two judges come to the same."""
        promises = {rank: f"{name}/promise/{rank}" for rank in range(self.world)}
        if self._has(f"{name}/verdict"):
            return
        if not self._have(promises.values()):
            if not self._has(f"{self._prefix}/left"):
                return
            missing = [rank for rank, key in promises.items() if not self._has(key)]
            if not self._have(f"{self._prefix}/left/{rank}" for rank in missing):
                return
            for rank in missing:
                del promises[rank]
        begun = [int(self._store.get(key)) for key in promises.values()]
        request = json.loads(self._store.get(f"{name}/request"))
        # No save is whole without the ranks that have finished or left.
        whole = len(begun) == self.world and min(begun) != VOID
        step = max(begun) if whole or request["action"] != Action.SAVE else VOID
        verdict = {"step": step, "action": request["action"], "reason": request["reason"]}
        self._store.compare_set(f"{name}/verdict", "", json.dumps(verdict))

    def _take(self, number: int, verdict: dict[str, int | str]) -> None:
        with self._changed:
            if self._finished:
                # Nothing to act on; ready for the next round of those who go on.
                self._round, self._promised = number + 1, False
                return
            step = int(verdict["step"])
            if step == VOID:
                self._round, self._promised, self._limit = number + 1, False, math.inf
                if self._proposal is not None and self._proposal.action is Action.SAVE:
                    self._proposal = None
                self._changed.notify_all()
                return
            self._decision = RankDecision(number, step, Action(int(verdict["action"])), str(verdict["reason"]))
            self._limit = step
            self._changed.notify_all()

    def _has(self, key: str) -> bool:
        return self._store.check([key])

    def _have(self, keys: Iterable[str]) -> bool:
        return self._store.check(list(keys))

    # ----------------------------------------------------------------------------------------------------- come and go

    def _meet(self, timeout_s: float) -> str:
        """Wait for all ranks; the token comes from rank 0."""
        names = [f"{self._prefix}/token", *(f"{self._prefix}/here/{rank}" for rank in range(self.world))]
        with _reaching_the_others(self.rank):
            if self.rank == 0:
                self._store.set(names[0], os.urandom(4).hex())
            self._store.set(names[1 + self.rank], "1")
            if self._poll(lambda: self._have(names), timeout_s):
                return self._store.get(names[0]).decode()
            missing = [name.rpartition("/")[2] for name in names[1:] if not self._has(name)]
        noun = "rank" if len(missing) == 1 else "ranks"
        raise AgreementLost(
            f"rank {self.rank} waited {timeout_s:.0f} s in vain for {len(missing)} {noun}: {', '.join(missing[:8])}",
            "look at their output; all ranks must make the same calls in the same order",
        )

    @staticmethod
    def _poll(condition: Callable[[], bool], timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= end:
                return False
            time.sleep(BUSY_POLL_S)
        return True

    def publish(self, name: str, value: bytes) -> None:
        """As `Agreement.publish`.

        Raises:
            AgreementLost: the store failed.
        """
        with _reaching_the_others(self.rank):
            self._store.set(f"{self._prefix}/value/{name}", value)

    def wait_for(self, name: str, timeout_s: float) -> bytes:
        """As `Agreement.wait_for`."""
        key = f"{self._prefix}/value/{name}"
        with _reaching_the_others(self.rank):
            if self._poll(lambda: self._has(key), timeout_s):
                return self._store.get(key)
        raise nobody_published(self.rank, name, timeout_s)

    def close(self) -> None:
        """As `Agreement.close`: this rank answers nothing any more; a thread stuck in the store is left to itself."""
        # Not in a forked child that leaves through sys.exit: thread and connection are its parent's.
        if self._leaving or os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        self._leaving = True
        self._wake.set()
        self._thread.join(LEAVE_S)
        # The store's host may be gone already: then there is nobody to tell.
        with suppress(Exception):
            self._store.set(f"{self._prefix}/left/{self.rank}", "1")
            self._store.set(f"{self._prefix}/left", "1")


def _connect(store: object) -> Store:
    """A connection of our own where the store can give one: what the script does with its own then blocks nothing."""
    clone = getattr(store, "clone", None)
    if clone is not None:
        with suppress(RuntimeError, NotImplementedError):
            return cast("Store", clone())
    return cast("Store", store)


@contextmanager
def _reaching_the_others(rank: int) -> Iterator[None]:
    """What a store raises (torch: RuntimeError and what derives from it), in words about what it means here."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if isinstance(error, AgreementLost):
            raise
        what = str(error).partition("\n")[0][:200] or type(error).__name__
        raise AgreementLost(
            f"rank {rank} cannot reach the other ranks: the store failed: {what}",
            "look whether the host of the store (MASTER_ADDR) is alive and reachable",
        ) from error
