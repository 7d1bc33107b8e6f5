"""Preflight: every check before a job, in one order, each on its own (PRE-01).

Cheap checks come first, so that a typo is answered before a driver is asked. A check that breaks is a finding of its
own and hides nothing of the others. Nothing is left behind: whatever a check makes to try something, it removes.

Run by the supervisor before it takes a lease, by `holdfast preflight` on demand, with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from holdfast.core.job.nodes import refuse_nodes
from holdfast.core.job.setup import put_setup_first
from holdfast.core.rules.rules import Rules
from holdfast.host.files.rules_file import read_rules
from holdfast.model.errors import PreflightFailed
from holdfast.model.finding import Finding, Level, PreflightReport, report_preflight, worst
from holdfast.model.gpu import Inventory
from holdfast.model.job import JobSpec
from holdfast.model.profile import Profile
from holdfast.model.record import replace

from . import box, clock, code, command, disk, environment, framework, gpu, inputs, smoke
from .context import CheckContext
from .profile import lasting

Check = Callable[[CheckContext], Iterable[Finding]]

CHECKS_OF_COMMAND: tuple[Check, ...] = (command.check_workdir, command.check_command, command.check_script)
CHECKS: tuple[Check, ...] = (
    *CHECKS_OF_COMMAND,
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
    gpu.check_cards,
)
"""All checks, in the order in which they run."""
CHECKS_OF_CHANGE: dict[Check, Callable[[JobSpec], object]] = {
    gpu.check_possible: lambda spec: (spec.gpus, spec.gpu),
    box.check_limits: lambda spec: spec.limits,
    box.check_containment: lambda spec: spec.containment,
}
"""Checks of what no stop of a run changes, each with the part of the job that it is about."""


def refuse_bad_restart(before: JobSpec, spec: JobSpec, environ: Mapping[str, str], *, recorded: bool = False) -> None:
    """Refuse what could never start here, before anything is stopped for it.

    What may have gone since the start is looked at always, but for the files of the command where what was `recorded`
    runs; what the box has, or can hold, where it differs from `before`.

    Raises:
        PreflightFailed: its directory, its program or its script is not there or cannot be run; or what it asks for of
            cards, limits, containment, secrets or images is more than this box can ever give.
        StorageError: the rules file cannot be trusted or read.
    """
    context = CheckContext(put_setup_first(spec), read_rules(environ), environ)
    checks = [command.check_workdir] if recorded else [*CHECKS_OF_COMMAND]
    checks += [environment.check_job_secrets, inputs.check_image]
    checks += [check for check, part in CHECKS_OF_CHANGE.items() if part(before) != part(spec)]
    found = [finding for check in checks for finding in run_one(check, context) if finding.level is Level.FAIL]
    if found:
        text = "\n".join(f"{item.id}: {item.subject}: {item.evidence}" for item in found)
        raise PreflightFailed(text, hint=f"nothing was stopped; {found[0].remedy}")


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
