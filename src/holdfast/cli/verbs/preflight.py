"""``holdfast preflight``: every check that a run makes before it starts, without starting anything."""

from __future__ import annotations

import os

import click

from holdfast.cli.job.config_syntax import check_config
from holdfast.cli.job.options import JobCommand, job_options, refuse_slurm, resolve_job
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.path_type import PATH
from holdfast.cli.placed.wish import read_place
from holdfast.cli.render import print_record
from holdfast.cli.render.findings import print_findings

from . import SUMMARIES


@click.command(cls=JobCommand, short_help=SUMMARIES["preflight"])
@click.argument("job", required=False, type=PATH)
@click.option("--strict", is_flag=True, help="Exit with 79 when there are warnings.")
@click.option(
    "--on",
    metavar="PLACE",
    shell_complete=complete_places,
    help="Check it at a place: code is sent along, nothing is started.",
)
@click.option("--no-code", is_flag=True, help="With --on: send no code along.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@job_options
def command(
    *,
    job: str | None,
    command: tuple[str, ...],
    strict: bool,
    on: str | None,
    no_code: bool,
    as_json: bool,
    **options: object,
) -> int:
    """Check whether a job could run here now, and start nothing.

    Takes the same file, options and command as `run`. Exit code 0 when nothing failed, 78 otherwise; with --strict
    79 when there are warnings only. A check that could not be made is shown as unknown, which is not a pass.
    """
    place = read_place(on, no_code=no_code)
    refuse_slurm(options, place)
    spec = resolve_job(job, command, options, elsewhere=place is not None)
    if place is not None:
        from holdfast.cli.placed.ordered.preflight import check_there  # lazy: who has no places does not pay for them

        return check_there(spec, place, send_code=not no_code, strict=strict, as_json=as_json)
    from holdfast.agent.checks.preflight import examine_job  # lazy: a desk may lack what checks here need

    found = examine_job(spec, os.environ, strict=strict, known=check_config(spec.config))
    print_record(found) if as_json else print_findings(found.findings, strict=strict)
    return found.exit_code
