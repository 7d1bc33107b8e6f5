"""Time for the job: its own deadlines, the hours of the house, the end of this session (PRE-24, PROC-24, ETIQ-09)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.rules import apply_rules, judge_hours
from ...model.units import format_duration
from .situation import passed, warned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...model.finding import Finding
    from .situation import Situation

UNWATCHED_S = 2 * 3600.0
"""A run that is expected to take longer than this should have somebody, or something, that looks at it."""


def check_rules(situation: Situation) -> Iterator[Finding]:
    """What the rules of this box cut or forbid."""
    findings = apply_rules(situation.spec, situation.rules)[1]
    yield from findings
    hours = judge_hours(situation.rules, situation.minute_of_day) if situation.spec.gpus.wanted else None
    if hours is not None:
        yield hours
    elif not findings:
        source = ", ".join(situation.rules.sources) or "no rules file"
        yield passed("rules", "rules of this box", f"nothing in the job is beyond them ({source})")


def check_time(situation: Situation) -> Iterator[Finding]:
    """Deadlines and session ends leave room for the expected duration."""
    from ...host.sessions import read_session_ends

    spec = situation.spec
    limits = {
        "timeout": spec.timeouts.run_s,
        "timeouts.total": spec.timeouts.total_s,
        "gpu.max_hold": spec.gpu.max_hold_s if spec.gpus.wanted else None,
    }
    needed = spec.expected_s
    short = False
    for name, limit in limits.items():
        if needed is not None and limit is not None and limit < needed:
            short = True
            seen = f"ends the run after {format_duration(limit)}; it is expected to take {format_duration(needed)}"
            yield warned(
                "time.deadline", name, seen, f"raise {name}, or make sure that the job resumes from checkpoints"
            )
    needed = needed if needed is not None else spec.timeouts.run_s
    for end in read_session_ends(situation.environ, root=situation.root):
        left = end.at_epoch_s - situation.now_epoch_s
        if left <= 0 or (needed is not None and left >= needed):
            continue
        short = True
        wanted = f"; the run may take {format_duration(needed)}" if needed is not None else ""
        seen = f"{end.source} comes in {format_duration(left)}{wanted}"
        remedy = "make sure that the job writes checkpoints and resumes, or start it after that"
        yield warned("time.session", "end of session", seen, remedy)
    yield from _check_watch(situation)
    if not short:
        stated = format_duration(needed) if needed is not None else "no duration stated"
        yield passed("time", "time", f"no known deadline or session end comes too early ({stated})")


def _check_watch(situation: Situation) -> Iterator[Finding]:
    """A long run that nobody is told about and nobody looks at (MON-05)."""
    from ..patrolling.armed import is_armed

    spec = situation.spec
    if spec.expected_s is None or spec.expected_s <= UNWATCHED_S or spec.notify.command or spec.notify.webhook:
        return
    home = situation.environ.get("XDG_STATE_HOME") or f"{situation.environ.get('HOME', '')}/.local/state"
    if is_armed(f"{home}/holdfast", situation.now_epoch_s):
        return
    seen = f"is expected to take {format_duration(spec.expected_s)}; no notify is set, and no patrol calls on this box"
    remedy = "set notify in the job file, or: holdfast patrol install; or: holdfast sentinel RUN --for ended -d"
    yield warned("time.watch", "watchers", seen, remedy)


def check_login(situation: Situation) -> Iterator[Finding]:
    """The login manager will not end the run when its owner logs out (PROC-24)."""
    import os

    from ...host.processes import user_name
    from ...host.sessions import is_lingering, leaves_no_session, read_login_manager

    user = user_name(os.geteuid())
    manager = read_login_manager(user, root=situation.root)
    if manager is None or not manager.kills:
        yield passed(
            "login", user, "the login manager leaves processes alone at logout" if manager else "no login manager"
        )
    elif is_lingering(user, root=situation.root) and leaves_no_session():
        yield passed("login", user, "lingers, and this is outside any login session")
    elif is_lingering(user, root=situation.root) and _finds_scope(user, situation.root):
        seen = "lingers: from its start on the job and its supervisor are in a systemd scope, which no logout ends"
        if situation.spec.gpus.wanted and situation.spec.gpu.wait_s != 0:
            yield warned("login", user, f"{seen}; until it has its cards, a logout ends the run", "stay logged in")
        else:
            yield passed("login", user, seen)
    else:
        seen = f"KillUserProcesses=yes ({manager.source}): at logout everything of the session is ended, the run too"
        remedy = f"loginctl enable-linger {user}, then start it with: systemd-run --user --scope holdfast run ..."
        yield warned("login", user, seen, remedy)


def _finds_scope(user: str, root: str) -> bool:
    from ...host.scopes import ScopeUnavailable, find_manager

    try:
        find_manager(user, root=root)
    except ScopeUnavailable:
        return False
    return True
