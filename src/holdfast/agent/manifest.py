"""The manifest: what is about to run, where, on which cards, under which limits; written before the job is (OBS-01).

Completed at the end (OBS-02) by `closing`. Environment values go in by allow-list only and never when they look like
secrets (OBS-04).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ..core.environment import JobEnvironment, Placement, build_environment
from ..core.limits import bound_workers, cap_threads
from ..core.redact import redact_argv, redact_env
from ..host.clock import boot_id, utc_now
from ..model import wire
from ..model.gpu import InventorySource
from .plan import build_plan

if TYPE_CHECKING:
    from ..host.cgroup_group import Group
    from ..model.gpu import Inventory
    from ..model.identity import JobProcess, ProcessId
    from ..model.lease import LeasedDevice
    from .context import Context
    from .gear import Gear


def build_job(
    context: Context, devices: tuple[LeasedDevice, ...], inventory: Inventory | None = None, *, quiet: bool = False
) -> tuple[JobEnvironment, tuple[str, ...]]:
    """The job's whole environment and the argument vector that is exec'd; what people should know becomes events."""
    from ..host.allocation import imposed_allocation
    from . import promises

    spec = context.spec
    if context.box is None:
        context.box = _look_at_box(context)
    cpus, memory, torch = context.box
    plan = build_plan(context, context.created_epoch_s)
    placement = Placement(
        run_dir=context.run_dir,
        run_id=context.run_id,
        attempt=context.attempt,
        reason=context.reason,
        checkpoint_dir=context.shared(wire.CHECKPOINTS),
        artifact_dir=context.shared(wire.ARTIFACTS),
        heartbeat=context.recorder.path(wire.HEARTBEAT),
        checkpoint_request=context.recorder.path(wire.CHECKPOINT_REQUEST),
        devices=devices,
        deadline_epoch_s=promises.find_deadline(plan, time.time(), holds_cards=bool(devices)),
        threads=spec.threads or cap_threads(cpus, processes=max(1, len(devices))),
        workers=bound_workers(cpus, memory, processes=max(1, len(devices))),
        torch_version=torch,
        imposed=imposed_allocation(context.environ) is not None,
        grace_s=plan.grace_s,
        interruption_s=promises.find_interruption_time(context),
        library=promises.find_library(context),
        flight_dir=context.recorder.path(wire.FLIGHT),
        memory_share=_find_memory_share(context, devices, inventory),
    )
    environment = build_environment(context.environ, spec, placement)
    for finding in () if quiet else environment.findings:
        context.recorder.event("environment", finding=finding)
    return environment, _wrap_command(context, spec.command)


def _find_memory_share(
    context: Context, devices: tuple[LeasedDevice, ...], inventory: Inventory | None
) -> float | None:
    """What the run reserved of its shared cards, as a part of them; None where it did not."""
    if not context.spec.gpu.share or context.spec.gpu.memory_bytes is None or inventory is None:
        return None
    from .packing import tell_share

    return tell_share(context.spec, inventory, devices)


def _look_at_box(context: Context) -> tuple[float, int | None, str | None]:
    """Cores and bytes of memory that this run may use, and the version of the torch that it will import."""
    from ..host.cgroups import read_effective
    from ..host.packages import find_torch

    spec = context.spec
    effective = read_effective()
    cpus = spec.limits.cpus or effective.cpus or float(os.cpu_count() or 1)
    memory = spec.limits.memory_bytes or effective.memory_bytes
    return cpus, memory, find_torch(spec.command, context.environ, spec.workdir).version


def _wrap_command(context: Context, command: tuple[str, ...]) -> tuple[str, ...]:
    """Through a login shell when asked for: its files may change anything, so the devices are verified after them."""
    if not context.spec.login_shell:
        return command
    import sys

    shell = context.environ.get("SHELL") or "/bin/sh"
    verify = os.path.join(os.path.dirname(os.path.abspath(__file__)), "verify.py")
    return (shell, "-l", "-c", 'exec "$@"', "holdfast", sys.executable, "-I", "-S", verify, "--", *command)


def write_before(  # noqa: PLR0917 - all that a manifest is made of, once
    context: Context,
    devices: tuple[LeasedDevice, ...],
    gear: Gear,
    environment: JobEnvironment,
    argv: tuple[str, ...],
    inventory: Inventory,
) -> None:
    """Commit the manifest; the job does not exist yet."""
    leased = {device.card_uuid for device in devices}
    group = gear.group
    redacted, _ = redact_argv(argv)
    body: dict[str, Any] = {
        "run_id": context.run_id,
        "attempt": context.attempt,
        "reason": context.reason,
        "written_at": utc_now(),
        "host": os.uname().nodename,
        "kernel": os.uname().release,
        "boot_id": boot_id(),
        "uid": os.getuid(),
        "umask": context.umask,
        "command": redacted,
        "workdir": context.spec.workdir,
        "image": context.spec.image,
        "seed": context.spec.seed if context.spec.seed is not None else "not stated",
        "gpu_source": inventory.source if devices else None,
        "simulated": bool(devices) and inventory.source is InventorySource.SIMULATED,
        "driver": inventory.driver_version if devices else None,
        "devices": devices,
        "share": context.spec.gpu.share,
        "cards": [card for card in inventory.cards if card.uuid in leased],
        "containment": {"rung": gear.rung, "why": gear.rung_words},
        "cgroup": None
        if group is None
        else {"name": group.name, "unified": group.unified, "v1": group.v1, "controllers": group.controllers},
        "limits": gear.plan.limits,
        "nice": gear.plan.nice,
        "io_level": gear.plan.io_level,
        "cpus": gear.plan.cpus,
        "rules": context.rules.sources,
        "plan": build_plan(context, context.created_epoch_s),
        "environment": redact_env(environment.values),
        "environment_added": environment.added,
        "baseline": _baseline(context, group),
    }
    # Durable with the directory's next sync, which is that of the state with the job's ids, before the word to go.
    context.recorder.commit(wire.MANIFEST, wire.to_bytes(body), durable=False)


def _baseline(context: Context, group: Group | None) -> dict[str, object]:
    """What the box had counted at launch, for the explanation of an end that nobody explains."""
    from ..diagnosis.ended.baseline import SHM, read_baseline

    spec = context.spec
    places = {"run": context.run_dir, "checkpoints": context.shared(wire.CHECKPOINTS), "work": spec.workdir}
    if spec.checkpoints.mirror is not None:
        places["mirror"] = spec.checkpoints.mirror
    named = {"disk": spec.disk.paths, "data": spec.data}
    places |= {f"{role}{number or ''}": path for role, paths in named.items() for number, path in enumerate(paths)}
    try:
        found = read_baseline(group, {**places, "shm": SHM}, context.environ)
        # The end is judged from the run's directory, perhaps on another box: by the rules that held here.
        return {**found, "xids": {str(code): severity for code, severity in context.rules.xids.items()}}
    except Exception as error:  # noqa: BLE001 - a later explanation is not worth a start
        context.recorder.log(f"no baseline was taken: {type(error).__name__}: {error}")
        return {"unread": {"baseline": str(error)}}


def amend(context: Context, **facts: object) -> None:
    """Put more facts into the manifest; each is on disk in another record too (state, exit record)."""
    body = context.recorder.read_manifest()
    body.pop("schema", None)
    context.recorder.commit(wire.MANIFEST, wire.to_bytes({**body, **wire.encode(facts)}), durable=False)


def note_started(context: Context, keeper: ProcessId, job: JobProcess) -> None:
    """Add who keeps and who runs."""
    amend(context, keeper=keeper, job=job)


def write_baseline(context: Context) -> None:
    """Remember what the declared data look like, to see afterwards whether the job wrote to them (RAIL-07)."""
    if not context.spec.data:
        return
    from .postflight import write_data_baseline

    write_data_baseline(context.spec, context.run_dir, context.attempt)
