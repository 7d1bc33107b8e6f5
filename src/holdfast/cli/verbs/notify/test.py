"""``holdfast notify test``: one real message by every way, from where the job would run."""

from __future__ import annotations

import click

from holdfast.cli.job.jobfile import read_job
from holdfast.cli.job.options import KEPT, collect_nodes, take_options
from holdfast.cli.job.schema import KEYS
from holdfast.cli.job.user_defaults import read_defaults
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.path_type import PATH
from holdfast.cli.placed.wish import read_place
from holdfast.cli.render import note, print_record
from holdfast.core.messages.channels import list_targets
from holdfast.model.errors import UsageError
from holdfast.model.record import record

from . import VERBS

FAILED = 1


@record
class NotifyTrial:
    """Ways by which a message was sent, each with what went wrong (null: it was taken). `place` null: from here."""

    place: str | None
    problems: dict[str, str | None]


@click.command("test", short_help=VERBS["test"])
@click.argument("job", required=False, type=PATH)
@click.option("--on", metavar="PLACE", shell_complete=complete_places, help="Send it from this place.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@take_options(key for key in KEYS if key.group == "notify")
def command(*, job: str | None, on: str | None, as_json: bool, **options: object) -> int:
    """Send a test message by every way of JOB, of these options, and of your own defaults.

    Exit code 0: every way has taken it, which is not yet that somebody reads it. 1: one has not, and which is said.
    64: nobody is named.
    """
    place = read_place(on, no_code=False)
    under: dict[str, object] = {**read_defaults(), "name": "test", "command": KEPT}
    spec = read_job(job, collect_nodes(options), under=under, elsewhere=place is not None)
    if not list_targets(spec.notify, spec.channels):
        raise UsageError("nobody is named who could be told", hint="holdfast config set notify.email ADDRESS")
    if place is None:
        from holdfast.agent.messages.trial import send_trial  # lazy: one of the two ways

        problems = send_trial(spec.notify, spec.channels)
    else:
        from holdfast.desk.runs.notify import send_trial as send_there  # lazy: who has no places does not pay for them

        problems = send_there(place, spec.notify, spec.channels)
    if as_json:
        print_record(NotifyTrial(on, problems))
    else:
        for label, problem in problems.items():
            note(f"{label}: {f'not delivered: {problem}' if problem else 'taken'}")
    return FAILED if any(problems.values()) else 0
