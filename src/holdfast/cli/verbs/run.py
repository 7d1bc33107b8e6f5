"""``holdfast run``: resolve a job, start it under a supervisor of its own, follow it or return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.job.config_syntax import refuse_bad_configs
from holdfast.cli.job.env_file import env_file_option
from holdfast.cli.job.options import JobCommand, asks_slurm, job_options, refuse_slurm, resolve_job, resolve_like
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note
from holdfast.cli.run.wish import RunWish
from holdfast.desk.orders.paths import DeskPath
from holdfast.model.errors import UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import replace

from . import SUMMARIES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from holdfast.model.job import JobSpec
    from holdfast.model.order import CodeRef

EPILOG = """\b
holdfast run --gpus 1 --timeout 4h -- python train.py --lr 3e-4
holdfast run -d train.yaml                          come back; the job goes on
holdfast run --on gpu1 --gpus 2 -- torchrun train.py       on another machine"""


def _complete_runs(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from holdfast.cli.completion import complete_runs  # lazy: at a TAB alone

    return complete_runs(context, param, incomplete)


@click.command(cls=JobCommand, short_help=SUMMARIES["run"], epilog=EPILOG)
@click.argument("job", required=False, type=PATH)
@click.option("-d", "--detach", is_flag=True, help="Return as soon as the start is proven; the job goes on.")
@click.option(
    "--prove",
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="With -d: how long the job must live to count as started; 0: only that its program was executed.",
)
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
    help="Run it at a place; the code is sent along. A,B: the first with the cards.",
)
@click.option("--run-id", metavar="ID", help="With --on: the id of the run; the same id is never a second run.")
@click.option("--no-code", is_flag=True, help="With --on: send no code along.")
@click.option(
    "--like",
    metavar="RUN",
    shell_complete=_complete_runs,
    help="The job of that earlier run, here or PLACE:RUN, as a new one there; options and a command change it.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@env_file_option
@job_options
def command(  # noqa: PLR0913 - one for each option
    *,
    job: str | None,
    command: tuple[str, ...],
    detach: bool,
    prove: str,
    runs: str | None,
    on: str | None,
    run_id: str | None,
    no_code: bool,
    like: str | None,
    dry_run: bool,
    as_json: bool,
    **options: object,
) -> int:
    """Run a job: leased, contained, supervised, limited, recorded.

    JOB is a YAML or TOML file; options win over it. Without a file write the command behind `--`. The job is detached:
    `run` only follows it, so a lost terminal ends nothing, and its standard input is empty. Ctrl-C asks it to stop, a
    second one ends it at once. The exit code is the job's own.
    """
    place = None if on == LOCAL else on
    if place is None and (run_id is not None or no_code):
        raise UsageError("--run-id and --no-code are for a run at a place", hint="name it with --on PLACE")
    refuse_slurm(options, place)
    code = None
    if like is not None:
        spec, code = _resolve_like(like, job, command, options, place, send_code=not no_code)
    else:
        spec = resolve_job(job, command, options, elsewhere=place is not None)
    refuse_bad_configs((spec.config,) if place is None or isinstance(spec.config, DeskPath) else ())
    wish = RunWish(
        job, detach, parse_duration_option(prove, "--prove"), runs, dry_run, as_json, place, run_id, not no_code
    )
    wish = replace(wish, asks_slurm=asks_slurm(options), code=code)
    if place is None:
        from holdfast.cli.run.here import run as run_here  # lazy: a desk may lack what a start needs

        return run_here(spec, wish)
    from holdfast.cli.run.there import run as run_there  # lazy: who has no places does not pay for them

    return run_there(spec, wish)


def _resolve_like(
    like: str,
    job: str | None,
    command: tuple[str, ...],
    options: dict[str, object],
    place: str | None,
    *,
    send_code: bool,
) -> tuple[JobSpec, CodeRef | None]:
    """The job of another run as the options and a command change it, and its code where the place has that already.

    Raises:
        HoldfastError: there is no such run, a job file was named, too, or something of it cannot be carried over.
    """
    if job is not None:
        raise UsageError("--like and a job file do not go together", hint="leave one out; options change either")
    if place is not None or ":" in like.partition("/")[0]:
        from holdfast.cli.run.like import resolve_elsewhere  # lazy: for a run of another place alone

        found = resolve_elsewhere(like, place or LOCAL, command, options, send_code=send_code)
        return found.job, found.code
    from holdfast.agent.control.job.change import read_recorded_job  # lazy: for --like alone
    from holdfast.cli.named_run import find_readable  # lazy: for --like alone

    run = find_readable(like, None)
    before = read_recorded_job(run.run_dir)
    note(f"like {run.run_id}")
    return resolve_like(before.spec, command, options), None
