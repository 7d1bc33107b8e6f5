"""``holdfast results shard``: many small files in few archives."""

from __future__ import annotations

import click

from holdfast.agent.control.results.shards import pack_directory
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record, table
from holdfast.model.errors import UsageError
from holdfast.model.results import count_files
from holdfast.model.units import format_bytes, parse_bytes

from . import VERBS


@click.command("shard", short_help=VERBS["shard"])
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.argument("out", metavar="OUT", type=PATH)
@click.option("--size", default="300MB", show_default=True, metavar="SIZE", help="Bytes of files in one archive.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, directory: str, out: str, size: str, as_json: bool) -> int:
    """Pack every file below DIR into tar archives in OUT; the same files give the same archives, byte for byte.

    OUT/shards.json has the SHA-256 of each. Times and owners are left out. DIR stays as it is.
    """
    try:
        most = parse_bytes(size)
    except ValueError as error:
        raise UsageError(f"--size: {error}", hint="write it like 300MB") from error
    done = pack_directory(directory, out, most)
    for text in done.left_out:
        note(f"left out: {text}")
    if as_json:
        print_record(done)
        return 0
    rows = [(shard.name, shard.files, format_bytes(shard.bytes), shard.sha256[:12]) for shard in done.shards]
    table(("archive", "files", "size", "sha256"), rows, right=(1, 2))
    print(f"{count_files(done.files)}, {format_bytes(done.bytes)}, in {len(rows)}")
    return 0
