"""What `run --dry-run` says: the resolved job, the cards, the environment and the checks; it starts nothing.

The same functions decide here as in a real run; a card that is free now may be taken a second later.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.model import wire
from holdfast.model.errors import PreflightFailed
from holdfast.model.finding import Finding, Level, worst
from holdfast.model.gpu import Choice, InventorySource
from holdfast.model.job import JobSpec

from . import render
from .findings import check_job, print_findings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.core.rules import Rules
    from holdfast.model.gpu import Inventory
    from holdfast.model.lease import LeasedDevice


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do. `added` are the variables that holdfast sets; the findings say what holds each limit."""

    job: JobSpec
    choice: Choice
    added: dict[str, str]
    findings: tuple[Finding, ...]
    simulated: bool = False

    @property
    def exit_code(self) -> int:
        """What the run's start would be answered with: 0, or 78 when a check fails."""
        return PreflightFailed.exit_code if worst(self.findings) is Level.FAIL else 0


def build_plan(spec: JobSpec, environ: Mapping[str, str]) -> Plan:
    """Everything that a start would decide, decided now.

    Raises:
        StorageError: the rules file cannot be trusted or read.
    """
    from holdfast.core.rules import apply_rules
    from holdfast.host.rulesfile import read_rules

    rules = read_rules(environ)
    allowed, _ = apply_rules(spec, rules)
    inventory, choice = _choose(allowed, rules, environ) if allowed.gpus.wanted else (None, Choice())
    devices = () if inventory is None else _find_devices(inventory, choice)
    return Plan(
        job=allowed,
        choice=choice,
        added=_preview_environment(allowed, devices, environ, inventory),
        findings=check_job(spec, environ, inventory=inventory),
        simulated=inventory is not None and inventory.source is InventorySource.SIMULATED,
    )


def _choose(spec: JobSpec, rules: Rules, environ: Mapping[str, str]) -> tuple[Inventory, Choice]:
    from holdfast.core.cards import choose
    from holdfast.core.rules import card_rules

    from .cards import read_box

    box = read_box()
    leased = {place.uuid: place.busy[0].holder for place in box.places if place.busy}
    limits, rooms = card_rules(spec, rules), None
    if spec.gpu.share:
        from holdfast.core.packing import judge_room, memory_of, packing_rules

        leased = {place.uuid: place.busy[0].holder for place in box.places if place.busy and not place.sharers}
        rooms = {
            place.uuid: judge_room(
                memory_of(place.card, place.part), place.sharers, spec.gpu.memory_bytes, packing_rules(limits)
            )
            for place in box.places
        }
    choice = choose(
        spec.gpus,
        box.inventory,
        leased=leased,
        rules=limits,
        imposed=environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=environ.get("CUDA_DEVICE_ORDER"),
        rooms=rooms,
    )
    return box.inventory, choice


def _find_devices(inventory: Inventory, choice: Choice) -> tuple[LeasedDevice, ...]:
    from .cards import list_devices

    known = {device.uuid: device for device in list_devices(inventory)}
    return tuple(known[uuid] for uuid in choice.devices)


def _preview_environment(
    spec: JobSpec, devices: tuple[LeasedDevice, ...], environ: Mapping[str, str], inventory: Inventory | None
) -> dict[str, str]:
    """The variables that would be added; what only a start decides is in angle brackets."""
    from holdfast.agent.packing import tell_share
    from holdfast.core.environment import Placement, build_environment
    from holdfast.core.limits import bound_workers, cap_threads
    from holdfast.host.cgroups import read_effective
    from holdfast.host.packages import find_torch

    effective = read_effective()
    cpus = spec.limits.cpus or effective.cpus or float(os.cpu_count() or 1)
    processes = max(1, len(devices))
    run_dir = "<runs>/<run-id>"
    placement = Placement(
        run_dir=run_dir,
        run_id="<run-id>",
        attempt=1,
        reason="start",
        checkpoint_dir=f"{run_dir}/{wire.CHECKPOINTS}",
        artifact_dir=f"{run_dir}/{wire.ARTIFACTS}",
        heartbeat=f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}",
        checkpoint_request=f"{wire.attempt_dir(run_dir, 1)}/{wire.CHECKPOINT_REQUEST}",
        devices=devices,
        threads=spec.threads or cap_threads(cpus, processes=processes),
        workers=bound_workers(cpus, spec.limits.memory_bytes or effective.memory_bytes, processes=processes),
        torch_version=find_torch(spec.command, environ, spec.workdir).version,
        interruption_s=spec.checkpoints.interruptions_s,
        memory_share=None if inventory is None else tell_share(spec, inventory, devices),
    )
    built = build_environment(environ, spec, placement)
    return {name: built.values[name] for name in built.added if built.values[name]}


def print_plan(plan: Plan) -> None:
    """The plan for people."""
    render.heading("job")
    render.pairs(_list_job(plan.job), indent=2)
    render.heading("cards")
    _print_cards(plan)
    render.heading("added to the environment")
    render.pairs(sorted(plan.added.items()), indent=2)
    render.heading("checks")
    print_findings(plan.findings)
    print("nothing was started (dry run)")


def _print_cards(plan: Plan) -> None:
    mark = " (simulated)" if plan.simulated else ""
    if not plan.job.gpus.wanted:
        print("  none asked for")
    elif plan.choice.problem:
        print(f"  none{mark}: {render.clean(plan.choice.problem)}")
    for uuid in plan.choice.devices:
        print(f"  take  {uuid}{mark}")
    for uuid, reason in plan.choice.rejected:
        print(f"  leave {uuid}{mark}: {render.clean(reason)}")


def _list_job(spec: JobSpec) -> Iterator[tuple[str, object]]:
    """The job's fields that differ from their defaults, with the command as a shell would take it."""
    import shlex
    from dataclasses import fields

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
                    yield f"{field.name}.{name}", inner
        else:
            yield field.name, encoded
