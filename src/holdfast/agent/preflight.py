"""Preflight: every check before a job, in one order, each on its own (PRE-01).

Cheap checks come first, so that a typo is answered before a driver is asked. A check that breaks is a finding of its
own and hides nothing of the others. Nothing is left behind: whatever a check makes to try something, it removes.

Run by the supervisor before it takes a lease, by `holdfast preflight` on demand, with the same result.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..model.finding import Finding, Level
from .checks import box, clock, command, disk, environment, framework, gpu, inputs
from .checks.situation import Situation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..core.rules import Rules
    from ..model.gpu import Inventory
    from ..model.job import JobSpec

    Check = Callable[[Situation], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    command.check_workdir,
    command.check_command,
    command.check_script,
    command.check_secrets,
    command.check_installs,
    inputs.check_inputs,
    inputs.check_config,
    inputs.check_data,
    inputs.check_pins,
    environment.check_allocator,
    environment.check_environment,
    environment.check_tracker,
    environment.check_clock,
    framework.check_base_environment,
    clock.check_rules,
    clock.check_time,
    clock.check_login,
    disk.check_run_directory,
    disk.check_disks,
    disk.check_mirror,
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
    gpu.check_cards,
)
"""All checks, in the order in which they run."""


def run_checks(
    spec: JobSpec,
    rules: Rules,
    *,
    environ: Mapping[str, str],
    run_dir: str | None = None,
    inventory: Inventory | None = None,
    busy_level: Level = Level.WARN,
    root: str = "",
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
    """
    situation = make_situation(
        spec, rules, environ=environ, run_dir=run_dir, inventory=inventory, busy_level=busy_level, root=root
    )
    return tuple(finding for check in CHECKS for finding in run_one(check, situation))


def make_situation(
    spec: JobSpec,
    rules: Rules,
    *,
    environ: Mapping[str, str],
    run_dir: str | None = None,
    inventory: Inventory | None = None,
    busy_level: Level = Level.WARN,
    root: str = "",
) -> Situation:
    """What the checks look at, now; arguments as of `run_checks`."""
    local = time.localtime()
    return Situation(
        spec=spec,
        rules=rules,
        environ=environ,
        run_dir=run_dir,
        inventory=inventory,
        busy_level=busy_level,
        now_epoch_s=time.time(),
        minute_of_day=local.tm_hour * 60 + local.tm_min,
        root=root,
    )


def run_one(check: Check, situation: Situation) -> list[Finding]:
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
