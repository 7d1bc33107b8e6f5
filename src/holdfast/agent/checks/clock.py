"""Checks of time: the job's deadlines, the box's hours, the end of this session (PRE-24, PROC-24, ETIQ-09)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.agent.patrol.scheduled import is_armed
from holdfast.agent.scheduler.base import open_scheduler
from holdfast.agent.view.source_change import read_origin
from holdfast.core.messages.channels import list_targets
from holdfast.core.rules.rules import apply_rules, judge_hours
from holdfast.host.contain.scopes import ScopeUnavailable, find_manager
from holdfast.host.process.processes import user_name
from holdfast.host.process.sessions import is_lingering, leaves_no_session, read_login_manager, read_session_ends
from holdfast.model.finding import Finding
from holdfast.model.units import format_duration

from .context import CheckContext, passed, warned

UNWATCHED_S = 2 * 3600.0
"""A run that is expected to take longer than this should have somebody, or something, that looks at it."""


def check_rules(situation: CheckContext) -> Iterator[Finding]:
    """What the rules of this box cut or forbid."""
    findings = apply_rules(situation.spec, situation.rules)[1]
    yield from findings
    hours = judge_hours(situation.rules, situation.minute_of_day) if situation.spec.gpus.wanted else None
    if hours is not None:
        yield hours
    elif not findings:
        source = ", ".join(situation.rules.sources) or "no rules file"
        yield passed("rules", "rules of this box", f"nothing in the job is beyond them ({source})")


def check_time(situation: CheckContext) -> Iterator[Finding]:
    """Deadlines and session ends leave room for the expected duration."""
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
        ends = spec.timeouts.total_s
        stated = "no duration stated" if ends is None else f"it ends within {format_duration(ends)}"
        stated = format_duration(needed) if needed is not None else stated
        yield passed("time", "time", f"no known deadline or session end comes too early ({stated})")


def check_warning(situation: CheckContext) -> Iterator[Finding]:
    """What the scheduler whose job this is has to say: in Slurm of the warning ahead of the time limit (SLM-04)."""
    run_dir = situation.run_dir
    scheduler = None if run_dir is None else read_origin(run_dir).get("scheduler")
    if run_dir is not None and isinstance(scheduler, str) and scheduler:
        yield from open_scheduler(scheduler).check_attempt(run_dir, situation.environ, situation.now_epoch_s)


def _check_watch(situation: CheckContext) -> Iterator[Finding]:
    """A long run that nobody is told about and nobody looks at (MON-05)."""
    spec = situation.spec
    if spec.expected_s is None or spec.expected_s <= UNWATCHED_S or list_targets(spec.notify, spec.channels):
        return
    home = situation.environ.get("XDG_STATE_HOME") or f"{situation.environ.get('HOME', '')}/.local/state"
    if is_armed(f"{home}/holdfast", situation.now_epoch_s):
        return
    seen = f"is expected to take {format_duration(spec.expected_s)}; no notify is set, and no patrol calls on this box"
    remedy = "set notify in the job file, or: holdfast patrol install; or: holdfast sentinel RUN --for ended -d"
    yield warned("time.watch", "watchers", seen, remedy)


def check_login(situation: CheckContext) -> Iterator[Finding]:
    """The login manager will not end the run when its owner logs out (PROC-24)."""
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
    try:
        find_manager(user, root=root)
    except ScopeUnavailable:
        return False
    return True
