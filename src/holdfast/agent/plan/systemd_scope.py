"""Whether a run moves into a systemd scope of its own, and what people are told about it (docs/adr/0011).

A scope is taken only for what it alone gives: limits that a control group holds where none can be made, or a place that
outlives the login session. It is never taken at the price of the run's life at logout, with one exception: a limit was
asked for that nothing else here can hold, and the job did not say that it may go unenforced. Then the choice is between
that and not starting, and the warning says how to have both (``loginctl enable-linger``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.job.limits import CONTROLLERS, Mechanism
from holdfast.host.contain import scopes
from holdfast.host.contain.scopes import Logout, ScopeManager, ScopeUnavailable
from holdfast.host.process.processes import user_name
from holdfast.host.process.sessions import leaves_no_session, read_login_manager
from holdfast.model.finding import Finding, Level
from holdfast.model.job import Limits, UnenforcedPolicy
from holdfast.model.record import record

if TYPE_CHECKING:
    from holdfast.host.contain.limits import LimitInForce, LimitPlan

CHECK = "scope"
SUBJECT = "systemd scope"
IN_A_GROUP = frozenset({Mechanism.CGROUP_V2, Mechanism.CGROUP_V1, Mechanism.SYSTEMD_SCOPE})


@record
class ScopePlan:
    """What a scope would do for a job: `manager` is None when none is taken.

    `holds` are the limits that it would hold, `finding` what people should know (None: there is nothing to say).
    """

    manager: ScopeManager | None = None
    holds: tuple[str, ...] = ()
    finding: Finding | None = None


def plan_scope(limits: Limits, plan: LimitPlan, *, root: str = "") -> ScopePlan:
    """Decide whether a scope is to be taken for a job whose limits would otherwise hold as `plan` says.

    Reads files only; nothing is asked for and nothing changes.
    """
    loose = _find_loose(plan)
    if not scopes.is_systemd(root=root):
        return ScopePlan()
    account = user_name(os.geteuid())
    threatened = _is_threatened(account, root)
    if not loose and not threatened:
        return ScopePlan()
    try:
        manager = scopes.find_manager(account, root=root)
    except ScopeUnavailable as error:
        return ScopePlan(finding=_note_missing(loose, str(error)))
    return decide_scope(manager, limits, plan, account=account, threatened=threatened)


def decide_scope(
    manager: ScopeManager, limits: Limits, plan: LimitPlan, *, account: str, threatened: bool
) -> ScopePlan:
    """The decision alone. `threatened`: the login manager would end this run's session, with the run, at logout."""
    loose = _find_loose(plan)
    holds = manager.can_hold(loose)
    if not holds and not (threatened and manager.logout is Logout.HARMLESS):
        return ScopePlan(finding=_note_missing(loose, f"it is given only {' '.join(manager.controllers)} here"))
    words = ", ".join(f"limits.{name}" for name in holds) or "the run"
    if manager.logout is Logout.HARMLESS:
        seen = f"{words}: in a systemd scope of its own, which no logout ends"
        return ScopePlan(manager, holds, Finding(CHECK, Level.PASS, SUBJECT, seen))
    linger = f"loginctl enable-linger {account}"
    if manager.logout is Logout.NO_WORSE:
        seen = f"{words}: in a systemd scope of its own; the last logout of {account} ends the run, in a scope or not"
        return ScopePlan(manager, holds, Finding(CHECK, Level.WARN, SUBJECT, seen, linger))
    only_there = [name for name in holds if loose[name].mechanism is Mechanism.NONE]
    if only_there and limits.unenforced is UnenforcedPolicy.FAIL:
        seen = (
            f"{words}: in a systemd scope of its own, because nothing else here can hold {', '.join(only_there)}; the "
            f"last logout of {account} ends the run, since the account does not linger"
        )
        return ScopePlan(manager, holds, Finding(CHECK, Level.WARN, SUBJECT, seen, linger))
    seen = f"{words}: no systemd scope is used, since the last logout of {account} would end it, and the run with it"
    return ScopePlan(finding=Finding(CHECK, Level.WARN, SUBJECT, seen, linger))


def _find_loose(plan: LimitPlan) -> dict[str, LimitInForce]:
    """The limits that a control group could hold, and none does."""
    return {one.name: one for one in plan.limits if one.name in CONTROLLERS and one.mechanism not in IN_A_GROUP}


def enter_scope(prospect: ScopePlan, run_id: str, attempt: int) -> Finding:
    """Move this process as decided, and tell how that went; a failure is a finding, never an error.

    Call only with a prospect that has a manager.
    """
    assert prospect.manager is not None
    assert prospect.finding is not None
    try:
        scopes.join_scope(prospect.manager, scopes.name_scope(run_id, attempt))
    except ScopeUnavailable as error:
        remedy = "see `systemctl --user status`" if prospect.manager.user else "see `systemctl status`"
        return Finding(CHECK, Level.WARN, SUBJECT, str(error), remedy)
    return prospect.finding


def _is_threatened(account: str, root: str) -> bool:
    login = read_login_manager(account, root=root)
    return login is not None and login.kills and not leaves_no_session()


def _note_missing(loose: dict[str, LimitInForce], reason: str) -> Finding | None:
    if not loose:
        return None
    words = ", ".join(f"limits.{name}" for name in loose)
    remedy = "have it put right, or accept the weaker mechanism that is named at each limit"
    return Finding(CHECK, Level.WARN, SUBJECT, f"{words}: no systemd scope can hold it: {reason}", remedy)
