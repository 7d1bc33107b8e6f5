"""``holdfast limit``: other limits for a job that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.agent.caller import describe_caller
from holdfast.agent.control.job.change import RecordedJob, find_changes, read_recorded_job
from holdfast.agent.control.job.live_limits import change_limits
from holdfast.cli.completion import complete_runs
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.job.options import JobCommand, resolve_change, take_options
from holdfast.cli.job.schema import KEYS
from holdfast.cli.named_run import find_own
from holdfast.cli.path_type import PATH
from holdfast.cli.render import print_record
from holdfast.cli.render.limit import print_limits
from holdfast.core.job.live_limits import LIVE_FIELDS
from holdfast.model.errors import UsageError
from holdfast.model.units import parse_duration

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.agent.view.find import FoundRun
    from holdfast.model.origin import KeyChange

EPILOG = """\b
holdfast limit digits                          what is in force
holdfast limit digits --timeout +2h            two hours more
holdfast limit digits --memory 8GB --cpus 2
holdfast limit digits --memory none            no memory limit any more"""
OFFERED = [key for key in KEYS if key.field in LIVE_FIELDS]
TIMES = {key.path.replace(".", "__"): key for key in OFFERED if key.field.endswith("_s")}


class LimitCommand(JobCommand):
    """A command behind `--` is refused with what to do instead, so the usage does not offer one."""

    takes_command = False

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """As click does."""
        return click.Command.collect_usage_pieces(self, ctx)


@click.command(cls=LimitCommand, short_help=SUMMARIES["limit"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.option("--force", is_flag=True, help="Also where the job is above the new limit now, and would be killed by it.")
@click.option("--wait", "wait", default="15s", show_default=True, metavar="DURATION", help="How long to wait for it.")
@click.option("--dry-run", is_flag=True, help="Say what would change and what is in force, and ask for nothing.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@take_options(OFFERED, prefix="limit-")
def command(
    *,
    run: str,
    force: bool,
    wait: str,
    dry_run: bool,
    runs: str | None,
    as_json: bool,
    command: tuple[str, ...],
    **options: object,
) -> int:
    """Change limits, deadline or priority of the job of RUN while it runs, and print what is in force then.

    Without a limit among its options it changes nothing. Its supervisor changes them, all or none; the job is not
    touched otherwise. A time may be +DURATION: so much more than now. What was changed is recorded, stays when a
    supervisor takes over, and holds for the attempts after it.
    Exit code 78: refused, with the reason (nothing here can hold it, or the job is above it). 64: its job does not run.
    """
    if command:
        raise UsageError("the command of a running job cannot be changed", hint="holdfast restart RUN -- COMMAND")
    found = find_own(run, runs)
    dry_run = dry_run or all(value in (None, ()) for value in options.values())
    answer = change_limits(
        found.run_dir,
        lambda: _find_wanted(found, options),
        force=force,
        by=describe_caller(),
        wait_s=parse_duration_option(wait, "--wait"),
        dry_run=dry_run,
    )
    print_record(answer) if as_json else print_limits(answer, dry_run=dry_run)
    return answer.exit_code


def _find_wanted(found: FoundRun, options: dict[str, object]) -> tuple[KeyChange, ...]:
    recorded = read_recorded_job(found.run_dir)
    return find_changes(recorded, resolve_change(recorded.spec, None, (), _add_times(options, recorded)))


def _add_times(options: dict[str, object], recorded: RecordedJob) -> dict[str, object]:
    """The options with ``+2h`` as what is in force and two hours more.

    Raises:
        UsageError: nothing is in force that could be added to, or it is no duration.
    """
    found = dict(options)
    for name, value in options.items():
        key = TIMES.get(name.removeprefix("job_"))
        if key is None or not isinstance(value, str) or not value.startswith("+"):
            continue
        group, _, leaf = key.field.rpartition(".")
        now = getattr(getattr(recorded.spec, group), leaf)
        if now is None:
            raise UsageError(f"--{key.option} {value}: there is no limit to add to", hint=f"--{key.option} 4h sets one")
        try:
            found[name] = f"{now + parse_duration(value[1:]):.3f}"
        except ValueError as error:
            raise UsageError(f"--{key.option}: {error}", hint="write it like +2h") from error
    return found
