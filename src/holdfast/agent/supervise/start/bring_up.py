"""Brings a job up to the point before exec: containment, manifest, environment, keeper. Loaded to start only."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.core.job.secret_names import read_uses
from holdfast.core.rules.rules import apply_rules
from holdfast.host.contain import containment, limits, members, namespaces
from holdfast.host.contain.create import create_group
from holdfast.host.files.secret_files import SecretUnusableError, read_variables
from holdfast.host.job.spawn import JobLaunch, spawn_job
from holdfast.host.process import libc
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed
from holdfast.model.job import IsolationLevel, OrphanPolicy, PtraceScope, UnenforcedPolicy

from . import manifest
from .containment import Containment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.agent.supervise.container.control import ContainerControl
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.lease.lease import Lease
    from holdfast.host.contain.create import ControlGroup
    from holdfast.host.contain.limits import LimitPlan
    from holdfast.host.job.spawn import StartedJob
    from holdfast.model.job import JobSpec
    from holdfast.model.lease import LeasedDevice


SYSTEMD = "/run/systemd/system"
"""There where systemd runs the box. Source: sd_booted(3)."""


def prepare_containment(context: SupervisorContext, container: ContainerControl | None = None) -> Containment:
    """Choose the level, make the control group, name the mechanism of every limit.

    Raises:
        PreflightFailed: the wanted level does not work here, or a limit cannot be held.
    """
    spec, _ = apply_rules(context.spec, context.rules)
    inside = container is not None and container.has_own_namespaces
    wanted = IsolationLevel.AUTO if inside and spec.containment is IsolationLevel.PID_NAMESPACE else spec.containment
    chosen = containment.choose_level(wanted, groups=_may_group(context), namespace=not inside)
    if chosen.level is None:
        raise PreflightFailed(f"containment {chosen.describe()}", hint="use --containment auto")
    if container is not None and container.resolved.own_group:
        group, plan = None, container.plan_limits(None)
    else:
        group, plan = _hold_limits(context, spec)
    if plan.unenforceable and spec.limits.unenforced is UnenforcedPolicy.FAIL:
        names = "; ".join(f"{limit.name} {limit.asked}: {limit.detail}" for limit in plan.unenforceable)
        if group is not None:
            group.remove()
        raise PreflightFailed(f"limits that nothing here can hold: {names}", hint="drop them, or say unenforced: warn")
    return Containment(chosen.level, chosen.describe(), group, plan)


def _hold_limits(context: SupervisorContext, spec: JobSpec) -> tuple[ControlGroup | None, LimitPlan]:
    """The control group and what holds each limit; from a systemd scope where that is what it takes (docs/adr/0011)."""
    name, nice = f"{context.run_id}.{context.attempt}", context.rules.nice
    priority = context.choose_priority(spec.priority).priority

    def prepare() -> tuple[ControlGroup | None, LimitPlan]:
        made = create_group(name, spec.limits) if _may_group(context) else None
        plan = limits.plan_limits(spec.limits, made, priority=priority, nice=nice, spread=context.run_id)
        return made, plan

    group, plan = prepare()
    if not os.path.isdir(SYSTEMD) or not _may_group(context):
        return group, plan
    from holdfast.agent.plan.systemd_scope import enter_scope, plan_scope  # lazy: where systemd runs the box alone

    prospect = plan_scope(spec.limits, plan)
    finding = prospect.finding
    if prospect.manager is not None:
        if group is not None:
            group.remove()
        finding = enter_scope(prospect, context.run_id, context.attempt)
        group, plan = prepare()
    if finding is not None:
        context.recorder.event("scope", finding=finding)
    return group, plan


def _may_group(context: SupervisorContext) -> bool:
    """Whether the job gets a control group of its own: not where a scheduler would lose it from sight by that."""
    return context.foreground is None or context.foreground.own_group


def warm_up(context: SupervisorContext) -> None:
    """Find out ahead of time what the start needs besides its containment."""
    manifest.build_job(context, (), quiet=True)


def read_secrets(context: SupervisorContext) -> dict[str, str]:
    """The variables for the job's secrets, read from this account's own files at the start of each attempt.

    They go to the job and nowhere else: no record is made of an environment that has them.

    Raises:
        PreflightFailed: one is not there, or cannot be used.
    """
    try:
        return read_variables(read_uses(context.spec.secrets))
    except SecretUnusableError as error:
        raise PreflightFailed(str(error), hint=f"holdfast secret push PLACE {error.name}, then restart") from None


def bring_up(  # noqa: PLR0917 - all that a start is made of, once
    context: SupervisorContext,
    lease: Lease,
    contained: Containment,
    devices: tuple[LeasedDevice, ...],
    secrets: Mapping[str, str],
    container: ContainerControl | None = None,
) -> StartedJob:
    """Write the manifest, then bring keeper and job up; the job waits for the word to go.

    `secrets` are as of `read_secrets`: the manifest is written without them. With a `container`, which was created, the
    job's leader is its runtime's client.

    Raises:
        SpawnFailed: keeper or job did not come up.
    """
    lease.note_cgroup(contained.group.witness if contained.group else None)
    environment, argv = manifest.build_job(context, devices, lease.inventory)
    manifest.write_before(context, devices, contained, environment, argv, lease.inventory)
    manifest.write_baseline(context)
    _make_flight_directory(context)
    spec = context.spec
    in_namespace = contained.level is IsolationLevel.PID_NAMESPACE
    environ = {**environment.values, **secrets} if container is None else container.environ
    held = () if container is None else container.room.hold()
    kill = spec.on_supervisor_death is OrphanPolicy.KILL
    entered: list[namespaces.EnteredNamespace] = []

    def enter() -> None:
        entered.append(namespaces.enter_pid_namespace())

    def settle() -> None:
        mirror = spec.checkpoints.mirror
        kept = (context.run_dir, *([mirror] if mirror is not None and os.path.isdir(mirror) else []))
        namespaces.finish_namespace(entered[0], read_only=spec.data, writable=kept)

    return spawn_job(
        JobLaunch(
            run_id=context.run_id,
            attempt=context.attempt,
            argv=argv if container is None else container.argv,
            environ=environ,
            workdir=spec.workdir,
            status_path=context.recorder.path(wire.STATUS),
            output_path=context.recorder.path(wire.OUTPUT),
            output_max_bytes=spec.output_max_bytes,
            # Who may end the container holds it; to outlive supervisor and keeper is for a client of policy `keep`.
            inherited_fds=(*lease.fds, *(() if kill else held)),
            keeper_fds=held,
            kill_on_supervisor_death=kill,
            pty=spec.pty,
            signal_rest=_build_signal_rest(context, contained, entered if in_namespace else None, container),
            prepare=lambda: _prepare_job(contained, context.umask, spec.ptrace),
            lock_path=context.shared(wire.SUPERVISOR_LOCK),
            enter=enter if in_namespace else None,
            settle=settle if in_namespace else None,
        )
    )


def _make_flight_directory(context: SupervisorContext) -> None:
    """Where torch leaves its flight records: it makes no directory itself. Without one there are just no records."""
    try:
        os.makedirs(context.recorder.path(wire.FLIGHT), mode=0o700, exist_ok=True)
    except OSError as error:
        context.recorder.log(f"no directory for flight records: {error}")


def _build_signal_rest(
    context: SupervisorContext,
    contained: Containment,
    entered: list[namespaces.EnteredNamespace] | None,
    container: ContainerControl | None,
) -> Callable[[int], int]:
    """What a keeper without a supervisor ends the tree with."""
    run_id, attempt = context.run_id, context.attempt

    def signal_namespace(number: int) -> int:
        assert entered, "the keeper is forked after its namespace was entered"
        return int(namespaces.signal_namespace(entered[0], number))

    def signal_tree(number: int) -> int:
        tree = members.RunTree(run_id, attempt, group=contained.group, keeper=identify_self())
        if container is not None:
            return container.signal_tree(tree, number)
        found = [member for member in members.find_members(tree) if member.process.pid != os.getpid()]
        members.signal_members(found, number)
        return len(found)

    return signal_tree if entered is None else signal_namespace


def _prepare_job(contained: Containment, umask: int, ptrace: PtraceScope) -> None:
    """In the job's process before it reports: into the group, under the limits, with the caller's umask."""
    os.umask(umask)
    if ptrace is PtraceScope.ANY:
        libc.allow_ptrace()
    if contained.group is not None and not contained.joins_late:
        contained.group.add()
    for problem in limits.apply_in_child(contained.plan):
        sys.stderr.write(f"[holdfast: {problem}]\n")
    sys.stderr.flush()
