"""``holdfast drill``: interrupt a script on purpose, and see whether it continues as if nothing had happened."""

from __future__ import annotations

import signal

import click

from holdfast.agent.drill.report import DrillRequest
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.interrupt import interruptible
from holdfast.cli.job.config_syntax import refuse_bad_configs
from holdfast.cli.job.options import JobCommand, job_options, refuse_slurm, resolve_job
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.path_type import PATH
from holdfast.cli.placed.wish import read_place
from holdfast.cli.render import note, print_record
from holdfast.cli.render.drill import print_rehearsal
from holdfast.desk.orders.paths import DeskPath

from . import SUMMARIES

EPILOG = """\b
holdfast drill job.yaml                                  three SIGKILLs at random steps
holdfast drill --kills 10 --drill-seed 7 -- python train.py    ten, at other steps
holdfast drill --stop --time 2m job.yaml                 one of them a TERM; two minutes of each run
holdfast drill --on gpu1 job.yaml                        at a place, with the code from here
holdfast drill --checkpoint-every 20 -- python train.py  save often enough for a short rehearsal"""


@click.command(cls=JobCommand, short_help=SUMMARIES["drill"], epilog=EPILOG)
@click.argument("job", required=False, type=PATH)
@click.option(
    "--kills",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    metavar="N",
    help="How many times to kill it.",
)
@click.option("--stop", is_flag=True, help="One of the interruptions is a TERM, as at a walltime or a preemption.")
@click.option(
    "--drill-seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of the random points at which to interrupt.",
)
@click.option(
    "--time", "time", default="5m", show_default=True, metavar="DURATION", help="How long the first run may be."
)
@click.option("--until", type=click.IntRange(min=1), metavar="STEP", help="Stop the first run at this step.")
@click.option("--inexact", is_flag=True, help="Accept values that differ, if only the steps continue.")
@click.option("--keep", metavar="DIR", type=PATH, help="Keep both runs in this new directory.")
@click.option(
    "--on", metavar="PLACE", shell_complete=complete_places, help="Rehearse it at a place: code is sent along."
)
@click.option("--no-code", is_flag=True, help="With --on: send no code along.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@job_options
def command(  # noqa: PLR0913 - its options
    *,
    job: str | None,
    command: tuple[str, ...],
    kills: int,
    stop: bool,
    drill_seed: int,
    time: str,
    until: int | None,
    inexact: bool,
    keep: str | None,
    on: str | None,
    no_code: bool,
    as_json: bool,
    **options: object,
) -> int:
    """Rehearse a job: run it once undisturbed, then again with SIGKILLs at random points, and compare.

    After each kill the same command is started again, as `holdfast restart` does. Compared are the steps, every value
    logged with `run.log`, and the states in the checkpoints, bit for bit. A job that takes longer than --time is
    stopped there, and compared up to there. Both runs are made in a directory of their own, which is removed at the
    end: what the script writes elsewhere, it writes there twice. With --on all of it happens at the place, --keep names
    a directory there, and a rehearsal whose link is lost ends.

    Exit code 0: it continues exactly. 1: it does not, or that could not be told; the verdict says what. Other codes:
    the job could not be started, as with `holdfast run`.
    """
    place = read_place(on, no_code=no_code)
    refuse_slurm(options, place)
    spec = resolve_job(job, command, options, elsewhere=place is not None)
    refuse_bad_configs((spec.config,) if place is None or isinstance(spec.config, DeskPath) else ())
    wanted = DrillRequest(
        kills=kills, stop=stop, seed=drill_seed, time_s=parse_duration_option(time, "--time"), until=until
    )
    if place is not None:
        from holdfast.cli.placed.ordered.drill import rehearse_there  # lazy: who has no places does not pay for them

        return rehearse_there(spec, wanted, place, inexact=inexact, keep=keep, send_code=not no_code, as_json=as_json)
    tell = _tell_nothing if as_json else note
    from holdfast.agent.drill.rehearsal import rehearse_job  # lazy: a desk may lack what that needs here

    with interruptible(signal.SIGTERM, signal.SIGHUP) as interrupted:
        report = rehearse_job(spec, wanted, inexact=inexact, keep=keep, tell=tell, interrupted=interrupted)
    print_record(report) if as_json else print_rehearsal(report)
    exit_code: int = report.exit_code
    return exit_code


def _tell_nothing(text: str) -> None:
    """For programs, who get the record."""
