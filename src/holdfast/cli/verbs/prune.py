"""``holdfast prune``: give a run's declared scratch back, shown first."""

from __future__ import annotations

import click

from holdfast.agent.control.prune import ScratchPruning, plan_pruning, prune_scratch
from holdfast.agent.view.find import find_run, require_own, require_readable
from holdfast.cli.completion import complete_runs
from holdfast.cli.consent import agree, can_ask
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.prune import print_plan, print_pruning, word_question

from . import SUMMARIES

EPILOG = """\b
Examples:
  holdfast prune train
  holdfast prune train --also 'artifacts/tmp/**' --yes
"""


@click.command(epilog=EPILOG, short_help=SUMMARIES["prune"])
@click.argument("name", metavar="RUN", shell_complete=complete_runs)
@click.option("-y", "--yes", is_flag=True, help="Remove it. Without it, a terminal is asked; else it is only shown.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--also", metavar="PATTERN", multiple=True, help="Beyond what the job declared; asked for each time.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, name: str, yes: bool, dry_run: bool, also: tuple[str, ...], runs: str | None, as_json: bool) -> int:
    """Remove the declared scratch of an ended run.

    That is what its job file names in `disk.scratch`, and nothing else.

    Kept whatever a pattern says: records, metrics, declared inputs and results, checkpoints named best or last, the
    newest whole checkpoint of each series, files that a process has open. Links are never followed.

    Exit code 0 when all that was planned is gone (or nothing was asked to go), 74 when something could not be removed,
    64 when the run has not ended.
    """
    found = find_run(name, root=runs)
    if found.notice:
        note(found.notice)
    require_readable(found)
    require_own(found)
    done = plan_pruning(found.run_dir, also, dry_run=dry_run)
    if not as_json:
        print_plan(done)
    if done.plan.victims and not dry_run and _consent(done, yes=yes, as_json=as_json, beyond=len(also)):
        done = prune_scratch(done)
    print_record(done) if as_json else print_pruning(done)
    return done.exit_code


def _consent(planned: ScratchPruning, *, yes: bool, as_json: bool, beyond: int) -> bool:
    if yes:
        return True
    return can_ask(as_json=as_json) and agree(word_question(planned, beyond), planned.plan)
