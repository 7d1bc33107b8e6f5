"""``holdfast rm``: remove ended runs, only those, and only what holdfast made."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_json, table
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.units import format_bytes

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.agent.removal import Candidate
    from holdfast.cli.runs import Found


@click.command(short_help=SUMMARIES["rm"])
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, names: tuple[str, ...], yes: bool, dry_run: bool, runs: str | None, as_json: bool) -> int:
    """Remove ended runs with everything in their directories: record, output, artifacts and checkpoints.

    A run that has not ended is refused, and so is whatever holdfast did not make: links, directories outside the runs
    root, other accounts' runs. Links inside a run are removed, never followed.
    """
    from holdfast.agent import removal

    passed, refused = _examine(names, runs)
    removed = not dry_run and bool(passed) and not refused
    if not as_json and passed:
        rows = [(c.run_id, c.condition, c.files, format_bytes(c.size_bytes)) for c, _ in passed]
        table(("run", "state", "files", "size"), rows, right=(2, 3))
    if refused and not dry_run:
        first = refused[0]
        more = f"; and {len(refused) - 1} more: {'; '.join(map(str, refused[1:]))}" if len(refused) > 1 else ""
        raise type(first)(f"nothing was removed: {first}{more}", hint=first.hint, details=first.details)
    if removed:
        _confirm(len(passed), yes=yes, as_json=as_json)
        for candidate, found in passed:
            removal.remove(candidate, root=found.root)
            removal.sweep(found.root)
    if as_json:
        print_json({"runs": [c for c, _ in passed], "removed": removed, "refused": [str(error) for error in refused]})
    else:
        size = format_bytes(sum(candidate.size_bytes for candidate, _ in passed))
        note(f"{'removed' if removed else 'would remove'} {len(passed)} run{'' if len(passed) == 1 else 's'}, {size}")
        for error in refused:
            note(str(error))
    return refused[0].exit_code if refused else 0


def _examine(names: tuple[str, ...], runs: str | None) -> tuple[list[tuple[Candidate, Found]], list[HoldfastError]]:
    """Look at every run before anything is removed: one refusal leaves all of them."""
    from holdfast.agent import removal
    from holdfast.cli.runs import default_root, find, list_roots

    passed: dict[str, tuple[Candidate, Found]] = {}
    refused: list[HoldfastError] = []
    roots = [*list_roots(runs), default_root()]
    for name in names:
        try:
            found = find(name, root=runs)
            if found.notice:
                raise UsageError(f"{name!r} is not one run: {found.notice}", hint="give its whole id")
            if found.root not in roots:
                raise UsageError(f"{found.run_dir} is outside of the runs roots", hint=f"say --runs {found.root}")
            passed[found.run_dir] = removal.examine(found.run_dir, root=found.root), found
        except HoldfastError as error:
            refused.append(error)
    return list(passed.values()), refused


def _confirm(count: int, *, yes: bool, as_json: bool) -> None:
    if yes:
        return
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("nothing was removed: there is no terminal to ask on", hint="say --yes")
    click.confirm(
        f"Remove {'this run' if count == 1 else f'these {count} runs'} with artifacts and checkpoints?", abort=True
    )
