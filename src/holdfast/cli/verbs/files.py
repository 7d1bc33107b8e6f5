"""``holdfast files``: what files a run has."""

from __future__ import annotations

import click

from holdfast.agent.view.run_files import list_files
from holdfast.cli.completion import complete_runs
from holdfast.cli.named_run import find_readable
from holdfast.cli.path_type import PATH
from holdfast.cli.render import clean, note, print_record, table
from holdfast.model.units import format_bytes, format_duration

from . import SUMMARIES

EPILOG = """\b
holdfast files gpu1:digits                what there is
holdfast files gpu1:digits work           the job's working directory
holdfast files digits artifacts/plots"""


@click.command(short_help=SUMMARIES["files"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.argument("path", required=False, default="", metavar="[PATH]")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, path: str, runs: str | None, as_json: bool) -> int:
    """List one directory of RUN, live or ended: name, size, and how long ago it was written.

    PATH is relative to the run's directory: artifacts, checkpoints, attempts/1/output.log; `work` is the job's working
    directory. `holdfast cp RUN/PATH .` copies.
    """
    found = list_files(find_readable(run, runs).run_dir, path)
    if as_json:
        print_record(found)
        return 0
    rows = []
    for file in found.files:
        size = format_bytes(file.size_bytes) if file.kind == "file" else file.kind
        name = clean(file.name) + ("/" if file.kind == "dir" else "")
        rows.append((name, size, format_duration(file.age_s)))
    table(("NAME", "SIZE", "AGE"), rows, right=(1, 2))
    if found.cut:
        note(f"there are more: only the first {len(found.files)} are listed")
    return 0
