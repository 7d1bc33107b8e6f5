"""Preflight: every check before a job, in one order, each on its own (PRE-01).

Cheap checks come first, so that a typo is answered before a driver is asked. A check that breaks is a finding of its
own and hides nothing of the others. Nothing is left behind: whatever a check makes to try something, it removes.

Run by the supervisor before it takes a lease, by `holdfast preflight` on demand, and by `holdfast restart` before it
stops anything, with the same result.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping

from holdfast.agent.plan.profile import find_variables, read_profile
from holdfast.agent.view.source_change import read_code, read_origin
from holdfast.core.job.nodes import refuse_nodes
from holdfast.core.job.setup import put_setup_first
from holdfast.core.rules.rules import Rules
from holdfast.host.files.job_change import wait_as_queued
from holdfast.host.files.rules_file import read_rules
from holdfast.host.gpu.allocation import imposed_allocation
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.process import libc
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed, ResourceBusy
from holdfast.model.finding import Finding, Level, PreflightReport, report_preflight, worst
from holdfast.model.gpu import Inventory
from holdfast.model.job import JobSpec
from holdfast.model.profile import Profile
from holdfast.model.record import replace

from . import box, clock, code, command, disk, environment, framework, gpu, inputs, smoke
from .context import READ_WITHIN_S, CheckContext
from .profile import lasting

Check = Callable[[CheckContext], Iterable[Finding]]

SILENT_S = 1.0
"""After this long people want to hear what they wait for."""

CHECKS: tuple[Check, ...] = (
    command.check_workdir,
    command.check_command,
    command.check_script,
    command.check_secrets,
    environment.check_job_secrets,
    command.check_installs,
    code.check_code,
    inputs.check_inputs,
    inputs.check_config,
    inputs.check_data,
    inputs.check_pins,
    environment.check_allocator,
    environment.check_environment,
    environment.check_tracker,
    environment.check_clock,
    framework.check_base_environment,
    framework.check_replacement,
    clock.check_rules,
    clock.check_time,
    clock.check_warning,
    clock.check_login,
    environment.check_messages,
    disk.check_run_directory,
    disk.check_disks,
    disk.check_mirror,
    disk.check_node_local,
    lasting.check_lasting,
    lasting.check_interruption,
    lasting.check_runtime_cap,
    box.check_memory,
    box.check_share,
    box.check_process_limits,
    box.check_shared_memory,
    box.check_leftovers,
    box.check_limits,
    box.check_containment,
    inputs.check_image,
    environment.check_names,
    framework.check_framework,
    gpu.check_allocation,
    gpu.check_whole,
    gpu.check_cards,
)
"""All checks, in the order in which they run."""


def refuse_bad_restart(
    run_dir: str,
    spec: JobSpec,
    environ: Mapping[str, str],
    *,
    recorded: bool = False,
    dry_run: bool = False,
    tell: Callable[[], None] = lambda: None,
) -> None:
    """Refuse what a start would refuse now, before the run in `run_dir` is stopped for it.

    Its own cards count as free, unless somebody stands in line for them. `recorded`: it runs what it recorded. A
    `dry_run` does not try the smoke test. `tell` is called where it takes more than `SILENT_S`.

    Raises:
        Unsupported: it asks for several nodes.
        PreflightFailed: a check failed, or did not answer in time.
        ResourceBusy: cards are taken, or somebody waits for its own, and the job does not wait.
        StorageError: the rules file cannot be trusted or read.
    """
    refuse_nodes(spec, "")
    rules, asker = read_rules(environ), os.getpid()

    def work() -> object:
        # Who is killed waits no longer, and what the smoke test began is to end.
        libc.set_parent_death_signal(signal.SIGTERM)
        if os.getppid() != asker:
            return (), ()
        failed, busy = _check_restart(run_dir, spec, rules, environ, recorded=recorded, dry_run=dry_run)
        return wire.encode(failed), wire.encode(busy)

    # In a child, as at a start: a disk that hangs must not keep anybody from an answer.
    checks = Offload(work)
    try:
        if not select.select([checks], [], [], SILENT_S)[0]:
            tell()
        failed, busy = checks.wait(spec.timeouts.preflight_s, since_start=True)
    except OffloadFailed as error:
        hint = "nothing was stopped; see what hangs: holdfast doctor"
        raise PreflightFailed(f"the checks before a restart gave no result: {error}", hint=hint) from error
    if failed:
        found = [wire.decode(Finding, value) for value in failed]
        raise PreflightFailed(_describe(found), hint=f"nothing was stopped; {found[0].remedy}")
    if busy:
        hint = (
            "nothing was stopped; --gpu-wait 2h lets it wait for its turn, or ask for other cards: see `holdfast gpus`"
        )
        raise ResourceBusy(_describe([wire.decode(Finding, value) for value in busy]), hint=hint)


def _describe(findings: Iterable[Finding]) -> str:
    return "\n".join(f"{item.id}: {item.subject}: {item.evidence}" for item in findings)


def _check_restart(
    run_dir: str,
    spec: JobSpec,
    rules: Rules,
    environ: Mapping[str, str],
    *,
    recorded: bool,
    dry_run: bool,
) -> tuple[list[Finding], list[Finding]]:
    """What failed; and where nothing did, what is busy for a job that does not wait."""
    origin = read_origin(run_dir)
    if recorded:
        spec = replace(spec, command=read_code(run_dir).command)
    spec = wait_as_queued(spec, origin)
    profile = None if origin.get("profile") is None else read_profile(origin["profile"])
    environ = {**environ, **find_variables(profile, spec, environ)}
    allocation = imposed_allocation(environ) if spec.gpus.wanted else None
    reads = spec.gpus.wanted and allocation is None
    inventory = read_inventory(READ_WITHIN_S) if reads else None
    situation = make_context(spec, rules, environ=environ, run_dir=run_dir, inventory=inventory)
    situation = replace(situation, profile=profile, ends_first=True)
    found = [finding for check in CHECKS for finding in run_one(check, situation)]
    # Cards that cannot be read are none that could be had.
    unread = [item for item in found if item.id == "cards" and item.level is Level.UNKNOWN]
    failed = [item for item in found if item.level is Level.FAIL] + unread
    if allocation is not None and allocation.devices is not None and len(allocation.devices) < spec.gpus.wanted:
        seen = f"{spec.gpus.wanted} asked for; {allocation.describe()}"
        failed.append(Finding("cards", Level.FAIL, "cards", seen, "ask the scheduler for as many cards"))
    if not failed and not dry_run:
        failed = _list_failed(smoke.check_smoke, situation)
    if failed or inventory is None or spec.gpu.wait_s > 0:
        return failed, []
    situation = replace(situation, busy_level=Level.FAIL)
    return [], [*_list_failed(gpu.check_cards, situation), *_list_failed(gpu.check_line, situation)]


def _list_failed(check: Check, situation: CheckContext) -> list[Finding]:
    return [finding for finding in run_one(check, situation) if finding.level is Level.FAIL]


def examine_job(
    spec: JobSpec,
    environ: Mapping[str, str],
    *,
    strict: bool = False,
    known: tuple[Finding, ...] = (),
    profile: Profile | None = None,
) -> PreflightReport:
    """Whether the job could start here now. `known` was found out already: it replaces what a check says of the same.

    Raises:
        Unsupported: it asks for several nodes.
        StorageError: the rules file cannot be trusted or read.
    """
    refuse_nodes(spec, "")
    settled = {(finding.id, finding.subject): finding for finding in known}
    findings = tuple(settled.get((item.id, item.subject), item) for item in check_job(spec, environ, profile=profile))
    return report_preflight(spec.name, findings, strict=strict)


def check_job(
    spec: JobSpec, environ: Mapping[str, str], *, inventory: Inventory | None = None, profile: Profile | None = None
) -> tuple[Finding, ...]:
    """Every preflight check of `spec` on this box, under its rules; `inventory` if the cards were read already.

    A busy card is a failure unless the job would wait for it.

    Raises:
        StorageError: the rules file cannot be trusted or read.
    """
    busy = Level.WARN if spec.gpu.wait_s > 0 else Level.FAIL
    rules = read_rules(environ)
    return run_checks(spec, rules, environ=environ, inventory=inventory, busy_level=busy, profile=profile)


def run_checks(  # noqa: PLR0913 - all that checks look at
    spec: JobSpec,
    rules: Rules,
    *,
    environ: Mapping[str, str],
    run_dir: str | None = None,
    inventory: Inventory | None = None,
    busy_level: Level = Level.WARN,
    root: str = "",
    image_record: str = "",
    profile: Profile | None = None,
) -> tuple[Finding, ...]:
    """Run every check; answers all findings in order, passes included. Does not raise.

    Args:
        spec: The job; paths are absolute.
        rules: The rules in force.
        environ: The environment that the job's is made from.
        run_dir: The run's directory; None when there is none yet.
        inventory: The cards, if they were read already.
        busy_level: How grave it is that cards are busy now: WARN where the job waits for them.
        root: In front of system paths, for tests.
        profile: What is known of the place; what it adds is in `environ`.
        image_record: Where the image that was found is written down for the start; nowhere when somebody only asks.
    """
    situation = make_context(
        spec, rules, environ=environ, run_dir=run_dir, inventory=inventory, busy_level=busy_level, root=root
    )
    situation = replace(situation, image_record=image_record, profile=profile)
    found = tuple(finding for check in CHECKS for finding in run_one(check, situation))
    # Dear, and of no use to a job that does not start anyway.
    return found if worst(found) is Level.FAIL else (*found, *run_one(smoke.check_smoke, situation))


def make_context(
    spec: JobSpec,
    rules: Rules,
    *,
    environ: Mapping[str, str],
    run_dir: str | None = None,
    inventory: Inventory | None = None,
    busy_level: Level = Level.WARN,
    root: str = "",
) -> CheckContext:
    """What the checks look at, now; arguments as of `run_checks`."""
    local = time.localtime()
    return CheckContext(
        spec=put_setup_first(spec),
        rules=rules,
        environ=environ,
        run_dir=run_dir,
        inventory=inventory,
        busy_level=busy_level,
        now_epoch_s=time.time(),
        minute_of_day=local.tm_hour * 60 + local.tm_min,
        root=root,
    )


def run_one(check: Check, situation: CheckContext) -> list[Finding]:
    """One check on its own: what it found before it broke stays, and that it broke is a finding."""
    found: list[Finding] = []
    try:
        for finding in check(situation):
            found.append(finding)  # noqa: PERF402 - what was found before it broke stays
    except Exception as error:  # noqa: BLE001 - a broken check must not hide the others or end the run
        name = getattr(check, "__name__", "check").removeprefix("check_")
        seen = f"this check could not be done: {type(error).__name__}: {error}"
        found.append(Finding(f"preflight.{name}", Level.UNKNOWN, name, seen, "please report it with this text"))
    return found
