"""The manifest: what is about to run, where, on which cards, under which limits; written before the job is (OBS-01).

Completed at the end (OBS-02) by `Finalizer`. Environment values go in by allow-list only and never when they look like
secrets (OBS-04).
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast.agent.detached import build_command
from holdfast.agent.in_job import device_check
from holdfast.agent.plan.cores import count_job_cores
from holdfast.agent.supervise.plan import build_plan
from holdfast.agent.view.source_change import read_code
from holdfast.core.job.environment import JobEnvironment, LaunchContext, build_environment
from holdfast.core.job.limits import bound_workers, cap_threads
from holdfast.core.job.redact import redact_argv, redact_env
from holdfast.diagnosis.ended.baseline import SHM, read_baseline
from holdfast.host.box import read_box
from holdfast.host.clock import utc_now
from holdfast.host.contain.create import read_effective
from holdfast.host.files import files
from holdfast.host.formats.packages import find_interpreter, find_torch
from holdfast.host.gpu.allocation import imposed_allocation
from holdfast.model import wire
from holdfast.model.gpu import InventorySource

from . import job_context

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.host.contain.group import ControlGroup
    from holdfast.model.gpu import Inventory
    from holdfast.model.identity import JobProcess, ProcessId
    from holdfast.model.lease import LeasedDevice
    from holdfast.model.origin import FileCopy

    from .containment import Containment


def build_job(
    context: SupervisorContext,
    devices: tuple[LeasedDevice, ...],
    inventory: Inventory | None = None,
    *,
    quiet: bool = False,
) -> tuple[JobEnvironment, tuple[str, ...]]:
    """The job's whole environment and the argument vector that is exec'd; what people should know becomes events."""
    spec = context.spec
    if context.box is None:
        context.box = _look_at_box(context)
    cpus, memory, torch = context.box
    plan = build_plan(context, context.created_epoch_s)
    placement = LaunchContext(
        run_dir=context.run_dir,
        run_id=context.run_id,
        attempt=context.attempt,
        reason=context.why_begun,
        checkpoint_dir=context.shared(wire.CHECKPOINTS),
        artifact_dir=context.shared(wire.ARTIFACTS),
        heartbeat=context.recorder.path(wire.HEARTBEAT),
        checkpoint_request=context.recorder.path(wire.CHECKPOINT_REQUEST),
        devices=devices,
        deadline_epoch_s=job_context.find_deadline(plan, time.time(), holds_cards=bool(devices)),
        threads=spec.threads or cap_threads(cpus, processes=max(1, len(devices))),
        workers=bound_workers(cpus, memory, processes=max(1, len(devices))),
        torch_version=torch,
        imposed=_is_pinned(context, devices),
        grace_s=plan.grace_s,
        interruption_s=job_context.find_interruption_time(context),
        library=job_context.find_library(context),
        flight_dir=context.recorder.path(wire.FLIGHT),
        memory_share=_find_memory_share(context, devices, inventory),
    )
    base = context.environ if spec.container.image is None else context.passed_environ
    environment = build_environment(base, spec, placement)
    for finding in () if quiet else environment.findings:
        context.recorder.event("environment", finding=finding)
    return environment, _lead_nodes(context, _wrap_command(context, spec.command))


def _is_pinned(context: SupervisorContext, devices: tuple[LeasedDevice, ...]) -> bool:
    """Whether a scheduler has pinned the job to its cards already; one that only names them leaves that to us."""
    given = imposed_allocation(context.environ) is not None
    return given and ("CUDA_VISIBLE_DEVICES" in context.environ or not devices)


def _find_memory_share(
    context: SupervisorContext, devices: tuple[LeasedDevice, ...], inventory: Inventory | None
) -> float | None:
    """What the run reserved of its shared cards, as a part of them; None where it did not."""
    if not context.spec.gpu.share or context.spec.gpu.memory_bytes is None or inventory is None:
        return None
    from holdfast.agent.plan.sharing_by_memory import choose_torch_share  # lazy: for shared cards alone

    return choose_torch_share(context.spec, inventory, devices)


def _look_at_box(context: SupervisorContext) -> tuple[float, int | None, str | None]:
    """Cores and bytes of memory that this run may use, and the version of the torch that it will import."""
    spec = context.spec
    memory = spec.limits.memory_bytes or read_effective().memory_bytes
    if spec.container.image is not None:
        # Which torch an image has only the image knows.
        return count_job_cores(spec.limits), memory, None
    return count_job_cores(spec.limits), memory, find_torch(spec.command, context.environ, spec.workdir).version


def _wrap_command(context: SupervisorContext, command: tuple[str, ...]) -> tuple[str, ...]:
    """Through a login shell when asked for: its files may change anything, so the devices are verified after them."""
    if not context.spec.login_shell:
        return command

    shell = context.environ.get("SHELL") or "/bin/sh"
    check = os.path.abspath(device_check.__file__)
    return (shell, "-l", "-c", 'exec "$@"', "holdfast", sys.executable, "-I", "-S", check, "--", *command)


def _lead_nodes(context: SupervisorContext, command: tuple[str, ...]) -> tuple[str, ...]:
    """Over several nodes the job is what starts the command on each of them (docs/slurm.md)."""
    if context.spec.nodes == 1:
        return command
    words = ("--run", context.run_dir, "--attempt", str(context.attempt), "--", *command)
    return build_command("slurm-lead", *words)


def write_before(  # noqa: PLR0917 - all that a manifest is made of, once
    context: SupervisorContext,
    devices: tuple[LeasedDevice, ...],
    containment: Containment,
    environment: JobEnvironment,
    argv: tuple[str, ...],
    inventory: Inventory,
) -> None:
    """Commit the manifest; the job does not exist yet."""
    leased = {device.card_uuid for device in devices}
    group = containment.group
    redacted, _ = redact_argv(argv)
    box, allocation = read_box(), imposed_allocation(context.environ)
    body: dict[str, Any] = {
        "run_id": context.run_id,
        "attempt": context.attempt,
        "reason": context.why_begun,
        "written_at": utc_now(),
        "host": box.host,
        "kernel": os.uname().release,
        "boot_id": box.boot_id,
        "box": box,
        "uid": os.getuid(),
        "umask": context.umask,
        "command": redacted,
        "code": _list_code(context),
        "python": _find_python(context, environment),
        "workdir": context.spec.workdir,
        "image": context.spec.container.image,
        "seed": context.spec.seed if context.spec.seed is not None else "not stated",
        "gpu_source": inventory.source if devices else None,
        "simulated": bool(devices) and inventory.source is InventorySource.SIMULATED,
        "driver": inventory.driver_version if devices else None,
        "devices": devices,
        "allocation": None if allocation is None else allocation.scheduler,
        "share": context.spec.gpu.share,
        "cards": [card for card in inventory.cards if card.uuid in leased],
        "containment": {"level": containment.level, "why": containment.level_words},
        "cgroup": None
        if group is None
        else {"name": group.name, "unified": group.unified, "v1": group.v1, "controllers": group.controllers},
        "limits": containment.plan.limits,
        "nice": containment.plan.nice,
        "priority": context.choose_priority(context.spec.priority),
        "io_level": containment.plan.io_level,
        "cpus": containment.plan.cpus,
        "rules": context.rules.sources,
        "lease_dir": context.environ.get("HOLDFAST_LEASE_DIR") or context.rules.lease_dir,
        "unlocked": context.unlocked,
        "plan": build_plan(context, context.created_epoch_s),
        "environment": redact_env(environment.values),
        "environment_added": environment.added,
        "baseline": _baseline(context, group),
    }
    # Made durable by `note_started`, when the job runs: whoever started it waits for each millisecond before.
    context.recorder.commit(wire.MANIFEST, wire.to_bytes(body), durable=False)


def _list_code(context: SupervisorContext) -> tuple[FileCopy, ...]:
    """The files that this attempt starts from, as they were when they were recorded."""
    try:
        return read_code(context.run_dir, context.attempt).files
    except (OSError, wire.WireError):
        return ()


def _find_python(context: SupervisorContext, environment: JobEnvironment) -> str | None:
    """The Python that the job's command runs under; None where it is none, or not to be told from outside."""
    spec = context.spec
    if spec.container.image is not None or spec.login_shell:
        return None
    found = find_interpreter(spec.command, environment.values, spec.workdir)
    return None if found is None else found.path


