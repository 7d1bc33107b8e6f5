"""``holdfast fault list``: the faults, and whether this box can do them."""

from __future__ import annotations

import click

from holdfast.agent.doctor.faults import list_faults
from holdfast.cli.path_type import PATH
from holdfast.cli.render import print_record
from holdfast.cli.render.faults import print_list

from . import VERBS


@click.command("list", short_help=VERBS["list"])
@click.option("--nvml-library", metavar="PATH", type=PATH, help="A stand-in for libnvidia-ml.so.1.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, nvml_library: str | None, as_json: bool) -> int:
    """List the faults, what must be said about each, and whether this box can do it.

    What a fault needs is tried, each in a process that is thrown away.
    """
    found = list_faults(nvml_library)
    print_record(found) if as_json else print_list(found)
    return 0
