"""``holdfast gpus release``: end the lease of a run that is gone."""

from __future__ import annotations

import click

from holdfast.agent.cards.release import release_lease
from holdfast.cli.completion import complete_runs
from holdfast.cli.render import clean, note, print_record
from holdfast.model.units import format_count

from . import VERBS


@click.command("release", short_help=VERBS["release"])
@click.argument("run", shell_complete=complete_runs)
@click.option("--force", is_flag=True, help="Break it although it is not provably gone; only its owner or root.")
@click.option("--reason", default="", metavar="TEXT", help="Why; needed with --force, written to the audit log.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, force: bool, reason: str, as_json: bool) -> int:
    """End the lease of RUN (its id, its name, or a card's index) when its holder is gone.

    No process is signalled. A lease that still holds is broken only by its owner or root, with --force and a written
    --reason; every break leaves a line in the audit log.
    """
    broken = release_lease(run, force=force, reason=reason)
    if as_json:
        print_record(broken)
        return 0
    print(clean(f"the lease of {broken.run_id} was ended; removed {format_count(len(broken.removed), 'file')}"))
    if broken.still_running:
        pids = ", ".join(map(str, broken.still_running))
        note(f"processes of that run are still there and may use the card: {pids}")
    for path in broken.kept:
        note(f"kept: {path}")
    return 0
