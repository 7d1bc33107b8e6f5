"""``holdfast patrol`` without a verb: one look."""

from __future__ import annotations

import sys

import click

from holdfast.agent.patrol.news import remember
from holdfast.agent.patrol.report import patrol_runs
from holdfast.agent.view.runs.roots import list_roots
from holdfast.cli.job.notify_option import choose_ways
from holdfast.cli.render import note, print_record
from holdfast.cli.render.patrol import print_report
from holdfast.desk.caller import CALLER
from holdfast.desk.runs.presence import has_places
from holdfast.model.errors import UsageError
from holdfast.model.place import LOCAL


@click.command("look")
def command(
    *,
    runs: str | None,
    on: str | None,
    here: bool,
    since_last: bool,
    everything: bool,
    notify_command: str | None,
    notify: bool,
    as_json: bool,
) -> int:
    """Look once at every run."""
    ways = choose_ways(notify_command, by_config=notify)
    if on not in (None, LOCAL) and here:
        raise UsageError(f"--on {on} and --here contradict each other", hint="leave one out")
    only_here = here or on == LOCAL or CALLER.place is not None or runs is not None
    if not only_here and (on is not None or has_places()):
        from holdfast.cli.placed.patrol import patrol_placed  # lazy: who has no places does not pay for them

        return patrol_placed(on, since_last=since_last, everything=everything, ways=ways, as_json=as_json)
    besides: dict[str, str] = {}
    if runs is None:
        from holdfast.agent.queue.view.untold import list_untold  # lazy: a desk without Linux cannot load it

        besides = list_untold()
    report, look = patrol_runs(list_roots(runs), runs=runs, since_last=since_last, ways=ways, besides=besides)
    if as_json:
        for problem in report.notes:
            note(problem)
        print_record(report)
    else:
        print_report(report, everything=everything, news_only=since_last)
    sys.stdout.flush()
    for problem in () if look is None else remember(look):
        note(problem)
    return report.exit_code
