"""What ``holdfast restart`` takes: one list, for the verb and for a desk that reads the job file of a run elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.path_type import PATH
from holdfast.model.record import replace

from .env_file import env_file_option
from .options import take_options
from .schema import KEYS

Function = TypeVar("Function", bound=Callable[..., Any])

OFFERED = [replace(key, option="gpu-wait") if key.option == "wait" else key for key in KEYS if key.option]
"""`--wait` is how long to wait for the stop."""
_OPTIONS = (
    click.argument("run", shell_complete=complete_runs),
    click.option("-f", "--follow", is_flag=True, help="Follow the new attempt."),
    click.option("--job", "job", metavar="FILE", type=PATH, help="Read this job file anew; options stand over it."),
    click.option(
        "--wait", "wait", metavar="DURATION", help="How long to wait for the stop. [default: its grace and 10s]"
    ),
    click.option("--recorded", is_flag=True, help="Run what the last attempt recorded where files were changed since."),
    click.option("--no-code", is_flag=True, help="With --job at a place: whatever the code is here, the run's stays."),
    click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs."),
    click.option("--dry-run", is_flag=True, help="Say what would change, and stop and start nothing."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask whether results of an attempt may be overwritten."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text."),
    env_file_option,
    take_options(OFFERED),
)


def restart_options(function: Function) -> Function:
    """Give a click callback all of them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
