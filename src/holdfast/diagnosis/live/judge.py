"""Look twice at a live tree and say what it does (DIAG-01, DIAG-03).

The order is from cheap to invasive, and it stops when the answer is clear: two looks at /proc; the private signal of
the training library, only to processes of a run of ours and only when the looks did not show that all is well; tools
that attach, only with `deep`. What may block (the run's files, dumps, cards) is asked in children with deadlines.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

from holdfast.diagnosis.evidence import NOT_LOOKED, Reading
from holdfast.model.record import record, replace
from holdfast.model.verdict import Confidence, LiveClass, Verdict

from .box_change import compare_boxes
from .case import Case
from .change import TreeChange, compare_trees
from .detect.progress import judge_progress
from .detect.table import fold_live, run_detectors
from .gather.box import BoxCounters, look_at_box
from .gather.descriptors import WaitedOn, find_waited_on, slow_mounts
from .gather.flight import read_findings
from .gather.look import take_snapshot
from .gather.run_files import RunFacts, read_run_files
from .gather.snapshot import TICKS_PER_S, TreeSnapshot
from .gather.stacks import CollectedStacks, collect_stacks
from .gather.target import CardNumbers, LiveTarget
from .gather.tools import ToolRun, describe_missing, run_tools
from .report import NOT_ASKED, LiveReport, build_sections

INTERVAL_S = 5.0
"""The least time between two looks of which a verdict may be made."""
MOST_WAITED = 256
MOST_EXAMINED = 3

ReadCards = Callable[[], Reading[tuple[CardNumbers, ...]]]

_STACKS_DO_NOT_HELP = frozenset({LiveClass.PAUSED, LiveClass.ZOMBIE, LiveClass.STORAGE_WAIT})
_WELL = frozenset(
    {LiveClass.PROGRESSING, LiveClass.STARTING, LiveClass.BUFFERED, LiveClass.LOADER_BOUND, LiveClass.CPU_BOUND}
    | {LiveClass.OVERSUBSCRIBED, LiveClass.NOISY_NEIGHBOUR, LiveClass.THRASHING, LiveClass.GPU_THROTTLED}
    | {LiveClass.GPU_UNDERFED, LiveClass.CPU_FALLBACK, LiveClass.STRAGGLER, LiveClass.SLOWER_THAN_BEFORE}
)


def diagnose_live(
    target: LiveTarget, *, deep: bool = False, interval_s: float = INTERVAL_S, read_cards: ReadCards | None = None
) -> LiveReport:
    """Look at `target` twice, `interval_s` apart, and judge.

    `read_cards` reads the leased cards, bounded by itself; it is called twice. Nothing is ever written, and nothing is
    signalled but by the rules of `stacks`.
    """
    begun, spent = time.monotonic(), _cpu_s()
    before = look_once(target, details=False)
    readings = [read_cards()] if read_cards is not None else []
    time.sleep(max(0.0, begun + interval_s - time.monotonic()))
    if read_cards is not None:
        readings.append(read_cards())
    after = look_once(target)
    case = replace(build_case(target, before, after, _join_cards(readings)), deep=deep)
    verdict = fold_live(case, run_detectors(case))
    case, verdict, stacks = _ask_further(case, verdict, after.tree)
    tools = _attach(case) if deep else ()
    return LiveReport(
        name=target.name,
        verdict=verdict,
        sections=build_sections(
            case,
            after.tree,
            stacks=stacks,
            kernel=_read_kernel_stacks(case),
            tools=tools,
            missing=describe_missing(),
        ),
        processes=len(after.tree.processes),
        threads=after.tree.threads,
        window_s=case.change.window_s,
        wall_s=time.monotonic() - begun,
        cpu_s=_cpu_s() - spent,
        deep=deep,
    )


def _cpu_s() -> float:
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@record
class LiveSnapshot:
    """What one look saw: the processes, the box, the run's files."""

    tree: TreeSnapshot
    box: BoxCounters
    run: Reading[RunFacts]


def look_once(target: LiveTarget, *, details: bool = True) -> LiveSnapshot:
    """Look once. Without `details` command lines, environments and open files are left out."""
    pids = target.list_pids()
    run = read_run_files(target.files)
    tree = take_snapshot(pids, details=details)
    return LiveSnapshot(tree, look_at_box(target.group_dirs, pids[0] if pids else None), run)


