"""The table of live detectors, in the order in which they decide, and the fold to one verdict. Pure.

The order is the ladder: what nothing but the kernel can cause first (storage, stopped, dead), then the run's own word
(it gets on; it is starting), then hangs from the surest to the vaguest, then reasons for being slow. The first YES
decides; the other YES answers are listed. Without a YES a run is well only if its own progress proves it; evidence
that could not be read never makes it well.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.diagnosis.fold import list_others
from holdfast.diagnosis.live.case import Case
from holdfast.diagnosis.live.remedies import BUSY, action_for
from holdfast.model import wire
from holdfast.model.record import record, replace
from holdfast.model.units import format_count
from holdfast.model.verdict import HANGS, Clue, Confidence, LiveClass, Verdict

from . import blocked, hangs, slow
from .progress import Pace
from .saturation import find_saturation
from .waits import Wait


@record
class Detector:
    """One row: ids as in docs/diagnosis-live.md, the class it speaks for, and the function."""

    ids: str
    kind: LiveClass
    detect: Callable[[Case], Detection]


OF_IDLE_CARDS = frozenset(
    {
        *(LiveClass.DEADLOCK, LiveClass.BUSY_NO_PROGRESS, LiveClass.NETWORK_WAIT, LiveClass.WAITING_FOR_CHILD),
        *(LiveClass.COLLECTIVE_HANG, LiveClass.EXIT_HANG, LiveClass.LOADER_BOUND, LiveClass.CPU_BOUND),
    }
)
"""Classes that a card at work speaks against."""
MOST_STILL = 3
HANG_LADDER = (
    Detector("H8z", LiveClass.ZOMBIE, hangs.detect_zombie),
    Detector("H8", LiveClass.PAUSED, hangs.detect_paused),
    Detector("H1 H2 H3", LiveClass.STORAGE_WAIT, hangs.detect_storage),
    Detector("H11", LiveClass.EXIT_HANG, hangs.detect_exit),
    Detector("H7", LiveClass.COLLECTIVE_HANG, hangs.detect_collective),
    Detector("H4", LiveClass.DEADLOCK, hangs.detect_deadlock),
    Detector("H5", LiveClass.BUSY_NO_PROGRESS, hangs.detect_busy),
    Detector("H6n", LiveClass.NETWORK_WAIT, blocked.detect_network),
    Detector("H6", LiveClass.WAITING_FOR_CHILD, blocked.detect_waiting),
)
SLOW_LADDER = (
    Detector("G7", LiveClass.GPU_THROTTLED, slow.detect_throttled),
    Detector("S4", LiveClass.THRASHING, slow.detect_thrashing),
    Detector("S2", LiveClass.OVERSUBSCRIBED, slow.detect_oversubscribed),
    Detector("S1", LiveClass.LOADER_BOUND, slow.detect_loader),
    Detector("S3", LiveClass.NOISY_NEIGHBOUR, slow.detect_neighbour),
    Detector("G12", LiveClass.CPU_FALLBACK, slow.detect_cpu_fallback),
    Detector("S1c", LiveClass.CPU_BOUND, slow.detect_cpu_bound),
    Detector("S5", LiveClass.STRAGGLER, slow.detect_straggler),
    Detector("S6", LiveClass.SLOWER_THAN_BEFORE, slow.detect_slower),
    Detector("G13", LiveClass.GPU_UNDERFED, slow.detect_underfed),
    Detector("H9", LiveClass.BUFFERED, slow.detect_buffered),
)


def run_detectors(case: Case) -> tuple[Detection, ...]:
    """Every detector's answer, in the order of the ladders."""
    found = tuple(row.detect(case) for row in (*HANG_LADDER, *SLOW_LADDER))
    if case.progress.pace is not Pace.LATE:
        return found
    # What would be a hang if the step stayed away for longer is said, but does not decide.
    later = replace(case, progress=replace(case.progress, pace=Pace.OVERDUE))
    hints = [_hint(answer, row.detect(later)) for answer, row in zip(found, HANG_LADDER, strict=False)]
    return (*hints, *found[len(hints) :])


