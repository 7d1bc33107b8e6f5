"""``holdfast doctor``: what this host is like for training, and the end of what earlier runs left behind."""

from __future__ import annotations

import click

from holdfast.model.errors import UsageError

from . import SUMMARIES

EPILOG = """\b
Examples:
  holdfast doctor --python .venv/bin/python
  holdfast doctor --reap
"""


@click.command(epilog=EPILOG, short_help=SUMMARIES["doctor"])
@click.option("--python", metavar="PATH", help="Ask the torch of this interpreter. [default: python on PATH]")
@click.option("--network", is_flag=True, help="Also resolve names; without it nothing leaves this box.")
@click.option("--reap", is_flag=True, help="End living processes of runs that have ended, after asking.")
@click.option("-y", "--yes", is_flag=True, help="With --reap: do not ask. Needed without a terminal.")
@click.option("--grace", metavar="DURATION", default="10s", show_default=True, help="With --reap: from TERM to KILL.")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only at runs under this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *, python: str | None, network: bool, reap: bool, yes: bool, grace: str, runs: str | None, as_json: bool
) -> int:
    """Look at this host: cards, framework, limits, disks, leftovers.

    Each finding comes with its fix. Nothing is changed without --reap, which ends only what provably belonged to a
    run of this account that has ended: never a live run, never a process without a run's marker.

    Exit code 0 when nothing failed, 1 otherwise. With --reap 0 when nothing is left, 76 when something survived KILL,
    74 when what is done cannot be recorded.
    """
    from holdfast.cli.doctor import examine_host, reap_leftovers

    if not reap:
        if yes:
            raise UsageError("--yes belongs to --reap: without it nothing is changed", hint="leave it out")
        return examine_host(python=python, network=network, runs=runs, as_json=as_json)
    from holdfast.model.units import parse_duration

    try:
        grace_s = parse_duration(grace)
    except ValueError as error:
        raise UsageError(f"--grace: {error}", hint="write it like 10s") from error
    return reap_leftovers(yes=yes, grace_s=grace_s, runs=runs, as_json=as_json)
