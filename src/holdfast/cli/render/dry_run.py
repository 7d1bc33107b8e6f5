"""What `run --dry-run` would do, for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.record import fields
from holdfast.model.units import format_bytes

from . import clean, heading, pairs
from .findings import print_findings

if TYPE_CHECKING:
    from holdfast.agent.checks.dry_run import DryRun


def print_plan(plan: DryRun) -> None:
    """The plan for people."""
    heading("job")
    pairs(list_job(plan.job), indent=2)
    heading("cards")
    _print_cards(plan)
    heading("added to the environment")
    pairs(sorted(plan.added.items()), indent=2)
    heading("checks")
    print_findings(plan.findings)
    print("nothing was started (dry run)")


def _print_cards(plan: DryRun) -> None:
    mark = " (simulated)" if plan.simulated else ""
    if not plan.job.gpus.wanted:
        print("  none asked for")
    elif plan.choice.problem:
        print(f"  none{mark}: {clean(plan.choice.problem)}")
    for uuid in plan.choice.devices:
        print(f"  take  {uuid}{mark}")
    for uuid, reason in plan.choice.rejected:
        print(f"  leave {uuid}{mark}: {clean(reason)}")


def list_job(spec: JobSpec) -> Iterator[tuple[str, object]]:
    """The job's fields that differ from their defaults, with the command as a shell would take it."""
    yield "name", spec.name
    yield "command", shlex.join(spec.command)
    yield "workdir", spec.workdir
    plain = JobSpec(spec.name, spec.command, spec.workdir)
    for field in fields(JobSpec):
        value, default = getattr(spec, field.name), getattr(plain, field.name)
        if value == default:
            continue
        encoded = wire.encode(value)
        if isinstance(encoded, dict):
            before: dict[str, Any] = wire.encode(default)
            for name, inner in encoded.items():
                if inner != before.get(name):
                    is_size = name.endswith("_bytes") and isinstance(inner, int)
                    yield f"{field.name}.{name}", format_bytes(inner) if is_size else inner
        else:
            yield field.name, encoded
