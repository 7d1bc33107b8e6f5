"""What `run --dry-run` says: the resolved job, the cards, the environment and the checks; it starts nothing.

The same functions decide here as in a real run; a card that is free now may be taken a second later.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.agent.cards.box import list_devices, read_box
from holdfast.agent.plan.cores import count_job_cores
from holdfast.agent.plan.sharing_by_memory import choose_torch_share
from holdfast.core.cards.choose import choose_cards
from holdfast.core.cards.packing import judge_room, memory_of, packing_rules
from holdfast.core.job.environment import LaunchContext, build_environment
from holdfast.core.job.limits import bound_workers, cap_threads
from holdfast.core.rules.rules import Rules, apply_rules, card_rules
from holdfast.host.contain.create import read_effective
from holdfast.host.files.rules_file import read_rules
from holdfast.host.formats.packages import find_torch
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed
from holdfast.model.finding import Finding, Level, worst
from holdfast.model.gpu import CardChoice, Inventory, InventorySource
from holdfast.model.job import JobSpec
from holdfast.model.lease import LeasedDevice
from holdfast.model.record import record

from .preflight import check_job


@record
class DryRun:
    """What a run would do. `added` are the variables that holdfast sets; the findings say what holds each limit."""

    job: JobSpec
    choice: CardChoice
    added: dict[str, str]
    findings: tuple[Finding, ...]
    simulated: bool = False

    @property
    def exit_code(self) -> int:
        """What the run's start would be answered with: 0, or 78 when a check fails."""
        return PreflightFailed.exit_code if worst(self.findings) is Level.FAIL else 0


def build_plan(spec: JobSpec, environ: Mapping[str, str]) -> DryRun:
    """Everything that a start would decide, decided now.

    Raises:
        StorageError: the rules file cannot be trusted or read.
    """
    rules = read_rules(environ)
    allowed, _ = apply_rules(spec, rules)
    inventory, choice = _choose(allowed, rules, environ) if allowed.gpus.wanted else (None, CardChoice())
    devices = () if inventory is None else _find_devices(inventory, choice)
    return DryRun(
        job=allowed,
        choice=choice,
        added=_preview_environment(allowed, devices, environ, inventory),
        findings=check_job(spec, environ, inventory=inventory),
        simulated=inventory is not None and inventory.source is InventorySource.SIMULATED,
    )


def _choose(spec: JobSpec, rules: Rules, environ: Mapping[str, str]) -> tuple[Inventory, CardChoice]:
    box = read_box()
    leased = {place.uuid: place.busy[0].holder for place in box.places if place.busy}
    limits, rooms = card_rules(spec, rules), None
    if spec.gpu.share:
        leased = {place.uuid: place.busy[0].holder for place in box.places if place.busy and not place.sharers}
        rooms = {
            place.uuid: judge_room(
                memory_of(place.card, place.part), place.sharers, spec.gpu.memory_bytes, packing_rules(limits)
            )
            for place in box.places
        }
    choice = choose_cards(
        spec.gpus,
        box.inventory,
        leased=leased,
        rules=limits,
        imposed=environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=environ.get("CUDA_DEVICE_ORDER"),
        rooms=rooms,
    )
    return box.inventory, choice


def _find_devices(inventory: Inventory, choice: CardChoice) -> tuple[LeasedDevice, ...]:
    known = {device.uuid: device for device in list_devices(inventory)}
    return tuple(known[uuid] for uuid in choice.devices)


def _preview_environment(
    spec: JobSpec, devices: tuple[LeasedDevice, ...], environ: Mapping[str, str], inventory: Inventory | None
) -> dict[str, str]:
    """The variables that would be added; what only a start decides is in angle brackets."""
    effective = read_effective()
    cpus = count_job_cores(spec.limits)
    processes = max(1, len(devices))
    run_dir = "<runs>/<run-id>"
    placement = LaunchContext(
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
        memory_share=None if inventory is None else choose_torch_share(spec, inventory, devices),
    )
    built = build_environment(environ, spec, placement)
    return {name: built.values[name] for name in built.added if built.values[name]}
