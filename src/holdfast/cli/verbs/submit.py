"""``holdfast submit``: hand a job, or a file of commands, to the queue."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_groups, complete_jobs
from holdfast.cli.job.config_syntax import refuse_bad_configs
from holdfast.cli.job.env_file import env_file_option
from holdfast.cli.job.options import JobCommand, job_options, refuse_slurm, resolve_job
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.path_type import PATH
from holdfast.cli.placed.wish import JobsWish, read_place
from holdfast.cli.sweep.lines import read_lines, to_jobs
from holdfast.core.moments import parse_moment
from holdfast.core.queue.identity import JOB_PLACEHOLDER
from holdfast.core.queue.submit_options import SubmitOptions, bind_to_claims, choose_group, make_job, split_needs
from holdfast.desk.orders.paths import DeskPath
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.job import JobSpec
from holdfast.model.queue import GroupKind, IfChanged, NewJob
from holdfast.model.record import replace
from holdfast.model.slurm import SLURM

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.cli.sweep.lines import CommandLine

EPILOG = """\b
Examples:
  holdfast submit train.yaml                                a job file
  holdfast submit --gpus 1 --name train -- python train.py  a command
  holdfast submit --after train -- python eval.py           only when train is proven done
  holdfast submit --lines night.txt --gpus 1                one job for each line of a file
  holdfast submit --group night --max-parallel 2 --not-before 22:00 -- ./sweep.sh
  holdfast submit --on gpu1 train.yaml                      to the queue of a place, with the code
  holdfast submit --dry-run train.yaml                      show it, hand nothing in

Exit code 0: it is on the disk and will be started. 64: refused, nothing was taken; 65: a mistake in a file."""
TAKEN_OVER = frozenset({"--priority", "--wait"})
"""Options of `run` that mean something else here: a queued job waits for cards as long as it takes."""


def _leave_out_of_run(command: click.Command) -> None:
    """Take the job's options away that this verb says otherwise."""
    command.params = [
        parameter
        for parameter in command.params
        if not (TAKEN_OVER & set(parameter.opts) and (parameter.name or "").startswith("job_"))
    ]


