"""``holdfast attach``: follow a live run as if it had been started in this terminal."""

from __future__ import annotations

import sys

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import is_terminal, note, print_json

from . import SUMMARIES


@click.command(short_help=SUMMARIES["attach"])
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Begin N lines before the end of the output."
)
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print no output, only one JSON object at the end.")
def command(*, run: str, lines: int | None, runs: str | None, as_json: bool) -> int:
    """Follow RUN (its id, the beginning of it, or its name) until it is over; the exit code is the job's own.

    Ctrl-C asks the run to stop, a second one ends it at once, a third leaves. Losing the terminal only detaches. Of an
    ended run the output and the summary are printed.
    """
    from holdfast.agent import observe
    from holdfast.agent.tail import find_last_lines
    from holdfast.cli.attach import follow
    from holdfast.cli.runs import find, require_readable
    from holdfast.model import wire
    from holdfast.model.errors import NoSuchRun

    found = find(run, root=runs)
    if found.notice:
        note(found.notice)
    attempts = observe.list_attempts(found.run_dir)
    require_readable(found)
    if not attempts:
        raise NoSuchRun(f"{found.run_id} has no attempt yet", hint=f"holdfast show {found.run_id}")
    path = f"{wire.attempt_dir(found.run_dir, attempts[-1])}/{wire.OUTPUT}"
    offset = 0 if lines is None else find_last_lines(path, lines)
    if not as_json and is_terminal(sys.stderr) and not observe.observe(found.run_dir, attempt=attempts[-1]).ended:
        note(f"Ctrl-C stops {found.run_id}, closing the terminal does not; `holdfast logs -f` only looks")
    code = follow(found.run_dir, attempts[-1], quiet=as_json, offset=offset, own=False)
    if as_json:
        view = observe.observe(found.run_dir)
        how = {"condition": view.condition, "note": view.note}
        print_json(
            {"run_id": found.run_id, "run_dir": found.run_dir, "attempt": view.attempt, "exit_code": code, **how}
        )
    return code
