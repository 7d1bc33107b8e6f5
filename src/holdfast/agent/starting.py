"""Bringing a job up to the point before exec: gear, manifest, environment, keeper. Loaded to start only."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ..host import containment, libc, limits, members, namespaces
from ..host.cgroups import create
from ..host.spawn import Launch, spawn
from ..model import wire
from ..model.errors import PreflightFailed
from ..model.job import Orphan, Ptrace, Rung, Unenforced
from . import manifest
from .gear import Gear
from .record import LOCK_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..host.cgroups import Group
    from ..host.limits import LimitPlan
    from ..host.spawn import Started
    from ..model.job import JobSpec
    from ..model.lease import LeasedDevice
    from .context import Context
    from .leasing import CardLease


SYSTEMD = "/run/systemd/system"
"""There where systemd runs the box. Source: sd_booted(3)."""


def prepare_gear(context: Context) -> Gear:
    """Choose the rung, make the control group, name the mechanism of every limit.

    Raises:
        PreflightFailed: the wanted rung does not work here, or a limit cannot be held.
    """
    from ..core.rules import apply_rules

    spec, _ = apply_rules(context.spec, context.rules)
    chosen = containment.choose(spec.containment)
    if chosen.rung is None:
        raise PreflightFailed(f"containment {chosen.describe()}", hint="use --containment auto")
    group, plan = _hold_limits(context, spec)
    if plan.unenforceable and spec.limits.unenforced is Unenforced.FAIL:
        names = "; ".join(f"{limit.name} {limit.asked}: {limit.detail}" for limit in plan.unenforceable)
        if group is not None:
            group.remove()
        raise PreflightFailed(f"limits that nothing here can hold: {names}", hint="drop them, or say unenforced: warn")
    return Gear(chosen.rung, chosen.describe(), group, plan)


def _hold_limits(context: Context, spec: JobSpec) -> tuple[Group | None, LimitPlan]:
    """The control group and what holds each limit; from a systemd scope where that is what it takes (docs/adr/0011)."""
    name, nice = f"{context.run_id}.{context.attempt}", context.rules.nice

    def prepare() -> tuple[Group | None, LimitPlan]:
        made = create(name, spec.limits)
        plan = limits.plan_limits(spec.limits, made, priority=spec.priority, nice=nice, spread=context.run_id)
        return made, plan

    group, plan = prepare()
    if not os.path.isdir(SYSTEMD):
        return group, plan
    from .scoping import consider, take

    prospect = consider(spec.limits, plan)
    finding = prospect.finding
    if prospect.manager is not None:
        if group is not None:
            group.remove()
        finding = take(prospect, context.run_id, context.attempt)
        group, plan = prepare()
    if finding is not None:
        context.recorder.event("scope", finding=finding)
    return group, plan


def warm_up(context: Context) -> None:
    """Find out and load ahead of time what the start needs besides its gear, and what an end without trouble needs."""
    from .queueing.preload import warm_up as load

    manifest.build_job(context, (), quiet=True)
    load()


def bring_up(context: Context, lease: CardLease, gear: Gear, devices: tuple[LeasedDevice, ...]) -> Started:
    """Write the manifest, then bring keeper and job up; the job waits for the word to go.

    Raises:
        SpawnFailed: keeper or job did not come up.
    """
    lease.note_cgroup(gear.group.witness if gear.group else None)
    environment, argv = manifest.build_job(context, devices, lease.inventory)
    manifest.write_before(context, devices, gear, environment, argv, lease.inventory)
    manifest.write_baseline(context)
    _make_flight_directory(context)
    spec = context.spec
    in_namespace = gear.rung is Rung.PID_NAMESPACE
    entered: list[namespaces.Entered] = []

    def enter() -> None:
        entered.append(namespaces.enter_pid_namespace())

    def settle() -> None:
        mirror = spec.checkpoints.mirror
        kept = (context.run_dir, *([mirror] if mirror is not None and os.path.isdir(mirror) else []))
        namespaces.finish_namespace(entered[0], read_only=spec.data, writable=kept)

    return spawn(
        Launch(
            run_id=context.run_id,
            attempt=context.attempt,
            argv=argv,
            environ=environment.values,
            workdir=spec.workdir,
            status_path=context.recorder.path(wire.STATUS),
            output_path=context.recorder.path(wire.OUTPUT),
            output_max_bytes=spec.output_max_bytes,
            inherited_fds=lease.fds,
            kill_on_supervisor_death=spec.on_supervisor_death is Orphan.KILL,
            pty=spec.pty,
            signal_rest=_build_signal_rest(context, gear, entered if in_namespace else None),
            prepare=lambda: _prepare_job(gear, context.umask, spec.ptrace),
            lock_path=context.recorder.path(LOCK_NAME),
            enter=enter if in_namespace else None,
            settle=settle if in_namespace else None,
        )
    )


def _make_flight_directory(context: Context) -> None:
    """Where torch leaves its flight records: it makes no directory itself. Without one there are just no records."""
    try:
        os.makedirs(context.recorder.path(wire.FLIGHT), mode=0o700, exist_ok=True)
    except OSError as error:
        context.recorder.log(f"no directory for flight records: {error}")


def _build_signal_rest(context: Context, gear: Gear, entered: list[namespaces.Entered] | None) -> Callable[[int], int]:
    """What a keeper without a supervisor ends the tree with."""
    run_id, attempt = context.run_id, context.attempt

    def signal_namespace(number: int) -> int:
        assert entered, "the keeper is forked after its namespace was entered"
        return int(namespaces.signal_namespace(entered[0], number))

    def signal_tree(number: int) -> int:
        from ..host.processes import identify_self

        tree = members.Tree(run_id, attempt, group=gear.group, keeper=identify_self())
        found = [member for member in members.find_members(tree) if member.process.pid != os.getpid()]
        members.signal_members(found, number)
        return len(found)

    return signal_tree if entered is None else signal_namespace


def _prepare_job(gear: Gear, umask: int, ptrace: Ptrace) -> None:
    """In the job's process before it reports: into the group, under the limits, with the caller's umask."""
    os.umask(umask)
    if ptrace is Ptrace.ANY:
        libc.allow_ptrace()
    if gear.group is not None and not gear.joins_late:
        gear.group.add()
    for problem in limits.apply_in_child(gear.plan):
        sys.stderr.write(f"[holdfast: {problem}]\n")
    sys.stderr.flush()
