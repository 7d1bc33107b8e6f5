"""``holdfast rm``: remove ended runs, only those, and only what holdfast made."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from holdfast.agent.control import remove
from holdfast.agent.control.remove import Removal
from holdfast.cli.completion import complete_runs
from holdfast.cli.consent import confirm, is_of_others
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.named_run import list_named_ids, means_group
from holdfast.cli.path_type import PATH
from holdfast.cli.render import clean, keep_done, note, print_record, table
from holdfast.cli.render.runs import describe_age, describe_condition
from holdfast.model.errors import UsageError
from holdfast.model.units import format_bytes, format_count

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(short_help=SUMMARIES["rm"])
@click.argument("names", nargs=-1, metavar="[RUN...]", shell_complete=complete_runs)
@click.option(
    "-s",
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Ended runs of this state or class: failed, refused; may be repeated.",
)
@click.option("--older", metavar="AGE", help="Ended runs whose end is at least so long ago: 7d.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    names: tuple[str, ...],
    states: tuple[str, ...],
    older: str | None,
    yes: bool,
    dry_run: bool,
    runs: str | None,
    as_json: bool,
) -> int:
    """Remove ended runs with everything in their directories: record, output, artifacts and checkpoints.

    A run that has not ended is refused, and so is whatever holdfast did not make: links, directories outside the runs
    root, other accounts' runs. Links inside a run are removed, never followed. A run in which something is mounted is
    refused, a bind mount of the same disk too.

    With --state or --older it is every ended run that `holdfast ls --all` shows so; with several of RUN, --state and
    --older those of which all are true. A RUN may be a pattern of names (`'lr-*'`) or GROUP/, as for `ls`: then it is
    the ended ones of those; GROUP/NAME is the run of one job. `--dry-run` shows them.
    """
    if states or older is not None:
        if older is not None and older.strip().isdigit():
            # Elsewhere a bare number is seconds; here that would be nearly everything.
            raise UsageError(f"--older {older.strip()}: of what", hint="write it like 36h or 7d; seconds are 90s")
        older_s = parse_duration_option(older, "--older")
        names = tuple(remove.find_ended(_name_runs(names, runs), states, older_s, runs))
    elif not names:
        raise UsageError("no run to remove", hint="name some, or say --state STATE or --older AGE, like 30d")
    elif several := [name for name in names if "*" in name or means_group(name)]:
        single = [name for name in names if name not in several]
        names = (*single, *remove.find_ended(_name_runs(several, runs), (), None, runs))
    if not names:
        note("no ended run matches; nothing was removed")
    keep_done("nothing was removed")
    examined = remove.examine_all(names, runs, dry_run=dry_run)
    found = examined.describe(removed=False)
    if not as_json and found.runs:
        now_s = time.time()
        rows = [
            (
                run.run_id,
                describe_condition(run),
                describe_age(run.ended_at, now_s) or None,
                run.files,
                format_bytes(run.size_bytes),
            )
            for run in found.runs
        ]
        table(("run", "state", "ended", "files", "size"), rows, right=(3, 4))
        for text in () if yes and not dry_run else found.notes:  # nobody is asked: it would be too late to follow
            note(text)
    if not dry_run and names:
        remove.require_passed(examined)
        confirm(_word_question(found), yes=yes, as_json=as_json, refusal="nothing was removed", plan=found)
        keep_done("some runs may have been removed; holdfast ls --all shows what is left")
        found = remove.remove_all(examined)
        keep_done(_say_removed(found))
        for text in found.notes if yes and not as_json else ():
            note(f"{text}; `holdfast rm --dry-run` says it before")
    if as_json:
        print_record(found)
    elif names:
        _print(found)
    return examined.refused[0].exit_code if examined.refused else 0


def _name_runs(names: Sequence[str], runs: str | None) -> list[str]:
    """The names, with the ids of the runs for each ``GROUP/`` and ``GROUP/NAME``."""
    return [one for name in names for one in list_named_ids(name, runs)]


def _say_removed(found: Removal) -> str:
    size = format_bytes(sum(candidate.size_bytes for candidate in found.runs))
    count = format_count(len(found.runs), "run")
    return f"{'removed' if found.removed else 'would remove'} {count}, {size}"


def _print(found: Removal) -> None:
    for text in found.refused:
        note(text)
    if found.refused:
        note("nothing would be removed" + (": one refusal leaves all" if found.runs else ""))
    else:
        note(_say_removed(found))


def _word_question(found: Removal) -> str:
    count = len(found.runs)
    others = sorted({clean(run.ordered_by) for run in found.runs if is_of_others(run.ordered_by)})
    whose = f", ordered by {', '.join(others)}," if others else ""
    return f"Remove {'this run' if count == 1 else f'these {count} runs'}{whose} with artifacts and checkpoints?"
