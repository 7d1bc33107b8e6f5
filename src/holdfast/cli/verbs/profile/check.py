"""``holdfast profile check``: what is wrong, doubtful or old."""

from __future__ import annotations

import click

from holdfast.cli.render import print_record
from holdfast.cli.render.findings import print_levels
from holdfast.cli.verbs.place.options import complete_profiles, json_option
from holdfast.core.profile.lint import lint
from holdfast.desk.profiles.read import list_profiles, load_profile, today
from holdfast.model.errors import EXIT_WARNED, HoldfastError, PreflightFailed
from holdfast.model.finding import Finding, Level, rank, worst
from holdfast.model.record import record

from . import VERBS


@record
class ProfileCheck:
    """What is wrong, doubtful or old in profiles. With --strict a warning made `level` a failure, and its exit 79."""

    level: Level
    findings: tuple[Finding, ...]
    exit_code: int


@click.command("check", short_help=VERBS["check"])
@click.argument("names", metavar="[PROFILE]...", nargs=-1, shell_complete=complete_profiles)
@click.option("--strict", is_flag=True, help="Warnings count: exit code 79.")
@json_option
def command(*, names: tuple[str, ...], strict: bool, as_json: bool) -> int:
    """Look for what is wrong, doubtful or old in PROFILEs; in all without one.

    Wrong (exit code 78): an unknown key, a fact without a day and a source, what looks like a secret, a DURABLE_DIR
    that goes with the machine. Old: verified more than half a year ago, which nothing final should rest on.
    """
    findings = tuple(finding for name in names or list_profiles() for finding in _check(name))
    level = rank(findings, strict=strict)
    failed = PreflightFailed.exit_code if worst(findings) is Level.FAIL else EXIT_WARNED
    report = ProfileCheck(level, findings, failed if level is Level.FAIL else 0)
    print_record(report) if as_json else print_levels(findings)
    return report.exit_code


def _check(name: str) -> tuple[Finding, ...]:
    try:
        return lint(load_profile(name), today())
    except HoldfastError as error:
        return tuple(Finding("profile", Level.FAIL, name, line, error.hint) for line in str(error).splitlines())
