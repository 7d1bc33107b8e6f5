"""Finds the odd rank of a multi-process job: another stack, another wait, a step behind (DIAG-11). Pure.

The cause of a collective that does not end is nearly always the rank that is *not* in it. With three ranks and more the
odd one differs from most; with two, it is the one that does not wait.
"""

from __future__ import annotations

from collections import Counter

from holdfast.diagnosis.live.case import Case
from holdfast.diagnosis.live.change import ProcessChange
from holdfast.model import wire
from holdfast.model.record import record
from holdfast.model.units import format_bytes
from holdfast.model.verdict import Clue

from .waits import Wait

WAITING = frozenset({Wait.FUTEX, Wait.POLL, Wait.SOCKET, Wait.PIPE})
COLLECTIVE_WORDS = (
    *("all_reduce", "allreduce", "barrier", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "wait_all"),
    *("distributed_c10d", "synchronize", "destroy_process_group", "_store_based_barrier"),
)


@record
class RankFacts:
    """One rank: its process, where its main thread is, and its step where it writes a heartbeat of its own."""

    rank: int
    pid: int
    wait: Wait | None
    still: bool
    busy: bool
    top: str = ""
    in_collective: bool | None = None
    step: int | None = None

    def describe(self) -> str:
        """For people."""
        where = self.top or (f"waits for {self.wait.value}" if self.wait is not None else "moves")
        step = "" if self.step is None else f", step {self.step}"
        return f"rank {self.rank} (pid {self.pid}): {where}{step}"


def read_ranks(case: Case) -> tuple[RankFacts, ...]:
    """The ranks of the job; empty for a job of one."""
    return tuple(_facts(case, rank, process) for rank, process in sorted(case.ranks().items()))


def _facts(case: Case, rank: int, process: ProcessChange) -> RankFacts:
    main = process.deciding
    dumps = case.dumps.get(process.pid, ())
    frames = dumps[-1].main if dumps else ()
    words = " ".join(f"{frame.function} {frame.file}" for frame in frames)
    beats = {} if case.run.value is None else case.run.value.rank_beats.get(str(rank), {})
    step = beats.get("step")
    if rank == 0 and case.run.value is not None:
        step = case.run.value.step
    return RankFacts(
        rank=rank,
        pid=process.pid,
        wait=None if main is None else case.kind_of_wait(main),
        still=main is not None and main.is_idle,
        busy=main is not None and main.is_busy,
        top=dumps[-1].top if dumps else "",
        in_collective=any(word in words for word in COLLECTIVE_WORDS) if frames else None,
        step=wire.as_whole(step),
    )


def find_exchange(case: Case) -> Clue | None:
    """That every rank read and wrote between the looks: a collective that does not end moves nothing."""
    moved = [process.io for process in case.ranks().values()]
    if len(moved) < 2 or any(io is None or not (io.syscr and io.syscw and io.rchar and io.wchar) for io in moved):
        return None
    calls, moved_bytes = (
        min(value) for value in zip(*((io.calls, io.rchar + io.wchar) for io in moved if io), strict=True)
    )
    text = f"each rank read and wrote between the looks ({calls} calls and {format_bytes(moved_bytes)} at least)"
    return Clue(text, "/proc/P/io")


def find_odd(ranks: tuple[RankFacts, ...]) -> tuple[RankFacts, ...]:
    """The ranks that differ from the rest; empty when all look alike or nothing tells them apart."""
    for sign in (_collective, _behind, _waits):
        odd = _minority(ranks, [sign(rank, ranks) for rank in ranks])
        if odd:
            return odd
    return ()


def _collective(rank: RankFacts, _: tuple[RankFacts, ...]) -> str:
    return "unknown" if rank.in_collective is None else "in" if rank.in_collective else "out"


def _behind(rank: RankFacts, ranks: tuple[RankFacts, ...]) -> str:
    if rank.step is None or any(other.step is None for other in ranks):
        return "unknown"
    return "out" if rank.step < max(other.step for other in ranks if other.step is not None) else "in"


def _waits(rank: RankFacts, _: tuple[RankFacts, ...]) -> str:
    return "in" if rank.wait in WAITING and rank.still else "out"


def _minority(ranks: tuple[RankFacts, ...], signs: list[str]) -> tuple[RankFacts, ...]:
    """Those outside, when some are inside and they are not more; of a tie the ones outside are odd."""
    counted = Counter(signs)
    if counted["unknown"] or not counted["in"] or not counted["out"] or counted["out"] > counted["in"]:
        return ()
    return tuple(rank for rank, sign in zip(ranks, signs, strict=True) if sign == "out")
