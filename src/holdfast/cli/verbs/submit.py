"""``holdfast submit``: hand a job, or a file of commands, to the queue."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import JobCommand, job_options, resolve_job
from holdfast.cli.queueing.opening import complete_cells, complete_groups
from holdfast.model.errors import UsageError
from holdfast.model.queue import IfChanged

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.cli.queueing.submitting import Wishes
    from holdfast.model.job import JobSpec

EPILOG = """\b
Examples:
  holdfast submit train.yaml                                a job file
  holdfast submit --gpus 1 --name train -- python train.py  a command
  holdfast submit --after train -- python eval.py           only when train is proven done
  holdfast submit --lines night.txt --gpus 1                one cell for each line of a file
  holdfast submit --group night --max-parallel 2 --not-before 22:00 -- ./sweep.sh
  holdfast submit --dry-run train.yaml                      show it, hand nothing in

Exit code 0: it is on the disk and will be started. 64: refused, nothing was taken; 65: a mistake in a file."""
TAKEN_OVER = frozenset({"--priority", "--wait"})
"""Options of `run` that mean something else here: a queued cell waits for cards as long as it takes."""


def _leave_out_of_run(command: click.Command) -> None:
    """Take the job's options away that this verb says otherwise."""
    command.params = [
        parameter
        for parameter in command.params
        if not (TAKEN_OVER & set(parameter.opts) and (parameter.name or "").startswith("job_"))
    ]


