"""Detectors H6: a tree that waits for a child, a queue, or the network. Pure."""

from __future__ import annotations

from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.diagnosis.live.case import Case
from holdfast.diagnosis.live.change import ProcessChange, ThreadChange
from holdfast.model.verdict import Clue, Confidence, LiveClass

from .hangs import describe_thread, say_no, say_unknown
from .waits import Wait


def detect_waiting(case: Case) -> Detection:
    """H6: waits for a child, a queue or a pipe whose other side does nothing."""
    return _judge_wait(case, "H6", LiveClass.WAITING_FOR_CHILD, frozenset({Wait.PIPE, Wait.CHILD, Wait.VFORK}))


def detect_network(case: Case) -> Detection:
    """H6n: waits for somebody else's bytes."""
    return _judge_wait(case, "H6n", LiveClass.NETWORK_WAIT, frozenset({Wait.SOCKET}))


def _judge_wait(case: Case, detector: str, kind: LiveClass, waits: frozenset[Wait]) -> Detection:
    if case.alive or case.cards_busy:
        return say_no(detector, kind, *case.progress.clues)
    unread = ""
    for process in (*case.focus(), *_wrappers(case)):
        main = process.deciding
        if main is None or case.kind_of_wait(main) not in waits:
            continue
        tree = case.change.subtree(process.pid)
        if not all(p.is_idle for p in tree) or any(p.started or p.ended for p in tree):
            continue
        if main.is_still is None:
            unread = f"pid {process.pid}: context switches are not readable"
            continue
        if not case.overdue and not all(p.is_still for p in tree):
            continue
        if _sleeps(case, tree) and not case.overdue:
            # A script that sleeps between two tries is at work as far as anybody can tell.
            continue
        return _describe_wait(case, detector, kind, process, main)
    return say_unknown(detector, kind, unread) if unread else say_no(detector, kind)


def _wrappers(case: Case) -> tuple[ProcessChange, ...]:
    """The parents that wait for what `focus` holds."""
    focus = {process.after.ppid for process in case.focus()}
    return tuple(process for process in case.change.living if process.pid in focus)


def _sleeps(case: Case, tree: tuple[ProcessChange, ...]) -> bool:
    """Whether a leaf of the tree waits for a timer, which ends by itself."""
    mains = [process.deciding for process in tree if not case.change.children(process.pid)]
    return any(main is not None and main.wait is Wait.SLEEP for main in mains)


def _describe_wait(case: Case, detector: str, kind: LiveClass, process: ProcessChange, main: ThreadChange) -> Detection:
    on = case.waited.get(main.after.tid)
    clues = [Clue(describe_thread(process, main), f"/proc/{process.pid}/task/{main.after.tid}")]
    if on is not None:
        peer = f", the other end is {on.peer}{on.silence}" if on.peer else ""
        clues.append(Clue(f"it waits on {', '.join(on.targets[:4])}{peer}", f"/proc/{process.pid}/fd"))
    path = next((f" of {target}" for target in (on.targets if on is not None else ()) if target.startswith("/")), "")
    waits: str = f"the other side{path}, which was not found among its processes"
    for gone in case.change.processes if kind is LiveClass.WAITING_FOR_CHILD else ():
        if gone.after.ppid == process.pid and gone.after.is_dead:
            waits = f"pid {gone.pid} ({gone.after.name}), a child of it that has ended and is not reaped"
            clues.append(Clue(f"{waits}: what it would have sent does not come", f"/proc/{gone.pid}"))
            break
    for child in case.change.children(process.pid)[:5]:
        inner = child.deciding
        if inner is not None:
            clues.append(Clue(f"child: {describe_thread(child, inner)}", f"/proc/{child.pid}"))
            waits = f"pid {child.pid} ({child.after.name})"
    if on is not None and on.peer:
        waits = on.peer
    network = kind is LiveClass.NETWORK_WAIT
    look = f"check that {waits} answers" if network else f"look at {waits}: the run waits for it"
    if on is not None and on.other_end is not None:
        clues.append(Clue(on.other_end.text, "/proc"))
        look = on.other_end.look
    sure = Confidence.LIKELY if case.overdue else Confidence.POSSIBLE
    return Detection(
        detector, kind, Answer.YES, sure, (*clues, *case.progress.clues),
        facts={"pid": str(process.pid), "look": look},
    )  # fmt: skip
