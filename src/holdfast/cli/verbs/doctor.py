"""``holdfast doctor``: what this host is like for training, and the end of what earlier runs left behind."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from holdfast.agent.doctor.examine import examine_host
from holdfast.agent.doctor.reap import end_leftovers, find_leftovers
from holdfast.agent.view.runs.roots import list_roots
from holdfast.cli.consent import confirm
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.path_type import PATH
from holdfast.cli.render import is_terminal, note, print_record
from holdfast.cli.render.doctor import SectionPrinter, print_counts, print_leftovers, print_reaping
from holdfast.model.errors import UsageError
from holdfast.model.finding import Finding

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
@click.option("--runs", metavar="DIR", type=PATH, help="Look only at runs under this directory.")
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
    if reap:
        return _reap(yes=yes, grace_s=parse_duration_option(grace, "--grace"), runs=runs, as_json=as_json)
    if yes:
        raise UsageError("--yes belongs to --reap: without it nothing is changed", hint="leave it out")
    hear = _hear_nothing if as_json else SectionPrinter()
    found = examine_host(list_roots(runs), python=python, network=network, tell=_tell, hear=hear)
    print_record(found) if as_json else print_counts(found)
    return found.exit_code


def _hear_nothing(title: str, findings: Sequence[Finding]) -> None:
    """For programs, who get all of it at the end."""


def _tell(text: str) -> None:
    """What takes long is said to people only."""
    if is_terminal(sys.stderr):
        note(text)


def _reap(*, yes: bool, grace_s: float, runs: str | None, as_json: bool) -> int:
    seen = find_leftovers(list_roots(), runs)
    if not as_json:
        print_leftovers(seen)
    if seen.found:
        count = len(seen.found)
        question = f"End {'this process' if count == 1 else f'these {count} processes'}?"
        refusal = f"nothing was ended ({count} found)"
        processes = tuple(found.process for found in seen.found)
        confirm(question, yes=yes, as_json=as_json, refusal=refusal, plan=processes)
    done = end_leftovers(seen, grace_s)
    print_record(done) if as_json else print_reaping(done)
    return done.exit_code