@click.command(cls=JobCommand, short_help=SUMMARIES["submit"], epilog=EPILOG)
@click.argument("job", required=False, type=click.Path())
@click.option("--group", metavar="NAME", shell_complete=complete_groups, help="The group. [default: default]")
@click.option(
    "--priority",
    "priorities",
    multiple=True,
    metavar="N|low|normal",
    help="Order in the queue, higher first [default: 0]; a word is the job's CPU priority as in `run`.",
)
@click.option(
    "--after",
    multiple=True,
    metavar="CELL[,CELL]",
    shell_complete=complete_cells,
    help="Start only when these are proven done; GROUP/ is a whole group. May be repeated.",
)
@click.option("--not-before", metavar="TIME", help="Start then or later: 22:00, +2h, 2026-11-21T08:00.")
@click.option("--max-parallel", type=click.IntRange(min=1), metavar="N", help="At most so many of the group at once.")
@click.option(
    "--if-changed",
    type=click.Choice([choice.value for choice in IfChanged]),
    default=IfChanged.RUN.value,
    show_default=True,
    help="What to do when script or config differ at the start from now.",
)
@click.option(
    "--hold-after", type=click.IntRange(min=0), default=0, metavar="N", help="Stop the group after N failures in a row."
)
@click.option("--paused", is_flag=True, help="Hand in and pause the group; `holdfast queue resume` starts it.")
@click.option("--lean", is_flag=True, help="For many short commands without cards: one record each, no checks.")
@click.option("--claims", metavar="DIR", type=click.Path(), help="Shared directory in which boxes claim cells.")
@click.option("--lines", metavar="FILE", type=click.Path(), help="A cell for each line of FILE, which is a command.")
@click.option(
    "--shared",
    multiple=True,
    metavar="PATH",
    type=click.Path(),
    help="Several cells may write to PATH: they keep apart.",
)
@click.option("--wait", "wait", is_flag=True, help="Wait until it is proven done, as `holdfast wait`.")
@click.option(
    "--runs",
    metavar="DIR",
    type=click.Path(),
    help="Directory of the runs. [default: $HOLDFAST_RUNS, else ~/.local/share/holdfast/runs]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be handed in and what would start, and do neither.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@job_options
def command(
    *,
    job: str | None,
    command: tuple[str, ...],
    lines: str | None,
    runs: str | None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    **options: object,
) -> int:
    """Hand a job to the queue: it starts as soon as there is room for it, also after you have logged out.

    JOB and its options are those of `run`. The job is frozen as it is now: the file may change or go. Its environment
    is that of this shell. A worker of your own is started when there is none, and leaves when there is nothing to do.
    With --lines a file that is handed in again adds only the lines that are new.
    """
    from holdfast.cli.queueing.reporting import preview, report
    from holdfast.cli.queueing.submitting import bind_to_claims, build_submission, hand_in, make_cell, read_commands
    from holdfast.cli.runs import choose_root

    numbers, word = _split_priorities(options.pop("priorities"))
    spec = _resolve(job, command, lines, {**options, "job_priority": word})
    wishes = _read_wishes(options, lines=lines, priority=numbers)
    spec = bind_to_claims(spec, wishes)
    cells = (make_cell(spec, wishes, spec.name),) if lines is None else read_commands(lines, spec, wishes)
    root = choose_root(runs, remember=not dry_run)
    source = None if lines is None else os.path.abspath(lines)
    submission = build_submission(spec, cells, wishes, runs_root=root, source=source)
    if dry_run:
        return preview(spec, submission, wishes, environ=os.environ, as_json=as_json)
    from holdfast.cli.queueing.opening import open_queue

    with open_queue() as queue:
        taken, notes = hand_in(queue, spec, submission, environ=os.environ, wishes=wishes)
        report(queue, taken, notes, as_json=as_json and not wait)
    if not wait:
        return 0
    from holdfast.cli.queueing.awaiting import wait_for_names

    names = [f"{taken.group}/"] if lines is not None else [cell.label for cell in taken.cells]
    return wait_for_names(names, everything=False, timeout=None, quiet=False, as_json=as_json)


def _split_priorities(given: object) -> tuple[int, str | None]:
    """The queue's number and the job's word in what ``--priority`` was given."""
    number, word = 0, None
    assert isinstance(given, tuple)
    for text in given:
        try:
            number = int(text)
        except ValueError:
            word = text
            continue
        if abs(number) > 1_000_000:
            raise UsageError(f"--priority: {number} is out of range", hint="-1000000 to 1000000; higher starts first")
    return number, word


def _resolve(job: str | None, command: tuple[str, ...], lines: str | None, options: dict[str, object]) -> JobSpec:
    """The job; with a file of commands the one that each of them varies.

    Raises:
        UsageError: there are two sources of the command, or none.
    """
    if lines is None:
        return resolve_job(job, command, options)
    if command or job is not None:
        other = "a command behind `--`" if command else "a job file"
        raise UsageError(f"--lines: the commands are in {lines}, and there is {other}, too", hint="leave one out")
    from holdfast.core.cells import CELL_PLACEHOLDER

    # What each cell replaces; it never runs.
    return resolve_job(None, ("true", CELL_PLACEHOLDER), options)


def _read_wishes(options: dict[str, object], *, lines: str | None, priority: int) -> Wishes:
    from holdfast.cli.queueing.submitting import Wishes, choose_group, split_needs
    from holdfast.cli.queueing.times import parse_moment

    group, after, moment = options["group"], options["after"], options["not_before"]
    shared, claims = options["shared"], options["claims"]
    assert isinstance(shared, tuple)
    most, failures = options["max_parallel"], options["hold_after"]
    assert isinstance(after, tuple)
    return Wishes(
        group=choose_group(None if group is None else str(group), lines),
        priority=priority,
        needs=split_needs(after),
        not_before=None if moment is None else parse_moment(str(moment), time.time()),
        max_parallel=most if isinstance(most, int) else None,
        if_changed=IfChanged(str(options["if_changed"])),
        hold_after=failures if isinstance(failures, int) else 0,
        paused=bool(options["paused"]),
        lean=bool(options["lean"]),
        claims=None if claims is None else os.path.abspath(os.path.expanduser(str(claims))),
        named=options.get("job_name") is not None,
        shared=tuple(os.path.abspath(os.path.expanduser(path)) for path in shared),
    )


_leave_out_of_run(command)
