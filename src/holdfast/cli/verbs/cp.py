"""``holdfast cp``: a file or directory of a run, copied here."""

from __future__ import annotations

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.copying import CopyProgress
from holdfast.desk.fetch import Interrupted, fetch, parse_source
from holdfast.model.units import format_bytes, format_count

from . import SUMMARIES

EPILOG = """\b
holdfast cp gpu1:digits/artifacts/model.pt .      a result, also while the run lives
holdfast cp gpu1:digits/work now                  the job's working directory
holdfast cp digits/checkpoints/step-100 kept      a directory, of a run of this machine"""


@click.command(short_help=SUMMARIES["cp"], epilog=EPILOG)
@click.argument("source", metavar="SOURCE", shell_complete=complete_runs)
@click.argument("target", metavar="TARGET", type=PATH)
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, source: str, target: str, force: bool, as_json: bool) -> int:
    """Copy SOURCE, which is [PLACE:]RUN/PATH, to TARGET on this machine.

    PATH is as `holdfast files RUN` lists it; `work` is the job's working directory. Where no run is called RUN it is
    GROUP/NAME/PATH, of the run of that job. Sizes and SHA-256 are proven, and
    the copy appears under its name when it is whole. Of a file that is being written the copy has what was there at the
    beginning. Links out of it are left out, and named, and so are results that were changed since their run ended.
    """
    progress = CopyProgress()
    try:
        done = fetch(parse_source(source), target, force=force, tell=progress.tell)
    except Interrupted as interrupted:
        return interrupted.code
    finally:
        progress.end()
    if as_json:
        print_record(done)
        return 0
    for path in done.grew:
        note(f"{path} grew while it was copied: the copy has what was there at the beginning")
    for text in done.left_out:
        note(f"left out: {text}")
    if done.left_out_count > len(done.left_out):
        note(f"and {done.left_out_count - len(done.left_out)} more")
    for text in done.changed:
        note(f"{text}: the copy is what is there now")
    if done.changed_count > len(done.changed):
        note(f"and {done.changed_count - len(done.changed)} more")
    count = format_count(done.files, "file")
    print(f"{done.target}: {count}, {format_bytes(done.bytes)}, {'as it is now' if done.changed_count else 'proven'}")
    return 0
