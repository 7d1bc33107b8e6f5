"""What an order would do, told without sending anything: from the job, its tree, and what was measured before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.desk.places.facts import read_facts
from holdfast.model.record import record

from .build import list_setup

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec
    from holdfast.model.order import CodeRef
    from holdfast.model.place import Place

    from .build import Draft

CHECKS = (
    "the bundle and the tree are hashed again there, and stay read-only",
    "all checks of `holdfast preflight` run there before the job starts",
    "the start is proven there: the job's own exec",
)
OF_SCHEDULER = (*CHECKS[:2], "its scheduler starts it when there is room; `run -d` does not wait for that")


@record
class OrderPlan:
    """An order that is not sent. `root`, `python` and `measured_at` are what is known of the box (None: nothing yet).

    `code` is the tree that would be there afterwards: what of it is there already is found out when it is sent.
    `script` is what the place's scheduler would be given, where it has one.
    """

    place: str
    host: str | None
    root: str | None
    python: str | None
    measured_at: str | None
    job: JobSpec
    job_sha256: str
    code: CodeRef | None
    setup: tuple[str, ...]
    checks: tuple[str, ...] = CHECKS
    script: str | None = None


def plan_order(draft: Draft, place: Place) -> OrderPlan:
    """What ordering `draft` at `place` would do."""
    facts = read_facts(place).facts
    return OrderPlan(
        place.name,
        place.host,
        place.root if facts is None else facts.root,
        place.python if facts is None else facts.python,
        None if facts is None else facts.measured_at,
        draft.job,
        draft.job_sha256,
        draft.code,
        list_setup(place),
    )
