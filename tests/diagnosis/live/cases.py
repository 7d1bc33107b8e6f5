"""Cases made of numbers, for detectors that need a box, cards or ranks that a test cannot have."""

from __future__ import annotations

from typing import Any

from holdfast.diagnosis.evidence import Reading
from holdfast.diagnosis.live.box_change import BoxChange
from holdfast.diagnosis.live.case import Case
from holdfast.diagnosis.live.change import TreeChange, compare_trees
from holdfast.diagnosis.live.detect.progress import Pace, ProgressJudgement
from holdfast.diagnosis.live.detect.table import fold_live, run_detectors
from holdfast.diagnosis.live.gather.run_files import RunFacts
from holdfast.diagnosis.live.gather.snapshot import IoCounters, OpenFile, ProcessFacts, ThreadFacts, TreeSnapshot
from holdfast.diagnosis.live.gather.target import CardNumbers, LiveTarget
from holdfast.model.record import replace
from holdfast.model.verdict import Clue, Verdict

WINDOW_S = 5.0
FUTEX, READ, POLL, SLEEP, RECV = 202, 0, 7, 230, 45

MOVING = ProgressJudgement(Pace.MOVING, (Clue("the heartbeat's step went from 1 to 9", "heartbeat"),), 0.0)
RECENT = ProgressJudgement(Pace.RECENT, (Clue("step 9, 3 s ago", "heartbeat"),), 3.0, 30.0, 1.0)
OVERDUE = ProgressJudgement(Pace.OVERDUE, (Clue("step 9, 900 s ago", "heartbeat"),), 900.0, 30.0, 1.0, step_s=1.0)
SILENT = ProgressJudgement(Pace.SILENT, (Clue("no heartbeat"),), 900.0)
UNKNOWN = ProgressJudgement(Pace.UNKNOWN, (Clue("nothing to judge by"),))


def thread(
    tid: int, state: str = "S", wchan: str | None = None, syscall: int | None = None, **more: Any
) -> ThreadFacts:
    """A thread at the first look, with every counter at zero."""
    values: dict[str, Any] = {
        "tid": tid, "name": "python", "state": state, "cpu_ticks": 0, "major_faults": 0, "start_ticks": 1,
        "wchan": wchan, "syscall": syscall, "arguments": (0, 0, 0, 0, 0, 0) if syscall is not None else (),
        "run_ns": 0, "queue_ns": 0, "voluntary": 0, "forced": 0, **more,
    }  # fmt: skip
    return ThreadFacts(**values)


def later(
    before: ThreadFacts, *, ran: float = 0.0, queued: float = 0.0, wakes: int = 0, faults: int = 0
) -> ThreadFacts:
    """The same thread at the second look. `ran` and `queued` are CPUs."""
    assert before.run_ns is not None
    return replace(
        before,
        run_ns=round(ran * WINDOW_S * 1e9),
        queue_ns=round(queued * WINDOW_S * 1e9),
        voluntary=wakes,
        major_faults=faults,
    )


def process(
    pid: int, *threads: tuple[ThreadFacts, ThreadFacts], ppid: int = 1, **more: Any
) -> tuple[ProcessFacts, ...]:
    """A process at both looks; `threads` are pairs, the main thread first."""
    values: dict[str, Any] = {
        "pid": pid, "ppid": ppid, "start_ticks": 1, "name": "python", "state": threads[0][0].state,
        "command": Reading("python train.py"), "environment": Reading({}), "io": Reading(IoCounters()),
        "files": Reading(()), "own": True, **more,
    }  # fmt: skip
    return tuple(ProcessFacts(threads=tuple(pair[i] for pair in threads), **values) for i in (0, 1))


def pair(before: ThreadFacts, **change: Any) -> tuple[ThreadFacts, ThreadFacts]:
    """A thread at both looks."""
    return before, later(before, **change)


def tree(*processes: tuple[ProcessFacts, ...]) -> TreeChange:
    """The change of a tree of these processes."""
    return compare_trees(
        TreeSnapshot(0.0, tuple(p[0] for p in processes)), TreeSnapshot(WINDOW_S, tuple(p[1] for p in processes))
    )


BOX = BoxChange(
    cpus=16, allowed_cpus=8.0, quota_cpus=None, others_cores=0.5, steal_cores=0.0, load=4.0,
    throttled_share=0.0, throttled_s=0.0, pressure={"memory.full": 0.0, "io.full": 0.0}, group_memory_full=None,
    memory_share=0.3, reclaims=0, frozen=False,
)  # fmt: skip


def card(**values: Any) -> CardNumbers:
    """A card hard at work for us."""
    usual: dict[str, Any] = {
        "name": "GPU-0", "utilisation_pct": 97.0, "memory_utilisation_pct": 60.0, "power_w": 350.0,
        "power_limit_w": 400.0, "sm_clock_mhz": 1700.0, "sm_clock_max_mhz": 1980.0, "ours_present": True,
        **values,
    }  # fmt: skip
    return CardNumbers(**usual)


def case(
    change: TreeChange, progress: ProgressJudgement = MOVING, *, cards: list[CardNumbers] | None = None, **more: Any
) -> Case:
    """A case; `cards` are read twice alike."""
    box = replace(BOX, **more.pop("box", {}))
    target = more.pop("target", LiveTarget("run", (), ours=True, cards=len(cards or ())))
    run = more.pop("run", Reading(RunFacts(now_s=1e6)))
    if cards is not None:
        more["cards"] = Reading((tuple(cards), tuple(cards)))
    return Case(target=target, change=change, box=box, progress=progress, run=run, **{"job_age_s": 5000.0, **more})


def judge(made: Case) -> Verdict:
    """The verdict on a case."""
    return fold_live(made, run_detectors(made))


def working(pid: int = 10, **more: Any) -> tuple[ProcessFacts, ...]:
    """A main thread that computes most of the time."""
    return process(pid, pair(thread(pid, "R"), ran=0.7, wakes=40), **more)


def resting(pid: int, wchan: str, syscall: int, *, state: str = "S", **more: Any) -> tuple[ProcessFacts, ...]:
    """A process whose main thread waits and never wakes."""
    return process(pid, pair(thread(pid, state, wchan, syscall)), **more)


def device(number: int = 0) -> Reading[tuple[OpenFile, ...]]:
    """The open files of a process that uses a card."""
    return Reading((OpenFile(5, f"/dev/nvidia{number}"),))
