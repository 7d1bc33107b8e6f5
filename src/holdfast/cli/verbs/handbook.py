"""``holdfast handbook``: how to go on with a run from a fresh shell, by its state now."""

from __future__ import annotations

import click

from holdfast.agent.view.find import find_run, require_readable
from holdfast.agent.view.page.handbook import read_handbook
from holdfast.cli.completion import complete_runs
from holdfast.cli.path_type import PATH
from holdfast.cli.render import clean, note, print_record
from holdfast.desk.caller import CALLER

from . import SUMMARIES

EPILOG = """\b
holdfast handbook digits           where it stands, the first command, and all the others
holdfast handbook digits > how.md  keep it outside of any session"""


@click.command(short_help=SUMMARIES["handbook"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, runs: str | None, as_json: bool) -> int:
    """Print how to look at, stop and resume a run, as it is now.

    RUN is its id, the beginning of it, or its name. The text is made from the present state of the run, with its real
    paths: the first thing to do stands at the top, the command that resumes it among the others. Nothing is changed.
    """
    found = find_run(run, root=runs)
    if found.notice:
        note(found.notice)
    require_readable(found)
    handbook = read_handbook(found.run_dir, box=None if as_json else CALLER.place)
    print_record(handbook) if as_json else print(clean(handbook.text, keep_newlines=True), end="")
    return 0