def build_case(
    target: LiveTarget,
    before: LiveSnapshot,
    after: LiveSnapshot,
    cards: Reading[tuple[tuple[CardNumbers, ...], ...]] | None = None,
) -> Case:
    """What two looks came to, for the detectors; `after` has details."""
    change = compare_trees(before.tree, after.tree)
    age = _age_of(after.tree)
    waited, suspects = _gather_descriptors(change)
    return Case(
        target=target,
        change=change,
        box=compare_boxes(before.box, after.box, change),
        progress=judge_progress(
            before.run, after.run, job_age_s=age, patience_s=target.patience_s, startup_s=target.startup_s
        ),
        run=after.run,
        cards=Reading(unread=NOT_LOOKED) if cards is None else cards,
        waited=waited,
        suspects=suspects,
        job_age_s=age,
    )


def _age_of(snapshot: TreeSnapshot) -> float | None:
    """Seconds since the oldest process started, by the clock that start times are counted in."""
    oldest = min((process.start_ticks for process in snapshot.processes), default=None)
    if oldest is None:
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - oldest / TICKS_PER_S)


def _join_cards(readings: list[Reading[tuple[CardNumbers, ...]]]) -> Reading[tuple[tuple[CardNumbers, ...], ...]]:
    """All readings, or why one of them is missing."""
    if not readings:
        return Reading(unread=NOT_LOOKED)
    why = next((reading.unread for reading in readings if reading.value is None), "")
    return Reading(unread=why) if why else Reading(tuple(r.value for r in readings if r.value is not None))


def _gather_descriptors(change: TreeChange) -> tuple[dict[int, WaitedOn], dict[int, tuple[WaitedOn, ...]]]:
    """What threads wait on that did not wake; and, for processes that wait on storage, their slow mounts."""
    waited: dict[int, WaitedOn] = {}
    suspects: dict[int, tuple[WaitedOn, ...]] = {}
    tree = tuple(process.after for process in change.living)
    for process in change.living:
        for thread in process.threads:
            deciding = thread is process.deciding
            if len(waited) >= MOST_WAITED or not (deciding or thread.after.state == "D"):
                continue
            on = find_waited_on(process.after, thread.after, tree)
            if on is not None:
                waited[thread.after.tid] = on
        if any(thread.after.wait.name in ("STORAGE", "FUSE", "NFS") for thread in process.threads):
            suspects[process.pid] = slow_mounts(process.after)
    return waited, suspects


def _ask_further(case: Case, verdict: Verdict, after: TreeSnapshot) -> tuple[Case, Verdict, Reading[CollectedStacks]]:
    """Stacks by the private signal and the Flight Recorder's dumps, where the looks did not settle it."""
    run = case.run.value
    # That it gets on is possible only where nothing moved: the stacks say where it stands.
    sure = verdict.confidence is not Confidence.POSSIBLE or (case.alive and verdict.kind is not LiveClass.PROGRESSING)
    settled = verdict.kind in _WELL and sure and not case.overdue
    if settled or verdict.kind in _STACKS_DO_NOT_HELP or run is None:
        return case, verdict, Reading(unread=f"{NOT_ASKED}: the two looks were enough")
    if case.target.ours:
        stacks = collect_stacks(after.processes, run.stack_records)
    else:
        stacks = Reading(unread=f"{NOT_ASKED}: the process is not one of a run of ours, so it is never signalled")
    if stacks.value is not None:
        case = replace(case, dumps=stacks.value.dumps)
    if case.ranks() or run.flight:
        case = replace(case, flight=read_findings(run.flight))
    return case, fold_live(case, run_detectors(case)), stacks


def _attach(case: Case) -> tuple[ToolRun, ...]:
    runs: list[ToolRun] = []
    for process in case.focus()[:MOST_EXAMINED]:
        if process.after.own:
            runs += run_tools(process.after, ours=True)
    return tuple(runs)


def _read_kernel_stacks(case: Case) -> dict[int, Reading[str]]:
    """Where in the kernel the deciding threads are. Source: proc_pid_stack(5); for root only."""
    found: dict[int, Reading[str]] = {}
    for process in case.focus()[:8]:
        deciding = process.deciding
        if deciding is None:
            continue
        tid = deciding.after.tid
        try:
            with open(f"/proc/{process.pid}/task/{tid}/stack", encoding="ascii", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError as error:
            found[tid] = Reading(unread=f"{error.strerror} (the kernel shows it to root only)")
            continue
        names = [line.split("] ", 1)[-1].partition("+")[0] for line in lines if "] " in line]
        found[tid] = Reading(" < ".join(names[:8]))
    return found
