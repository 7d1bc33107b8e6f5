"""``holdfast sentinel``: wait for one thing of one run, in the foreground or detached."""

from __future__ import annotations

import click

from holdfast.agent.patrol.sentinel.arm import arm_detached, list_sentinels, parse_condition, wait_here
from holdfast.agent.view.find import find_run, refuse_copy, require_readable
from holdfast.cli.completion import complete_runs
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.job.notify_option import read_words
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.sentinels import print_armed, print_sentinels
from holdfast.model.errors import UsageError

from . import SUMMARIES

EPILOG = """\b
holdfast sentinel digits --for ended                     wait here until it is over
holdfast sentinel digits --for step=5000 -d              wait detached; the outcome is kept
holdfast sentinel digits --for artifact=artifacts/r.json --max 2h
holdfast sentinel digits --for stalled -d --notify-command 'mail -s stalls me@example.org'
holdfast sentinel digits                                 which are armed, and how others ended"""


@click.command(short_help=SUMMARIES["sentinel"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--for",
    "wanted",
    metavar="CONDITION",
    help="ended, started, failed, stalled, step=N or artifact=PATH (in the run).",
)
@click.option("--max", "life", default="12h", show_default=True, metavar="DURATION", help="The most it may live.")
@click.option("-d", "--detach", is_flag=True, help="Wait in a session of its own and record the outcome.")
@click.option(
    "--notify-command", metavar="COMMAND", help="Run this at the end, with the outcome as JSON on its input; no shell."
)
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    run: str,
    wanted: str | None,
    life: str,
    detach: bool,
    notify_command: str | None,
    runs: str | None,
    as_json: bool,
) -> int:
    """Wait for one thing of a run, such as its end or a step.

    RUN is its id, the beginning of it, or its name. A sentinel sleeps until the kernel tells of a change. There is one
    per run and condition: a new one ends the earlier one. Without --for: list the sentinels of RUN.

    Exit code 0: it is so. 1: it can no longer come true, or the run is lost. 124: not within --max. 130: it was ended,
    for example by a newer one. With -d: 0 once it is armed.
    """
    condition = None if wanted is None else parse_condition(wanted)
    notify_command = read_words(notify_command)
    life_s = parse_duration_option(life, "--max")
    assert life_s is not None
    if life_s <= 0:
        raise UsageError("--max must be longer than nothing", hint="write it like 30m")
    found = find_run(run, root=runs)
    if found.notice:
        note(found.notice)
    require_readable(found)
    refuse_copy(found.run_dir, live_only=condition is None)
    if condition is None:
        listed = list_sentinels(found.run_dir)
        print_record(listed) if as_json else print_sentinels(listed)
        return 0
    if detach:
        armed = arm_detached(found.run_dir, condition, life_s, notify_command)
        print_record(armed) if as_json else print_armed(armed)
        return 0
    waited = wait_here(found.run_dir, condition, life_s, notify_command=notify_command, tell=note)
    print_record(waited) if as_json else note(waited.words)
    return waited.exit_code
