"""What this run's public lease record says: who has which cards, since when, in which phase, and by which processes.

Built here, found again after a supervisor that was killed; `publish.PublishedLease` writes it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.job.redact import redact_argv
from holdfast.host.clock import boottime_ns, utc_now
from holdfast.host.lease.force_release import remove_void_records
from holdfast.host.lease.records import read_records
from holdfast.host.process.processes import identify_self, user_name
from holdfast.model.errors import HoldfastError
from holdfast.model.lease import LeasePhase, LeaseRecord
from holdfast.model.run import Finalizing, Running, Starting, State, Stopping

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.host.lease.area import LeaseArea
    from holdfast.model.identity import ProcessId
    from holdfast.model.lease import LeasedDevice

PHASES = {
    Starting: LeasePhase.PREFLIGHT,
    Running: LeasePhase.RUN,
    Stopping: LeasePhase.STOPPING,
    Finalizing: LeasePhase.POSTFLIGHT,
}


def build_record(
    context: SupervisorContext, devices: tuple[LeasedDevice, ...], *, simulated: bool, until: str | None
) -> LeaseRecord:
    """The record of a lease of `devices` that begins now and is held until then at the latest (None: without end)."""
    words, _ = redact_argv(context.spec.command)
    return LeaseRecord(
        run_id=context.run_id,
        attempt=context.attempt,
        user=user_name(os.getuid()),
        uid=os.getuid(),
        host=os.uname().nodename,
        since=utc_now(),
        phase=LeasePhase.PREFLIGHT,
        devices=devices,
        supervisor=identify_self(),
        command=" ".join(words)[:200],
        config=context.spec.config,
        run_dir=context.run_dir,
        share=context.spec.gpu.share,
        simulated=simulated,
        until=until,
        since_boot_ns=boottime_ns(),
        memory_bytes=context.spec.gpu.memory_bytes if context.spec.gpu.share else None,
    )


def find_own_record(
    context: SupervisorContext, area: LeaseArea, devices: tuple[LeasedDevice, ...]
) -> LeaseRecord | None:
    """The record of this attempt in the lease area; None where there is none."""
    seen_records, _ = read_records(area, about=frozenset(device.card_uuid for device in devices))
    for seen in seen_records:
        # Anybody can write a record with our run's id.
        if seen.key == (context.run_id, context.attempt, os.getuid()):
            return seen.record
    return None


def remove_own_leftovers(context: SupervisorContext, area: LeaseArea) -> None:
    """Clear away what earlier runs of this account left in the area; no hurry, and no harm when it fails."""
    try:
        removed = remove_void_records(area)
    except (OSError, HoldfastError) as error:
        context.recorder.log(f"the lease area could not be swept: {error}")
        return
    if removed:
        context.recorder.event("leases_swept", files=removed)


def list_holders(context: SupervisorContext, state: State) -> tuple[ProcessId, ...]:
    """The processes by which the lease lives, as far as known: keeper, the job's leader, its container's first."""
    known: list[ProcessId | None] = []
    if isinstance(state, (Starting, Running, Stopping, Finalizing)):
        known += [state.keeper, None if state.job is None else state.job.process]
    return tuple(process for process in (*known, context.container_init) if process is not None)
