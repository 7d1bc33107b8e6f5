"""``holdfast run --on PLACE``: the job is read here, and carried out, supervised and recorded there."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.cli.render import keep_done, note, print_record
from holdfast.cli.render.order import print_order_plan
from holdfast.cli.render.start import print_started
from holdfast.core.job.nodes import refuse_nodes
from holdfast.core.slurm.contradictions import refuse_contradictions
from holdfast.core.slurm.warning_lead import find_lead_warning
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.cost.cap import refuse_over_cap
from holdfast.desk.orders.build import draft_job
from holdfast.desk.orders.choose_place import choose_place
from holdfast.desk.orders.journal import hold_order
from holdfast.desk.orders.plan import OF_SCHEDULER, plan_order
from holdfast.desk.orders.submit import submit_draft
from holdfast.desk.places.facts import read_facts
from holdfast.desk.route.hints import name_place
from holdfast.desk.route.send import send
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.record import record, replace
from holdfast.model.slurm import SLURM
from holdfast.platforms.open import open_platform
from holdfast.platforms.slurm.script import show_script

if TYPE_CHECKING:
    from holdfast.desk.orders.build import Draft
    from holdfast.model.job import JobSpec
    from holdfast.model.place import Place
    from holdfast.model.run import State
    from holdfast.platforms.base import OrderResult
    from holdfast.transfer.box import Box

    from .wish import RunWish

EXAMPLE_ID = "20260101-000000-{name}-0000"
"""What stands for the id of a run that is not made."""


@record
class StartedThere:
    """The answer of ``run -d --on --json``."""

    place: str
    run_id: str
    run_dir: str
    attempt: int
    fresh: bool
    state: State
    exit_code: int | None
    warnings: tuple[str, ...] = ()


def run(spec: JobSpec, wish: RunWish) -> int:
    """Have `spec` run at the place as it was asked for; the exit code."""
    answer = order(spec, wish)
    if answer is None:
        return 0
    return report(answer, as_json=wish.as_json) if wish.detach else _follow(answer, as_json=wish.as_json)


def order(spec: JobSpec, wish: RunWish) -> OrderResult | None:
    """Have `spec` taken at the place; None where it is only shown what that would be.

    Raises:
        HoldfastError: it was not taken, or its start failed.
    """
    assert wish.place is not None
    if wish.runs is not None:
        raise UsageError("--runs and --on do not go together", hint=f"the root of a place is `root` of [{wish.place}]")
    draft = None
    if "," in wish.place:
        draft = draft_job(spec, os.environ, send_code=wish.send_code)
        place = choose_place(wish.place, draft, waits=spec.gpu.wait_s > 0, tell=note)
        note(f"at {place.name}")
    else:
        place = find_place(wish.place)
    refuse_over_cap(place)
    if wish.asks_slurm and place.kind != SLURM:
        raise UsageError(f"--slurm is for places of kind slurm, and {place.name} is of kind {place.kind}")
    refuse_nodes(spec, SLURM if place.kind == SLURM else "")
    if draft is None:
        draft = draft_job(spec, os.environ, send_code=wish.send_code)
    draft = replace(draft, native=place.slurm, after=wish.after, there=wish.code)
    if place.kind == SLURM:
        options = {**draft.native, **draft.job.slurm}
        if wish.after and "dependency" in options:
            raise UsageError("--after and --slurm dependency say the same", hint="leave one of them out")
        refuse_contradictions(draft.job, options)
        if warning := find_lead_warning(draft.job, options):
            note(warning)
    for warning in () if draft.tree is None else draft.tree.warnings:
        note(warning)
    if wish.dry_run:
        plan = plan_order(draft, place)
        if place.kind == SLURM:
            plan = replace(plan, script=_show_script(draft, place), checks=OF_SCHEDULER)
        print_record(plan) if wish.as_json else print_order_plan(plan)
        return None
    box = open_box(place)
    answer = _submit(draft, box, wish)
    name = f"{place.name}:{answer.ref.run_id}"
    keep_done(f"{name} was started; holdfast show {name} says where it stands")
    if answer.problem is not None:
        note(f"{name} is there, and its start failed")
        raise answer.problem
    return answer


def _show_script(draft: Draft, place: Place) -> str:
    return show_script(draft.job, draft.native, read_facts(place).facts, EXAMPLE_ID.format(name=draft.job.name))


def _submit(draft: Draft, box: Box, wish: RunWish) -> OrderResult:
    return submit_draft(
        draft,
        box,
        open_platform(box),
        argv=sys.argv,
        run_id=wish.run_id,
        prove_s=wish.prove_s if wish.detach else None,
        tell=note,
    )


def report(answer: OrderResult, *, as_json: bool) -> int:
    """Say what was taken; the exit code."""
    started, ref = answer.started, answer.ref
    if started is None and ref.native_id is not None:
        print(f"{ref.place}:{ref.run_id}") if not as_json else print_record(ref)
        name = f"{ref.place}:{ref.run_id}"
        note(f"job {ref.native_id} of Slurm, which starts it; holdfast show {name} says where it stands")
        return 0
    if started is None:
        # Later attempts have followed: this order was answered long ago.
        print(f"{ref.place}:{ref.run_id}") if not as_json else print_record(ref)
        return 0
    if as_json:
        there = (ref.place, ref.run_id, ref.run_dir, started.attempt, ref.fresh, started.state, started.exit_code)
        print_record(StartedThere(*there, started.warnings))
    else:
        state = wire.encode(started.state)
        print_started(
            f"{ref.place}:{ref.run_id}",
            state,
            warnings=started.warnings,
            say=lambda text: note(name_place(text, ref.place)),
        )
    return started.exit_code or 0


def _follow(answer: OrderResult, *, as_json: bool) -> int:
    if not as_json:
        note(f"run {answer.ref.place}:{answer.ref.run_id}")
    words = ["attach", *(["--json"] if as_json else []), answer.ref.run_id]
    with hold_order(answer.ref.place, answer.ref.run_id):
        return send(open_box(find_place(answer.ref.place)), words)
