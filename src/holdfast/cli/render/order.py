"""What ``run --on PLACE --dry-run`` would do, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.units import format_bytes, format_count

from . import heading, pairs
from .dry_run import list_job

if TYPE_CHECKING:
    from holdfast.desk.orders.plan import OrderPlan

UNKNOWN = "not measured yet; the box says when it is reached"


def print_order_plan(plan: OrderPlan) -> None:
    """The plan for people."""
    heading("place")
    where = "this machine" if plan.host is None else plan.host
    root, python = plan.root or UNKNOWN, plan.python or UNKNOWN
    pairs([("name", plan.place), ("host", where), ("runs", root), ("python", python)], indent=2)
    heading("code")
    if plan.code is None:
        print("  none is sent: the working directory is the box's own")
    else:
        files = format_count(plan.code.files, "file")
        print(f"  {files}, {format_bytes(plan.code.bytes)}, tree {plan.code.tree[:16]}")
        print("  what is there already is not sent again")
    heading("job")
    pairs(list_job(plan.job), indent=2)
    for line in plan.setup:
        print(f"  before it: {line}")
    if plan.script is not None:
        heading("script")
        print(plan.script, end="")
    heading("checks")
    for check in plan.checks:
        print(f"  {check}")
    print("nothing was sent (dry run)")