def _hint(now: Detection, later: Detection) -> Detection:
    if now.answer is Answer.YES or later.answer is not Answer.YES:
        return now
    text = "the step is late, and too little so to tell a hang from a pause"
    return Detection(
        later.detector, later.kind, Answer.UNKNOWN, evidence_for=later.evidence_for, unknown=(Clue(text, "heartbeat"),)
    )


def fold_live(case: Case, detections: tuple[Detection, ...]) -> Verdict:
    """One verdict from all answers."""
    yes = [found for found in detections if found.answer is Answer.YES]
    first = next(iter(yes), None) or _without_yes(case, detections)
    assert isinstance(first.kind, LiveClass)
    context = () if first.kind is LiveClass.PROGRESSING and first.detector.startswith("P") else find_saturation(case)
    unsure = [found for found in detections if found.answer is Answer.UNKNOWN and found.evidence_for]
    also, also_for = list_others((*yes, *unsure), first)
    stands = _find_place(case)
    told = any(clue.source == "stacks" for clue in first.evidence_for)
    confidence = _weigh(case, first)
    return Verdict(
        kind=first.kind,
        confidence=confidence,
        action=action_for(first.kind, {**_advise(case, stands, unsure), **first.facts}, confidence),
        evidence_for=(*(() if told else stands), *first.evidence_for, *_find_stall(case), *context),
        evidence_against=first.evidence_against,
        unknown=_unread(case, first, detections),
        detector=first.detector,
        gotchas=first.gotchas,
        also=also,
        also_for=also_for,
    )


def _find_place(case: Case) -> tuple[Clue, ...]:
    """Where it stood still in Python, of the first process whose stacks tell; which, where there are several."""
    focus = case.focus()
    for process in focus:
        for clue in hangs.find_same_place(case, process.pid):
            return (clue if len(focus) == 1 else replace(clue, text=f"pid {process.pid}: {clue.text}"),)
    return ()


def _find_stall(case: Case) -> tuple[Clue, ...]:
    """That its supervisor called it stalled, and nothing has moved since."""
    told = "" if case.run.value is None or case.alive else case.run.value.stalled
    return (Clue(f"its supervisor has told that it stands still: {told}", wire.EVENTS),) if told else ()


def _advise(case: Case, stands: tuple[Clue, ...], unsure: list[Detection]) -> dict[str, str]:
    """What an action names of the target, and what to do next: never what was just done."""
    name, ours = case.target.name, case.target.ours
    deep = f"holdfast diagnose --deep {name if ours else '--' + name}"
    again = f"holdfast diagnose {name if ours else '--' + name}"
    facts = {
        "run": name,
        "again": again,
        "deep": deep,
        "stacks": f"a second look ({deep})" if case.deep else f"`{deep}`",
    }
    end = f"stop it (holdfast stop {name})" if ours else "end it"
    if not case.change.processes:
        return facts
    if _find_stall(case) and (stands or case.deep):
        where = stands[0].text if stands else "keep the stacks below"
        facts["next"] = f"{where}: unless you know that it takes so long there, {end}"
    elif _find_stall(case) and not any(found.kind is LiveClass.BUSY_NO_PROGRESS for found in unsure):
        facts["next"] = f"look where it stands with `{deep}`, and unless you know that it takes so long there, {end}"
    elif stands:
        facts["next"] = (
            f"{stands[0].text}: if it may stay there for long, let it; if it may not, or is still there with no new "
            f"output some minutes later, {end}"
        )
    elif any(found.kind is LiveClass.BUSY_NO_PROGRESS for found in unsure):
        facts["next"] = BUSY
    elif case.deep:
        facts["next"] = (
            "keep the stacks below and look once more in some minutes: if it is in the same place and wrote nothing, "
            f"it stands still there, so {end}"
        )
    return facts


def _weigh(case: Case, first: Detection) -> Confidence:
    """One step less sure where a card at work would speak against it and the cards could not be read."""
    if first.kind not in OF_IDLE_CARDS or not case.target.cards or case.cards.known:
        return first.confidence
    return Confidence.LIKELY if first.confidence is Confidence.CERTAIN else Confidence.POSSIBLE


