"""`run --dry-run` on this box: loaded for it alone, because a start leaves the checks to its supervisor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.checks.dry_run import build_plan
from holdfast.cli.render import print_record
from holdfast.cli.render.dry_run import print_plan

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec


def show_plan(spec: JobSpec, *, as_json: bool) -> int:
    """Print what a start of `spec` would do; its exit code."""
    plan = build_plan(spec, os.environ)
    print_record(plan) if as_json else print_plan(plan)
    return plan.exit_code
