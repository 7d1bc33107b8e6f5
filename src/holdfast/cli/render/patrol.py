"""A patrol's look in words: the status line first, then the runs that need a person."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.core.patrol.patrol import say_unseen
from holdfast.model.place import LOCAL
from holdfast.model.record import replace
from holdfast.model.units import format_count, format_duration

from . import clean, note, paint
from .placed_runs import print_silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.patrol.report import PatrolLine, PatrolReport
    from holdfast.core.patrol.patrol import PatrolRemark
    from holdfast.desk.runs.patrol import PlacedLine, PlacedPatrol


def print_report(report: PatrolReport, *, everything: bool, news_only: bool) -> None:
    """Print the status line, the runs that need a person, and with `everything` the others."""
    print(report.summary)
    if report.notice:
        note(report.notice)
    for problem in report.blind:
        note(f"could not be looked at: {problem}")
    _print_runs(report.runs, everything=everything, news_only=news_only)
    if report.other_accounts and everything:
        others = format_count(report.other_accounts, "run of another account was", "runs of other accounts were")
        note(f"{others} not looked at")
    for problem in report.notes:
        note(problem)


def print_placed(found: PlacedPatrol, *, everything: bool, news_only: bool) -> None:
    """The same over several places: a run elsewhere is ``PLACE:ID``; in notes the places that do not answer."""
    named = [replace(seen, run_id=name_run(seen)) for seen in found.runs]
    print_report(replace(found, runs=tuple(named), notes=()), everything=everything, news_only=news_only)
    print_silent(found.places, time.time())
    for place, number in found.unseen.items():
        note(say_unseen(place, number))
    for problem in found.notes:
        note(problem)


def name_run(seen: PlacedLine) -> str:
    """The run as it is typed here."""
    return seen.run_id if seen.place == LOCAL else f"{seen.place}:{seen.run_id}"


def _print_runs(runs: Sequence[PatrolLine], *, everything: bool, news_only: bool) -> None:
    quiet = 0
    for seen in sorted(runs, key=lambda item: not item.escalate):
        if everything or (seen.escalate and (seen.news or not news_only or seen.standing.value != "dead")):
            _print_run(seen, everything=everything, marked=news_only)
        elif seen.escalate:
            quiet += 1
    if quiet:
        note(f"{quiet} that were told before need a person still")


def _words(seen: PatrolLine, line: PatrolRemark) -> str:
    if line.row != "running" or seen.step is None or seen.progress_age_s is None:
        return line.text
    return f"step {seen.step}, moved {format_duration(seen.progress_age_s)} ago"


def _print_run(seen: PatrolLine, *, everything: bool, marked: bool) -> None:
    told = seen.lines if everything else [line for line in seen.lines if line.escalate]
    still = "still: " if marked and not seen.news else ""
    for number, line in enumerate(told):
        head = f"{paint(seen.standing.value)}  {seen.run_id}  " if number == 0 else "  "
        print(f"{head}{still}{clean(_words(seen, line))}")
        if line.action:
            print(f"    -> {clean(line.action)}")