def _unread(case: Case, first: Detection, detections: tuple[Detection, ...]) -> tuple[Clue, ...]:
    clues = list(first.unknown)
    clues += [clue for found in detections if found.answer is Answer.UNKNOWN for clue in found.unknown]
    if case.target.cards and not case.cards.known:
        clues.append(Clue(f"the cards: {case.cards.unread}", "NVML"))
    if case.progress.unread:
        clues.append(Clue(case.progress.unread, "the run's files"))
    clues += [Clue(f"{path} is not readable", path) for path in case.box.unread]
    return tuple(dict.fromkeys(clues))


def _without_yes(case: Case, detections: tuple[Detection, ...]) -> Detection:
    progress = case.progress
    clues = progress.clues
    if not case.change.processes:
        text = "no process of it was there at both looks: it has ended, or was replaced"
        return Detection("-", LiveClass.UNCLEAR, Answer.YES, Confidence.POSSIBLE, (Clue(text),))
    if progress.pace is Pace.MOVING:
        certain = any(clue.source == "heartbeat" for clue in clues)
        sure = Confidence.CERTAIN if certain else Confidence.LIKELY
        return Detection("P1", LiveClass.PROGRESSING, Answer.YES, sure, clues)
    if progress.pace is Pace.RECENT and not progress.starting and _nothing_moved(case):
        return _leave_open(case)
    if progress.pace is Pace.RECENT:
        kind = LiveClass.STARTING if progress.starting else LiveClass.PROGRESSING
        return Detection("P2", kind, Answer.YES, Confidence.LIKELY, clues)
    still = [
        (process, main)
        for process in case.focus()[:MOST_STILL]
        if (main := process.deciding) is not None and main.is_still
    ]
    waits = tuple(
        Clue(f"{hangs.describe_thread(process, main)}, the same in both looks, and never woke", f"/proc/{process.pid}")
        for process, main in still
    )
    locks = [
        on.other_end
        for _, main in still
        if main.wait is Wait.FILE_LOCK
        and (on := case.waited.get(main.after.tid)) is not None
        and on.other_end is not None
    ]
    works = f"its processes used {case.change.cores:.2f} CPUs"
    if case.change.voluntary is not None:
        works += f" and went to sleep {format_count(case.change.voluntary, 'time')}"
    hints = tuple(
        clue
        for found in detections
        if found.answer is Answer.UNKNOWN and found.kind in HANGS
        for clue in found.evidence_for
    )
    held = tuple(Clue(lock.text, "/proc/locks") for lock in locks)
    return Detection(
        "-",
        LiveClass.UNCLEAR,
        Answer.YES,
        Confidence.POSSIBLE,
        (*clues, *waits, *held, Clue(works, "two looks"), *hints),
        facts={"next": locks[0].look} if locks else {},
    )


def _nothing_moved(case: Case) -> bool:
    """Whether only the age of its last step says that it gets on, and that step already takes longer than usual."""
    usual_s, age_s = case.progress.usual_s, case.progress.age_s or 0.0
    if case.cards_busy or (usual_s is not None and age_s <= usual_s):
        return False
    tree = [process for focus in case.focus() for process in case.change.subtree(focus.pid)]
    return bool(tree) and all(process.is_idle and not (process.started or process.ended) for process in tree)


def _leave_open(case: Case) -> Detection:
    """A slow step and a hang look alike until the step is overdue: neither is claimed."""
    age_s, limit_s = case.progress.age_s or 0.0, case.progress.limit_s or 0.0
    text = f"no thread of it did any work in the {case.change.window_s:.0f} s between the looks"
    facts = {
        "age": f"{age_s:.0f} s",
        "left": f"{max(1.0, limit_s - age_s):.0f} s",
        "limit": f"{limit_s:.0f} s",
    }
    return Detection(
        "P2",
        LiveClass.PROGRESSING,
        Answer.YES,
        Confidence.POSSIBLE,
        (*case.progress.clues, Clue(text, "two looks")),
        facts=facts,
    )
