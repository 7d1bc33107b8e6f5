"""``holdfast reconcile``: records and watchers in line with what is so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.render import clean, note, print_json
from holdfast.model.errors import StorageError

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.agent.reconcile import Deed

EPILOG = """\b
holdfast reconcile              put everything in line, and list what was done
holdfast reconcile --dry-run    only list what would be done"""


@click.command(short_help=SUMMARIES["reconcile"], epilog=EPILOG)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, dry_run: bool, runs: str | None, as_json: bool) -> int:
    """Put records and watchers in line with what is so.

    For this account's runs on this box: one whose supervisor died while its job lives gets a new supervisor, as
    `holdfast adopt` does it; one of which nobody is left has its end written. Sentinels that wait for what cannot come
    are ended, records without a process are removed. Nothing is started again. Every deed is listed.

    Exit code 0: everything is in line now. 1: something is not (with --dry-run: there is something to do).
    """
    from holdfast.agent.reconcile import reconcile
    from holdfast.cli.runs import list_roots

    if runs is not None and not os.path.isdir(runs):
        raise StorageError(f"{runs} is no directory that can be looked at", hint="holdfast ls shows where runs are")
    found = reconcile(list_roots(runs), dry_run=dry_run)
    if as_json:
        facts = {"runs": found.runs, "sentinels": found.sentinels, "unread": found.unread, "exit_code": found.exit_code}
        print_json({"deeds": found.deeds, "dry_run": dry_run, **facts})
        return found.exit_code
    for deed in found.deeds:
        _print(deed, dry_run=dry_run)
    for problem in found.unread:
        note(f"could not be looked at: {problem}")
    counts = f"{_plural(found.runs, 'run')} and {_plural(found.sentinels, 'sentinel')} looked at"
    if found.unread:
        counts += f", {len(found.unread)} could not be"
    note(counts if found.deeds or found.unread else f"{counts}; nothing was out of line")
    return found.exit_code


def _print(deed: Deed, *, dry_run: bool) -> None:
    print(f"{deed.kind.value} {clean(deed.subject)}: {clean(deed.why)}")
    if deed.problem:
        print(f"  not done: {clean(deed.problem)}")
    else:
        print(f"  {'would be: ' if dry_run else ''}{clean(deed.deed)}")


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
