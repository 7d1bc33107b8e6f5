"""``holdfast preflight``: every check that a run makes before it starts, without starting anything."""

from __future__ import annotations

import os

import click

from holdfast.cli.findings import check_job, print_findings, rank
from holdfast.cli.options import JobCommand, job_options, resolve_job
from holdfast.cli.render import print_json
from holdfast.model.errors import EXIT_WARNED, PreflightFailed
from holdfast.model.finding import Level

from . import SUMMARIES


@click.command(cls=JobCommand, short_help=SUMMARIES["preflight"])
@click.argument("job", required=False, type=click.Path())
@click.option("--strict", is_flag=True, help="Exit with 79 when there are warnings.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@job_options
def command(*, job: str | None, command: tuple[str, ...], strict: bool, as_json: bool, **options: object) -> int:
    """Check whether a job could run here now, and start nothing.

    Takes the same file, options and command as `run`. Exit code 0 when nothing failed, 78 otherwise; with --strict
    79 when there are warnings only. A check that could not be made is shown as unknown, which is not a pass.
    """
    spec = resolve_job(job, command, options)
    findings = check_job(spec, os.environ)
    grave = rank(findings, strict=strict)
    if rank(findings, strict=False) is Level.FAIL:
        code = PreflightFailed.exit_code
    else:
        code = EXIT_WARNED if grave is Level.FAIL else 0
    if as_json:
        print_json({"job": spec.name, "level": grave, "findings": findings, "exit_code": code})
    else:
        print_findings(findings, strict=strict)
    return code
