"""``holdfast handbook``: how to go on with a run from a fresh shell, by its state now."""

from __future__ import annotations

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import clean, note, print_json

from . import SUMMARIES

EPILOG = """\b
holdfast handbook digits           where it stands, the first command, and all the others
holdfast handbook digits > how.md  keep it outside of any session"""


@click.command(short_help=SUMMARIES["handbook"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, runs: str | None, as_json: bool) -> int:
    """Print how to look at, stop and resume a run, as it is now.

    RUN is its id, the beginning of it, or its name. The text is made from the present state of the run, with its real
    paths: the first thing to do stands at the top, the command that resumes it among the others. Nothing is changed.
    """
    from holdfast.agent.handbook import render_now
    from holdfast.agent.observe import observe
    from holdfast.cli.runs import find, require_readable

    found = find(run, root=runs)
    if found.notice:
        note(found.notice)
    require_readable(found)
    view = observe(found.run_dir)
    text = render_now(view)
    if as_json:
        print_json({"run_id": found.run_id, "run_dir": found.run_dir, "condition": view.condition, "text": text})
    else:
        print(clean(text, keep_newlines=True), end="")
    return 0