@click.command(cls=JobCommand, short_help=SUMMARIES["submit"], epilog=EPILOG)
@click.argument("job", required=False, type=PATH)
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
    metavar="JOB[,JOB]",
    shell_complete=complete_jobs,
    help="Start only when these jobs of the queue are proven done, each at its end; GROUP/ is a whole group. May be "
    "repeated.",
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
@click.option("--claims", metavar="DIR", type=PATH, help="Shared directory in which boxes claim jobs.")
@click.option("--lines", metavar="FILE", type=PATH, help="A job for each line of FILE, which is a command.")
@click.option(
    "--shared",
    multiple=True,
    metavar="PATH",
    type=PATH,
    help="Several jobs may write below PATH: they use different names there.",
)
@click.option("--wait", "wait", is_flag=True, help="Wait until it is proven done, as `holdfast wait`.")
@click.option(
    "--runs",
    metavar="DIR",
    type=PATH,
    help="Directory of the runs. [default: $HOLDFAST_RUNS, else ${XDG_DATA_HOME:-~/.local/share}/holdfast/runs]",
)
@click.option(
    "--on",
    metavar="PLACE",
    shell_complete=complete_places,
    help="Hand it to the queue of a place: code is sent along, and it runs there.",
)
@click.option("--no-code", is_flag=True, help="With --on: send no code along.")
@click.option("--dry-run", is_flag=True, help="Show what would be handed in and what would start, and do neither.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@env_file_option
@job_options
def command(  # noqa: PLR0913 - one for each option
    *,
    job: str | None,
    command: tuple[str, ...],
    lines: str | None,
    runs: str | None,
    on: str | None,
    no_code: bool,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    **options: object,
) -> int:
    """Hand a job to the queue: it starts as soon as there is room for it, also after you have logged out.

    JOB and its options are those of `run`. The job is frozen as it is now: the file may change or go. Its environment
    is that of this shell. A worker of your own is started when there is none, and leaves when there is nothing to do.
    With --lines a file that is handed in again adds only the lines that are new.

    With --on the job is read here, and its code goes along as with `run --on`; the place's queue has it then, and runs
    it whether this machine is there or not. If the link is lost the same command goes on, and nothing is there twice.
    At a place of Slurm it is one job of that, and --after names runs there, which are to be proven done before. With
    --lines it is a sweep there: arrays of Slurm, under the file's name.
    """
    place = read_place(on, no_code=no_code)
    refuse_slurm(options, place)
    numbers, word = _split_priorities(options.pop("priorities"))
    spec = _resolve(job, command, lines, {**options, "job_priority": word}, elsewhere=place is not None)
    wishes = _read_wishes(options, lines=lines, priority=numbers, elsewhere=place is not None)
    spec = bind_to_claims(spec, wishes)
    if place is not None:
        moment = None if options["not_before"] is None else str(options["not_before"])
        wish = JobsWish(place, runs, not no_code, wait, dry_run, as_json, moment)
        return _submit_there(spec, lines, wishes, wish)
    commands = () if lines is None else read_lines(lines)
    jobs = (make_job(spec, wishes, spec.name),) if lines is None else _make_jobs(commands, spec, wishes)
    from holdfast.cli.run.submit_here import submit_here  # lazy: a desk may lack what a queue of this machine needs

    try:
        return submit_here(spec, jobs, wishes, lines=lines, runs=runs, wait=wait, dry_run=dry_run, as_json=as_json)
    except UsageError as error:
        if lines is None or "jobs" not in error.details:
            raise
        raise _name_lines(error, {one.name: f"{lines}:{one.line}" for one in commands}) from error


def _name_lines(error: UsageError, places: Mapping[str, str]) -> UsageError:
    """A refusal of jobs of a file of commands, each mistake with the first line that has it; `places` by job."""
    jobs = error.details.get("jobs")
    of_jobs = jobs if isinstance(jobs, dict) else {}
    texts = [f"{places[of_jobs[text]]}: {text}" if text in of_jobs else text for text in str(error).split("\n")]
    return UsageError("\n".join(texts), hint=error.hint, details=error.details)


def _submit_there(spec: JobSpec, lines: str | None, wishes: SubmitOptions, wish: JobsWish) -> int:
    """Hand the job, or the jobs of a file of commands, in at a place; the exit code."""
    from holdfast.cli.placed import enqueue as there  # lazy: who has no places does not pay for them

    place = there.find_place_for_jobs(wish, wishes.claims)
    refuse_bad_configs((spec.config,) if isinstance(spec.config, DeskPath) else ())
    if place.kind == SLURM and lines is None:
        from holdfast.cli.placed.ordered.submit import hand_in  # lazy: for places of Slurm alone

        return hand_in(spec, place, wishes, wish)
    draft = there.draft_base(spec, wish)
    base = draft.job
    jobs = (make_job(base, wishes, base.name),) if lines is None else _make_jobs(read_lines(lines), base, wishes)
    kind, source = (GroupKind.PLAIN, None) if lines is None else (GroupKind.LINES, os.path.basename(lines))
    code: int = there.hand_in(draft, jobs, wishes, place, wish, kind=kind, source=source)
    return code


def _make_jobs(commands: Sequence[CommandLine], spec: JobSpec, wishes: SubmitOptions) -> tuple[NewJob, ...]:
    """The jobs of a file of commands, over the job that the options describe."""
    return tuple(
        replace(
            made,
            needs=(*made.needs, *wishes.needs),
            priority=made.priority or wishes.priority,
            not_before=wishes.not_before,
            expected_s=spec.expected_s if made.expected_s is None else made.expected_s,
        )
        for made in to_jobs(commands, wire.encode(spec))
    )


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


def _resolve(
    job: str | None, command: tuple[str, ...], lines: str | None, options: dict[str, object], *, elsewhere: bool
) -> JobSpec:
    """The job; with a file of commands the one that each of them varies.

    Raises:
        UsageError: there are two sources of the command, or none.
    """
    if lines is None:
        return resolve_job(job, command, options, elsewhere=elsewhere, queued=True)
    if options.get("job_name") is not None:
        raise UsageError(
            "--name: each line of the file is a job with a name of its own", hint="--group NAME names them together"
        )
    if command or job is not None:
        other = "a command behind `--`" if command else "a job file"
        raise UsageError(f"--lines: the commands are in {lines}, and there is {other}, too", hint="leave one out")

    # What each job replaces; it never runs.
    return resolve_job(None, ("true", JOB_PLACEHOLDER), options, elsewhere=elsewhere, queued=True)


def _read_wishes(options: dict[str, object], *, lines: str | None, priority: int, elsewhere: bool) -> SubmitOptions:
    group, after, moment = options["group"], options["after"], options["not_before"]
    shared, claims = options["shared"], options["claims"]
    assert isinstance(shared, tuple)
    most, failures = options["max_parallel"], options["hold_after"]
    assert isinstance(after, tuple)
    return SubmitOptions(
        group=choose_group(None if group is None else str(group), lines),
        priority=priority,
        needs=split_needs(after),
        not_before=None if moment is None else parse_moment(str(moment), time.time()),
        max_parallel=most if isinstance(most, int) else None,
        if_changed=IfChanged(str(options["if_changed"])),
        hold_after=failures if isinstance(failures, int) else 0,
        paused=bool(options["paused"]),
        claims=None if claims is None else _find_path(str(claims), elsewhere=elsewhere),
        named=options.get("job_name") is not None,
        shared=tuple(_find_path(path, elsewhere=elsewhere) for path in shared),
    )


def _find_path(text: str, *, elsewhere: bool) -> str:
    """An absolute path; of a place as it was written, because it is the place's."""
    return text if elsewhere else os.path.abspath(os.path.expanduser(text))


_leave_out_of_run(command)
