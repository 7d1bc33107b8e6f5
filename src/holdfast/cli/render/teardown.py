"""The gate before a teardown in words: each condition, what is missing, then the plan; the verb only once approved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import clean, heading, note, paint, pairs

if TYPE_CHECKING:
    from holdfast.desk.teardown.conditions import Condition
    from holdfast.desk.teardown.gate import Gate
    from holdfast.desk.teardown.plan import Plan
    from holdfast.model.teardown import Approval, GoneCheck

MOST_NAMED = 5
MARKS = {"yes": "pass", "no": "fail", "could not look": "unknown"}


def print_gate(gate: Gate, *, dry_run: bool) -> None:
    """The conditions, and what may be approved; not the verb itself."""
    for condition in gate.conditions:
        _print_condition(condition)
    if gate.word:
        print(clean(gate.word))
    if not gate.open:
        missing = [each.name for each in gate.conditions if each.holds != "yes"]
        more = f", and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        note(f"{gate.place} is not to be given up: {', '.join(missing[:MOST_NAMED])}{more}")
        return
    if gate.plan is None:
        return
    print()
    _print_plan(gate.plan)
    if dry_run:
        note(f"nothing was approved (dry run); the plan is {gate.plan_hash}")


def _print_condition(condition: Condition) -> None:
    first, *more = clean(condition.seen, keep_newlines=True).split("\n")
    print(f"{paint(MARKS[condition.holds])}  {clean(condition.name)}: {first}")
    for line in more:
        print(f"      {line}")
    if condition.command and condition.holds != "yes":
        print(f"      -> {clean(condition.command)}")


def _print_plan(plan: Plan) -> None:
    back = "cannot be taken back" if plan.irreversible else "can be taken back"
    meter = {True: "stops", False: "goes on", None: "it is not known whether it stops"}[plan.stops_meter]
    rows = [
        ("the act", f"{plan.verb} of {plan.place} ({plan.host}), which {back}"),
        ("destroys", "\n".join(plan.destroys) or "what it destroys is not known"),
        ("keeps", "\n".join(plan.keeps) or "nothing that is known"),
        ("the meter", meter),
        ("bills on", "\n".join(plan.still_bills) or "nothing that is known"),
    ]
    rows += [("left behind", "\n".join(f"{run}: {why}" for run, why in plan.left.items()))] if plan.left else []
    pairs(rows)


def print_approved(gate: Gate, used: Approval) -> None:
    """The provider's own verb, now that its approval is used up, and what comes after it."""
    assert gate.plan is not None
    print()
    heading(f"Approved by {used.by}, once. holdfast ends nothing: now do this yourself, in this order.")
    for number, step in enumerate((gate.plan.how, *gate.plan.steps), start=1):
        print(f"  {number}. {clean(step)}")


def print_check(place: str, found: GoneCheck, *, is_over: bool) -> None:
    """What the provider's status said, and whether that is what the act was to lead to."""
    words = {
        "gone": f"{place} is gone",
        "stopped": f"{place} is stopped" if is_over else f"{place} is stopped and not gone",
        "there": f"{place} is still there and bills",
        "unknown": f"whether {place} is gone could not be told, so it counts as there",
    }[found.state]
    print(clean(f"{words}: {found.seen}"))
    if found.state == "unknown":
        note("look at the provider's own page: what it says is what you pay")
