"""``holdfast restart``: stop, verified empty, then the same command as the next attempt."""

from __future__ import annotations

import os

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_json

from . import SUMMARIES


@click.command(short_help=SUMMARIES["restart"])
@click.argument("run", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Follow the new attempt.")
@click.option("--wait", "wait", metavar="DURATION", help="How long to wait for the stop. [default: its grace and 10s]")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, follow: bool, wait: str | None, runs: str | None, as_json: bool) -> int:
    """Stop RUN if it lives, verify that nothing of it is left, and start the same command as its next attempt.

    The new attempt has the run's job, code snapshot, artifacts and checkpoints; its environment is made from the one of
    this command. Earlier attempts stay as they are. There are never two trees at once.
    """
    from holdfast.agent import acting, observe
    from holdfast.cli.attach import follow as follow_run
    from holdfast.cli.queueing.restarted import tell_queue
    from holdfast.cli.runs import find, require_own
    from holdfast.cli.stopping import Teller, parse_wait

    found = find(run, root=runs)
    if found.notice:
        note(found.notice)
    require_own(found)
    attempt = acting.restart(
        found.run_dir,
        environ=os.environ,
        by=acting.describe_caller(),
        wait_s=parse_wait(wait),
        tell=Teller(quiet=as_json),
    )
    tell_queue(found.run_dir)
    if as_json and not follow:
        print_json({"run_id": found.run_id, "run_dir": found.run_dir, "attempt": attempt})
        return 0
    note(f"{found.run_id} was started again as attempt {attempt}")
    if not follow:
        note(f"follow: holdfast attach {found.run_id}    stop: holdfast stop {found.run_id}")
        return 0
    code = follow_run(found.run_dir, attempt, quiet=as_json)
    if as_json:
        newest = observe.list_attempts(found.run_dir)[-1]
        print_json({"run_id": found.run_id, "run_dir": found.run_dir, "attempt": newest, "exit_code": code})
    return code
