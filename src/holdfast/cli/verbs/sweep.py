"""``holdfast sweep``: many cells of one job, and their results side by side."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import JobCommand, collect_nodes, job_options
from holdfast.cli.queueing.opening import complete_cells, complete_groups
from holdfast.cli.render import note
from holdfast.model.errors import UsageError
from holdfast.model.queue import IfChanged

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.cli.sweeping.handing import Asked, Plan
    from holdfast.cli.sweeping.results import Row

EPILOG = """\b
Examples:
  holdfast sweep sweep.yaml                                   what a sweep file says
  holdfast sweep job.yaml --grid lr=1e-3,3e-4 --grid seed=0,1,2
  holdfast sweep --gpus 1 --name rates --grid lr=1e-3,3e-4 -- python train.py --lr {lr}
  holdfast sweep job.yaml --csv cells.csv --dry-run           every cell, nothing handed in
  holdfast sweep add rates --grid lr=1e-2                     more cells, while it runs
  holdfast sweep show rates --sort accuracy:max               results side by side
  holdfast sweep export rates rates.csv

Exit code 0: handed in. 64: refused, nothing was taken; 65: a mistake in a file."""
SUBMIT = "submit"
_NOT_TAKEN = frozenset({"name", "priority", "gpu.wait"})
"""Keys of a job whose options mean the sweep's or the queue's own here."""
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
_NAME = click.argument("name", shell_complete=complete_groups)


class SweepGroup(click.Group):
    """``sweep SOURCE`` is ``sweep submit SOURCE``: the first word that names no subcommand begins what is handed in."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the subcommand's name before arguments that have none."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [SUBMIT, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Subcommands, and what `submit` takes: its options, and files."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return self.commands[SUBMIT].shell_complete(ctx, incomplete)
        return [*super().shell_complete(ctx, incomplete), CompletionItem(incomplete, type="file")]


@click.group(
    cls=SweepGroup,
    short_help=SUMMARIES["sweep"],
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Hand in many cells of one job, add to them, and compare what they come to.

    A sweep is a group of the queue: everything `holdfast queue` and `holdfast wait` do with a group, they do with it.
    `holdfast sweep SOURCE` is short for `holdfast sweep submit SOURCE`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        return UsageError.exit_code
    return 0


# ------------------------------------------------------------------------------------------------------------ submit


@command.command(SUBMIT, cls=JobCommand)
@click.argument("source", required=False, type=click.Path(), metavar="[SWEEP|JOB]")
@click.option("--name", metavar="NAME", help="The sweep's name. [default: the file's `name:`, else the file's name]")
@click.option("--grid", multiple=True, metavar="NAME=V,V", help="Vary a parameter over values; may be repeated.")
@click.option("--csv", "table", metavar="FILE", type=click.Path(), help="Cells as the rows of a CSV file.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="One value for all cells.")
@click.option("--arguments", metavar="STYLE", help="How parameters become arguments; none. [default: --{name}={value}]")
@click.option("--shared", multiple=True, metavar="PATH", type=click.Path(), help="Cells keep apart in PATH themselves.")
@click.option("--strict", is_flag=True, help="Refuse a value for all cells that contradicts a cell's own.")
@click.option("--priority", type=click.IntRange(-1_000_000, 1_000_000), metavar="N", help="Higher starts first.")
@click.option(
    "--after",
    multiple=True,
    metavar="CELL[,CELL]",
    shell_complete=complete_cells,
    help="Start only when these are proven done; GROUP/ is a whole group.",
)
@click.option("--not-before", metavar="TIME", help="Start then or later: 22:00, +2h, 2026-11-21T08:00.")
@click.option("--max-parallel", type=click.IntRange(min=1), metavar="N", help="At most so many cells at once.")
@click.option("--hold-after", type=click.IntRange(min=0), metavar="N", help="Stop the sweep after N failures in a row.")
@click.option(
    "--if-changed",
    type=click.Choice([choice.value for choice in IfChanged]),
    default=IfChanged.RUN.value,
    show_default=True,
    help="What to do when a script differs at the start from now.",
)
@click.option("--claims", metavar="DIR", type=click.Path(), help="Shared directory in which boxes claim cells.")
@click.option("--paused", is_flag=True, help="Hand in and pause; `holdfast queue resume NAME` starts it.")
@click.option("--wait", "wait", is_flag=True, help="Wait until every cell is proven done, as `holdfast wait`.")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Directory of the runs. [default: as for `run`]")
@click.option("--dry-run", is_flag=True, help="Show every cell, and hand nothing in.")
@_JSON
@job_options
def submit(
    *,
    source: str | None,
    command: tuple[str, ...],
    strict: bool,
    runs: str | None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - click's values
) -> int:
    """Hand in a sweep file, or a job with what varies. This is what `holdfast sweep SOURCE` does.

    Every combination of the --grid values is a cell, named after them; a cell that is in the queue already with the
    same configuration is left as it is, so handing in an edited file adds what is new. A parameter goes where the job
    has its placeholder {name}, else into the configuration that is resolved, else behind the command as --name=value.
    """
    from holdfast.cli.sweeping.handing import plan
    from holdfast.cli.sweeping.reporting import preview, report_contradictions

    made = plan(_read_asked(source, command, options))
    report_contradictions(made.built, strict=strict)
    if dry_run:
        return preview(made, environ=os.environ, as_json=as_json)
    return _hand_in(made, runs, wait=wait, as_json=as_json)


def _read_asked(source: str | None, command: tuple[str, ...], options: dict[str, Any]) -> Asked:
    from holdfast.cli.queueing.submitting import split_needs
    from holdfast.cli.queueing.times import parse_moment
    from holdfast.cli.sweeping.handing import Asked

    moment, claims = options["not_before"], options["claims"]
    return Asked(
        source,
        command,
        collect_nodes(options),
        name=options["name"],
        grid=options["grid"],
        settings=options["settings"],
        csv=options["table"],
        arguments=options["arguments"],
        shared=options["shared"],
        after=split_needs(options["after"]),
        priority=options["priority"],
        max_parallel=options["max_parallel"],
        hold_after=options["hold_after"],
        not_before=None if moment is None else parse_moment(moment, time.time()),
        if_changed=IfChanged(options["if_changed"]),
        paused=options["paused"],
        claims=None if claims is None else os.path.abspath(os.path.expanduser(claims)),
    )


def _hand_in(made: Plan, runs: str | None, *, wait: bool, as_json: bool, record: bool = True) -> int:
    from holdfast.cli.queueing.opening import open_queue
    from holdfast.cli.runs import choose_root
    from holdfast.cli.sweeping.handing import take
    from holdfast.cli.sweeping.reporting import report

    with open_queue() as queue:
        root = choose_root(runs)
        taken, notes = take(queue, made, runs_root=root, environ=os.environ, record=record)
        report(queue, made, taken, notes, as_json=as_json and not wait)
    if not wait:
        return 0
    from holdfast.cli.queueing.awaiting import wait_for_names

    return wait_for_names([f"{made.group}/"], everything=False, timeout=None, quiet=False, as_json=as_json)


def _drop_options(taken: click.Command) -> None:
    """Leave out the job's options that this verb says otherwise."""
    dropped = {f"job_{path.replace('.', '__')}" for path in _NOT_TAKEN}
    taken.params = [parameter for parameter in taken.params if parameter.name not in dropped]


_drop_options(submit)


# --------------------------------------------------------------------------------------------------------------- add


@command.command("add")
@_NAME
@click.option("--grid", multiple=True, metavar="NAME=V,V", help="Every combination is a new cell.")
@click.option("--cells", "table", metavar="FILE", type=click.Path(), help="New cells as the rows of a CSV file.")
@click.option("--accept-changes", is_flag=True, help="Also when the job's or configuration's files have changed.")
@click.option("--dry-run", is_flag=True, help="Show every new cell, and hand nothing in.")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Directory of the runs. [default: as for `run`]")
@_JSON
def add(
    *,
    name: str,
    grid: tuple[str, ...],
    table: str | None,
    accept_changes: bool,
    dry_run: bool,
    runs: str | None,
    as_json: bool,
) -> int:
    """Add cells to a sweep, also while it runs, over the job and the settings that it was handed in with.

    Cells that are there already are left as they are. Refused when a file that the others were made from has changed
    since, because the new cells could not be compared with them.
    """
    from holdfast.cli.queueing.opening import open_queue
    from holdfast.cli.sweeping.adding import plan_more
    from holdfast.cli.sweeping.reporting import preview, report_contradictions

    name = name.rstrip("/")
    with open_queue() as queue:
        made = plan_more(queue, name, axes=grid, table=table, accept_changes=accept_changes)
    report_contradictions(made.built, strict=False)
    if dry_run:
        return preview(made, environ=os.environ, as_json=as_json)
    return _hand_in(made, runs, wait=False, as_json=as_json, record=False)


# -------------------------------------------------------------------------------------------------------------- show


@command.command("show")
@_NAME
@click.option("--sort", metavar="NUMBER[:min|max]", help="Best first by this number; what is better, if need be.")
@click.option(
    "--metrics", metavar="NAME,NAME", help="Which numbers to show. [default: those that differ most usefully]"
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with every number.")
@_JSON
def show(*, name: str, sort: str | None, metrics: str | None, as_csv: bool, as_json: bool) -> int:
    """Show every cell: parameters, state, attempts, duration, and its numbers side by side.

    Numbers are what a cell last logged and those in its JSON results (declared artifacts, artifacts/metrics.json). Of a
    cell that is not proven done they are marked with ~ and are never the best.
    """
    from holdfast.cli.sweeping.showing import format_csv, print_rows, print_rows_json

    group, rows = _collect(name)
    if as_csv:
        sys.stdout.write(format_csv(rows))
    elif as_json:
        print_rows_json(group, rows, sort=sort)
    else:
        print_rows(group, rows, metrics=metrics, sort=sort)
    return 0


def _collect(name: str) -> tuple[str, list[Row]]:
    """The cells of a sweep, with their numbers.

    Raises:
        UsageError: there is no group of this name.
    """
    from holdfast.cli.queueing.changing import require_group
    from holdfast.cli.queueing.opening import open_queue
    from holdfast.cli.sweeping.results import collect

    with open_queue() as queue:
        group = require_group(queue, name).name
        return group, collect(queue, group)


@command.command("export")
@_NAME
@click.argument("file", type=click.Path())
@click.option("--overwrite", is_flag=True, help="Replace FILE.")
def export_table(*, name: str, file: str, overwrite: bool) -> int:
    """Write the whole table, every number of every cell, into FILE: NAME.csv or NAME.json.

    The column `final` says which numbers are results: those of cells that are proven done.
    """
    from holdfast.cli.sweeping.showing import describe_progress, export

    group, rows = _collect(name)
    export(group, rows, file, overwrite=overwrite)
    print(file)
    note(describe_progress(group, rows))
    return 0


# ---------------------------------------------------------------------------------------------------- check and retry


@command.command("check")
@_NAME
@click.option("--deep", is_flag=True, help="Read every result whole and compare its hash.")
@_JSON
def check(*, name: str, deep: bool, as_json: bool) -> int:
    """Hold the cells against what is on disk, and say what re-runs the rest; as `holdfast queue check NAME`.

    Exit code 0: every cell is proven done. 1: something is open.
    """
    from holdfast.agent.queueing.verification import reconcile
    from holdfast.cli.queueing.changing import require_group
    from holdfast.cli.queueing.checking import encode_report, print_report
    from holdfast.cli.queueing.opening import open_queue
    from holdfast.cli.render import print_json

    with open_queue() as queue:
        report = reconcile(queue, require_group(queue, name).name, deep=deep)
    print_json(encode_report(report)) if as_json else print_report(report)
    return 0 if report.complete else 1


@command.command("retry")
@_NAME
@click.option("-a", "--all", "everything", is_flag=True, help="Also the cancelled and the held ones.")
@_JSON
def retry(*, name: str, everything: bool, as_json: bool) -> int:
    """Queue the failed cells of a sweep again, each with the next attempt of its run and the same configuration."""
    from holdfast.cli.queueing import changing

    group = f"{name.rstrip('/')}/"
    return changing.report(changing.retry([group], failed=not everything), as_json=as_json)
