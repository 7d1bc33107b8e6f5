"""What ``holdfast drill`` puts on the screen: one bar for each attempt, what was looked at, the verdict."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from holdfast.core.drilling import End, Verdict
from holdfast.model.units import format_duration

from .render import clean, has_colour, is_terminal

if TYPE_CHECKING:
    from holdfast.agent.drill import Rehearsal
    from holdfast.core.drilling import Trail

WIDEST = 60
NARROWEST = 20
BESIDE = 52
"""Columns that the words beside a bar may take."""
MARKS = {End.FINISHED: "|", End.KILLED: "X", End.STOPPED: "T", End.FAILED: "!", End.CUT: "/"}
REMEDIES = {
    Verdict.INEXACT: "see that everything that draws numbers or counts samples is tracked: generators of the script's "
    "own (run.track(rng=rng)), the loader (run.batches), counters (run.state)",
    Verdict.NO_CHECKPOINT: "holdfast.training saves by itself (docs/training.md); --checkpoint-every 50 saves sooner",
    Verdict.STARTS_OVER: "load the newest checkpoint before the loop: run.steps() does so",
    Verdict.GOES_BACK: "load the newest checkpoint, not an older one: run.steps() does so",
    Verdict.DOES_NOT_STOP: "a run of holdfast.training stops at its next step, if steps are shorter than the grace",
    Verdict.UNFINISHED: "does it wait for something after a restart? see its output with --keep DIR",
    Verdict.TOO_SHORT: "rehearse with more steps",
    Verdict.UNPROVEN: "log the loss with run.log(loss=loss), so that there is something to compare",
}
"""What to do about a verdict."""


def print_rehearsal(rehearsal: Rehearsal) -> None:
    """The report."""
    for bar in draw(rehearsal, _bar_width()):
        print(clean(bar))
    judgement = rehearsal.judgement
    print()
    for line in judgement.lines:
        mark = {True: "ok", False: "NO", None: "??"}[line.good]
        print(clean(f"{mark}  {line.what:<7} {line.words}"))
    if judgement.lines:
        print()
    colour = "32" if judgement.passed else "31"
    verdict = f"\x1b[{colour};1m{judgement.verdict.value}\x1b[0m" if has_colour(sys.stdout) else judgement.verdict.value
    print(f"{verdict}: {clean(judgement.why)}")
    remedy = REMEDIES.get(judgement.verdict)
    if remedy is not None:
        print(f"  {remedy}")


def _bar_width() -> int:
    if not is_terminal(sys.stdout):
        return WIDEST
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns - BESIDE))


def draw(rehearsal: Rehearsal, width: int) -> list[str]:
    """A bar for each attempt over the same steps: ``o`` where it resumed, ``X`` killed, ``T`` asked to stop."""
    trails = [("reference", rehearsal.reference), *((f"attempt {trail.attempt}", trail) for trail in rehearsal.trails)]
    low = min((trail.first for _, trail in trails if trail.first is not None), default=0)
    high = max((trail.last for _, trail in trails if trail.last is not None), default=0)
    scale = f"{'step':<12}{low}{str(high).rjust(width - len(str(low)))}"
    return [scale, *(f"{name:<12}{_bar(trail, low, high, width)}  {_beside(trail)}".rstrip() for name, trail in trails)]


def _bar(trail: Trail, low: int, high: int, width: int) -> str:
    if trail.first is None or trail.last is None or high <= low:
        return "?".ljust(width)
    scale = (width - 1) / (high - low)
    begin, end = round((trail.first - low) * scale), round((max(trail.last, trail.first) - low) * scale)
    bar = list(" " * begin + "=" * (end - begin + 1))
    if trail.first > low:
        bar[begin] = "o"
    bar[-1] = MARKS[trail.end]
    return "".join(bar).ljust(width)


def _beside(trail: Trail) -> str:
    if trail.first is None or trail.last is None:
        where = "it did not say where it was"
    else:
        where = f"{trail.first} to {'about ' if trail.end in (End.KILLED, End.CUT) else ''}{trail.last}"
    words = {
        End.FINISHED: "",
        End.KILLED: ", killed",
        End.STOPPED: f", TERM, exit {trail.exit_code}",
        End.FAILED: f", failed, exit {trail.exit_code}",
        End.CUT: ", time was up",
    }
    return f"{where}{words[trail.end]} ({format_duration(trail.seconds)})"


def encode_rehearsal(rehearsal: Rehearsal) -> dict[str, Any]:
    """The JSON object of ``drill --json``; the logged values themselves are left out."""
    judgement = rehearsal.judgement
    return {
        "verdict": judgement.verdict.name.lower(),
        "words": judgement.verdict.value,
        "why": judgement.why,
        "passed": judgement.passed,
        "lines": judgement.lines,
        "steps_done_again": judgement.redone,
        "compared": judgement.compared,
        "judged_by": rehearsal.source,
        "cut": rehearsal.cut,
        "planned": list(rehearsal.planned),
        "reference": _encode_trail(rehearsal.reference),
        "attempts": [_encode_trail(trail) for trail in rehearsal.trails],
    }


def _encode_trail(trail: Trail) -> dict[str, Any]:
    return {
        "attempt": trail.attempt,
        "end": trail.end,
        "first_step": trail.first,
        "last_step": trail.last,
        "newest_checkpoint_before": trail.durable,
        "exit_code": trail.exit_code,
        "seconds": round(trail.seconds, 3),
        "steps_logged": len(trail.rows),
        "checkpoints_seen": sorted(trail.prints),
        "stop": dict(trail.stop),
        "last_words": trail.words,
    }
