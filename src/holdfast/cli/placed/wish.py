"""What a person said to ``submit --on`` or ``sweep submit --on`` beside the jobs themselves."""

from __future__ import annotations

from holdfast.model.errors import UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import record


@record
class JobsWish:
    """How jobs are to be handed in at `place`. `moment` is ``--not-before`` as it was typed."""

    place: str
    runs: str | None
    send_code: bool
    wait: bool
    dry_run: bool
    as_json: bool
    moment: str | None


def read_place(on: str | None, *, no_code: bool) -> str | None:
    """The place that is meant; None: this machine.

    Raises:
        UsageError: an option is for places alone.
    """
    if on not in (None, LOCAL):
        return on
    if no_code:
        raise UsageError("--no-code is for jobs at a place", hint="name it with --on PLACE")
    return None
