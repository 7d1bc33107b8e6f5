"""``holdfast stop``: ask, wait, and say rung by rung what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.agent.control.stop_of_others import stop_of_other
from holdfast.agent.control.stop_several import NotStopped, StoppedRuns, StopWish, stop_together
from holdfast.agent.view.find import FoundRun, is_own
from holdfast.agent.view.observe import observe_run
from holdfast.cli.completion import complete_runs
from holdfast.cli.consent import confirm, is_of_others
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.errors import report, translate
from holdfast.cli.named_run import find_to_stop
from holdfast.cli.path_type import PATH
from holdfast.cli.render import clean, print_record
from holdfast.cli.render.stop import StopReporter, print_stopped
from holdfast.model.errors import HoldfastError

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.control.stop import StopResult


@click.command(short_help=SUMMARIES["stop"])
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--now", is_flag=True, help="Skip the grace: KILL at once.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@click.option("--wait", "wait", metavar="DURATION", help="How long to wait for it. [default: its grace and 10s]")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed for another person's run without a terminal.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *, names: tuple[str, ...], now: bool, reason: str, wait: str | None, yes: bool, runs: str | None, as_json: bool
) -> int:
    """Stop each RUN (its id, the beginning of it, or its name), wait until nothing of it is left, and say how.

    Several are stopped at the same time: each gets its answer, also beside one that cannot be stopped, and the exit
    code is the largest of theirs.

    TERM goes to the whole tree, the grace is extended while a save makes progress, then comes KILL. A run that has
    ended is left as it is: exit code 0. Exit code 76: something survived KILL; 124: it is still within its grace, and
    goes on stopping without us.

    A run that another person ordered from another desk, for this same account, is asked for first. Root stops the run
    of another account with a --reason: its owner reads who stopped it and why, and a
    lease area keeps an audit line.
    """
    wish = StopWish(now, reason, parse_duration_option(wait, "--wait"))
    found: dict[str, FoundRun] = {}
    errors: list[tuple[str, Exception]] = []
    for name in names:
        try:
            run = find_to_stop(name, runs)
        except HoldfastError as error:
            errors.append((name, error))
        else:
            found.setdefault(run.run_dir, run)
    for run in found.values():
        _ask_first(run, yes=yes, as_json=as_json)
    stopped = []
    for run, answer in zip(found.values(), _stop(list(found.values()), wish, quiet=as_json), strict=True):
        if isinstance(answer, Exception):
            errors.append((run.run_id, answer))
        else:
            stopped.append(answer)
    if errors and len(names) == 1:
        raise errors[0][1]
    failed = [(name, translate(seen, ("stop", *names))) for name, seen in errors]
    code = max([one.exit_code for one in stopped] + [one.exit_code for _, one in failed])
    if as_json:
        told = tuple(NotStopped(name, one.code, str(one), one.hint, one.exit_code) for name, one in failed)
        print_record(stopped[0] if len(names) == 1 else StoppedRuns(tuple(stopped), told, code))
        return code
    for one in stopped:
        print_stopped(one)
    for _, problem in failed:
        report(problem, as_json=False)
    return code


def _stop(found: Sequence[FoundRun], wish: StopWish, *, quiet: bool) -> list[StopResult | Exception]:
    """What became of each, in their order; those of other accounts one after the other."""
    tell = StopReporter(quiet=quiet)
    own = [run.run_dir for run in found if is_own(run)]
    answers = dict(zip(own, stop_together(own, wish, tell=tell), strict=True))
    for run in found:
        if run.run_dir not in answers:
            try:
                answers[run.run_dir] = stop_of_other(
                    run.run_dir, force=wish.now, reason=wish.reason, wait_s=wish.wait_s, tell=tell
                )
            except (HoldfastError, OSError) as error:
                answers[run.run_dir] = error
    return [answers[run.run_dir] for run in found]


def _ask_first(found: FoundRun, *, yes: bool, as_json: bool) -> None:
    view = observe_run(found.run_dir)
    if not view.over and is_of_others(view.ordered_by):
        author = clean(view.ordered_by)
        confirm(
            f"{view.run_id} was ordered by {author}. Stop it?",
            yes=yes,
            as_json=as_json,
            refusal=f"{view.run_id} was ordered by {author}, and was not stopped",
            plan=view.attempt,
        )
