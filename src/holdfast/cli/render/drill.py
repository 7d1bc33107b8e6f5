"""What ``holdfast drill`` puts on the screen: one bar for each attempt, what was looked at, the verdict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.core.drill.drill import AttemptEnd, DrillVerdict
from holdfast.model.units import format_duration

from . import clean, has_colour, is_terminal, note, terminal_width

if TYPE_CHECKING:
    from holdfast.agent.drill.report import AttemptLine, DrillReport

WIDEST = 60
NARROWEST = 20
BESIDE = 52
"""Columns that the words beside a bar may take."""
MARKS = {
    AttemptEnd.FINISHED: "|",
    AttemptEnd.KILLED: "X",
    AttemptEnd.STOPPED: "T",
    AttemptEnd.FAILED: "!",
    AttemptEnd.CUT: "/",
}
REMEDIES = {
    DrillVerdict.INEXACT: "see that everything that draws numbers or counts samples is tracked: generators of the "
    "script's own (run.track(rng=rng)), the loader (run.batches), counters (run.state)",
    DrillVerdict.NO_CHECKPOINT: "holdfast.training saves by itself (holdfast's docs/training.md); "
    "--checkpoint-every 50: sooner",
    DrillVerdict.STARTS_OVER: "load the newest checkpoint before the loop: run.steps() does so",
    DrillVerdict.GOES_BACK: "load the newest checkpoint, not an older one: run.steps() does so",
    DrillVerdict.DOES_NOT_STOP: "a run of holdfast.training stops at its next step, if steps are shorter than grace",
    DrillVerdict.UNFINISHED: "does it wait for something after a restart? see its output with --keep DIR",
    DrillVerdict.TOO_SHORT: "rehearse with more steps",
    DrillVerdict.UNPROVEN: "log the loss with run.log(loss=loss), so that there is something to compare",
}
"""What to do about a verdict."""


def print_rehearsal(report: DrillReport) -> None:
    """The report."""
    for bar in draw_bars(report, _bar_width()):
        print(clean(bar))
    print()
    for line in report.lines:
        mark = {True: "ok", False: "NO", None: "??"}[line.good]
        print(clean(f"{mark}  {line.what:<7} {line.words}"))
    if report.lines:
        print()
    colour = "32" if report.passed else "31"
    words = clean(report.words)
    verdict = f"\x1b[{colour};1m{words}\x1b[0m" if has_colour(sys.stdout) else words
    print(f"{verdict}: {clean(report.why)}")
    remedy = REMEDIES.get(DrillVerdict[report.verdict.upper()])
    if remedy is not None:
        print(f"  {remedy}")
    if report.kept:
        note(f"both runs are in {report.kept}/runs")
    elif report.exit_code:
        note("to look at the runs, rehearse again with --keep DIR")


def _bar_width() -> int:
    if not is_terminal(sys.stdout):
        return WIDEST
    return max(NARROWEST, min(WIDEST, terminal_width() - BESIDE))


def draw_bars(report: DrillReport, width: int) -> list[str]:
    """A bar for each attempt over the same steps: ``o`` where it resumed, ``X`` killed, ``T`` asked to stop."""
    trails = [("reference", report.reference), *((f"attempt {trail.attempt}", trail) for trail in report.attempts)]
    low = min((trail.first_step for _, trail in trails if trail.first_step is not None), default=0)
    high = max((trail.last_step for _, trail in trails if trail.last_step is not None), default=0)
    scale = f"{'step':<12}{low}{str(high).rjust(width - len(str(low)))}"
    return [scale, *(f"{name:<12}{_bar(trail, low, high, width)}  {_beside(trail)}".rstrip() for name, trail in trails)]


def _bar(trail: AttemptLine, low: int, high: int, width: int) -> str:
    if trail.first_step is None or trail.last_step is None or high <= low:
        return "?".ljust(width)
    scale = (width - 1) / (high - low)
    begin, end = round((trail.first_step - low) * scale), round((max(trail.last_step, trail.first_step) - low) * scale)
    bar = list(" " * begin + "=" * (end - begin + 1))
    if trail.first_step > low:
        bar[begin] = "o"
    bar[-1] = MARKS[trail.end]
    return "".join(bar).ljust(width)


def _beside(trail: AttemptLine) -> str:
    if trail.first_step is None or trail.last_step is None:
        where = "it did not say where it was"
    else:
        about = "about " if trail.end in (AttemptEnd.KILLED, AttemptEnd.CUT) else ""
        where = f"{trail.first_step} to {about}{trail.last_step}"
    words = {
        AttemptEnd.FINISHED: "",
        AttemptEnd.KILLED: ", killed",
        AttemptEnd.STOPPED: f", TERM, exit {trail.exit_code}",
        AttemptEnd.FAILED: f", failed, exit {trail.exit_code}",
        AttemptEnd.CUT: ", time was up",
    }
    return f"{where}{words[trail.end]} ({format_duration(trail.seconds)})"
