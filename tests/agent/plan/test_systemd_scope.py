"""When a run takes a systemd scope: the table of the decision."""

from __future__ import annotations

import pytest

from holdfast.agent.plan.systemd_scope import decide_scope, enter_scope, plan_scope
from holdfast.core.job.limits import Mechanism
from holdfast.host.contain.limits import LimitInForce, LimitPlan
from holdfast.host.contain.scopes import Logout, ScopeManager
from holdfast.model.finding import Level
from holdfast.model.job import Limits, UnenforcedPolicy
from tests.each import each

ALL = ("cpu", "memory", "pids")
WATCHED = LimitInForce("memory", "1", Mechanism.WATCHDOG)
NOWHERE = LimitInForce("cpu_weight", "50", Mechanism.NONE)
HELD = LimitInForce("memory", "1", Mechanism.CGROUP_V2)
FILES = LimitInForce("open_files", "9999999", Mechanism.NONE)


def manager(logout: Logout, controllers: tuple[str, ...] = ALL) -> ScopeManager:
    return ScopeManager(True, "unix:path=/nowhere/bus", "/nowhere", controllers, logout)


@pytest.mark.pure
@pytest.mark.requirement("LIM-01", "PROC-24")
@each(
    ("logout", "limit", "unenforced", "threatened", "holds", "level"),
    [
        (Logout.HARMLESS, WATCHED, UnenforcedPolicy.FAIL, False, ("memory",), Level.PASS),
        (Logout.NO_WORSE, WATCHED, UnenforcedPolicy.FAIL, True, ("memory",), Level.WARN),
        # The watchdog does; the run's life at logout is worth more than exactness.
        (Logout.ENDS_SCOPE, WATCHED, UnenforcedPolicy.FAIL, False, None, Level.WARN),
        (Logout.ENDS_SCOPE, NOWHERE, UnenforcedPolicy.FAIL, False, ("cpu_weight",), Level.WARN),
        (Logout.ENDS_SCOPE, NOWHERE, UnenforcedPolicy.WARN, False, None, Level.WARN),
        # Nothing is missing; only the logout speaks for it.
        (Logout.HARMLESS, HELD, UnenforcedPolicy.FAIL, True, (), Level.PASS),
        (Logout.HARMLESS, HELD, UnenforcedPolicy.FAIL, False, None, None),
        (Logout.NO_WORSE, HELD, UnenforcedPolicy.FAIL, True, None, None),
        # No control group holds this one, in a scope or not.
        (Logout.HARMLESS, FILES, UnenforcedPolicy.FAIL, False, None, None),
    ],
)
def test_LIM_01_PROC_24_a_scope_is_taken_for_what_it_alone_gives(  # noqa: PLR0917 - one row of the table
    logout: Logout,
    limit: LimitInForce,
    unenforced: UnenforcedPolicy,
    threatened: bool,
    holds: tuple[str, ...] | None,
    level: Level | None,
) -> None:
    limits, plan = Limits(unenforced=unenforced), LimitPlan((limit,))
    found = decide_scope(manager(logout), limits, plan, account="anna", threatened=threatened)
    assert (found.manager is not None) is (holds is not None)
    assert found.holds == (holds or ())
    assert (found.finding.level if found.finding else None) is level
    if level is Level.WARN:
        assert found.finding is not None
        assert found.finding.remedy == "loginctl enable-linger anna"


@pytest.mark.pure
def test_a_manager_without_the_controller_is_no_help_and_that_is_said() -> None:
    plan = LimitPlan((LimitInForce("cpus", "0.5", Mechanism.AFFINITY),))
    found = decide_scope(
        manager(Logout.HARMLESS, ("memory", "pids")), Limits(cpus=0.5), plan, account="a", threatened=False
    )
    assert found.manager is None
    assert found.finding is not None
    assert found.finding.level is Level.WARN
    assert "memory pids" in found.finding.evidence


@pytest.mark.process
def test_a_box_without_systemd_says_nothing(tmp_path: object) -> None:
    found = plan_scope(Limits(memory_bytes=1), LimitPlan((WATCHED,)), root=str(tmp_path))
    assert (found.manager, found.holds, found.finding) == (None, (), None)


@pytest.mark.process
def test_a_scope_that_cannot_be_had_is_a_finding_not_an_error() -> None:
    prospect = decide_scope(
        manager(Logout.HARMLESS), Limits(memory_bytes=1), LimitPlan((WATCHED,)), account="anna", threatened=False
    )
    finding = enter_scope(prospect, "20261120-104501-digits-3fa2", 1)
    assert finding.level is Level.WARN
    assert "scope" in finding.evidence or "busctl" in finding.evidence
    assert finding.remedy == "see `systemctl --user status`"