def _baseline(context: SupervisorContext, group: ControlGroup | None) -> dict[str, object]:
    """What the box had counted at launch, for the explanation of an end that nobody explains."""
    spec = context.spec
    places = {"run": context.run_dir, "checkpoints": context.shared(wire.CHECKPOINTS), "work": spec.workdir}
    places["tmp"] = spec.env.get("TMPDIR") or context.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - looked at only
    if spec.checkpoints.mirror is not None:
        places["mirror"] = spec.checkpoints.mirror
    named = {"disk": spec.disk.paths, "data": spec.data, "input": spec.inputs}
    places |= {f"{role}{number or ''}": path for role, paths in named.items() for number, path in enumerate(paths)}
    try:
        found = read_baseline(group, {"shm": SHM, **places}, context.environ)
        # The end is judged from the run's directory, perhaps on another box: by the rules that held here.
        return {**found, "xids": {str(code): severity for code, severity in context.rules.xids.items()}}
    except Exception as error:  # noqa: BLE001 - a later explanation is not worth a start
        context.recorder.log(f"no baseline was taken: {type(error).__name__}: {error}")
        return {"unread": {"baseline": str(error)}}


def amend_manifest(context: SupervisorContext, facts: dict[str, object], *, durable: bool = False) -> None:
    """Put more facts into the manifest; each is on disk in another record too (state, exit record)."""
    body = context.recorder.read_manifest()
    body.pop("schema", None)
    context.recorder.commit(wire.MANIFEST, wire.to_bytes({**body, **wire.encode(facts)}), durable=durable)


def note_started(context: SupervisorContext, keeper: ProcessId, job: JobProcess) -> None:
    """Add who keeps and who runs. The job runs already: nobody waits for this to be on the disk, with the checks."""
    files.sync_quietly(context.recorder.path(wire.PREFLIGHT))
    amend_manifest(context, {"keeper": keeper, "job": job}, durable=True)


def write_baseline(context: SupervisorContext) -> None:
    """Remember what the declared data look like, to see afterwards whether the job wrote to them (RAIL-07)."""
    if not context.spec.data:
        return
    from holdfast.agent.checks.postflight import write_data_baseline  # lazy: for declared data alone

    write_data_baseline(context.spec, context.run_dir, context.attempt)
