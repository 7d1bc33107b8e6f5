"""What earlier runs left behind: processes that provably were part of a run that has ended. Nothing is signalled.

Proof is all of: this account; the run's marker in the environment that the process was started with; a run directory
of that name, ours, whose newest attempt has an end on record of this boot; a start after the run was created. Whatever
lacks one of them is spared and told with the reason: a live run, a run whose directory is gone, another account, a
supervisor or keeper of a run that is alive (one that was started from inside the ended run carries its marker), and
everything that this command itself descends from. Nothing is ever found by name, age or idleness.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.agent.view import observe, run_view
from holdfast.core.job.redact import redact_text
from holdfast.host import clock
from holdfast.host.process.processes import (
    identify,
    is_alive,
    iterate_marked,
    list_pids,
    read_command,
    read_environ,
    read_stat,
    read_uid,
    user_name,
)
from holdfast.model.ids import is_run_id
from holdfast.model.record import record, replace

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from holdfast.model.identity import ProcessId

COMMAND_MAX = 200
MOST_STEPS = 1000
"""From a process up to its ancestors; the table changes while it is read."""
_CREATED_SLACK_S = 2.0


@record
class Leftover:
    """One process of a run that has ended: provably ours, and provably not needed."""

    process: ProcessId
    run_id: str
    run_dir: str
    attempt: int
    ended_as: str
    command: str
    age_s: float


@record
class SparedProcess:
    """A process that carries a run's marker and is left alone, and why. `orphaned`: its run directory is gone."""

    pid: int
    run_id: str
    command: str
    why: str
    orphaned: bool = False


@record
class Leftovers:
    """One look at this account's marked processes. Members of live runs are in neither list."""

    found: tuple[Leftover, ...] = ()
    spared: tuple[SparedProcess, ...] = ()


def find_leftovers(*, roots: Iterable[str] = (), except_dir: str | None = None, within: str | None = None) -> Leftovers:
    """Every process of this account that an ended run left behind; `roots` are further places where runs may live.

    `except_dir` is a run directory that is not looked at: that of the run which asks. With `within` only runs below
    this directory are looked at.
    """
    found: list[Leftover] = []
    spared: list[SparedProcess] = []
    views: dict[str, run_view.RunView] = {}
    for pid in iterate_marked(os.geteuid()):
        seen = prove_leftover(pid, except_dir, within, views)
        if isinstance(seen, Leftover):
            found.append(seen)
        elif seen is not None:
            spared.append(seen)
    if not found:
        return Leftovers((), tuple(spared))
    protected = list_live_processes([*roots, *(os.path.dirname(one.run_dir) for one in found)])
    carriers = _find_carriers({one.run_dir for one in found}, views)
    kept = []
    for one in found:
        why = protected.get(one.process) or carriers.get(one.process.pid, "")
        why = why or ("this command was started from it" if _is_above(one.process) else "")
        if why:
            spared.append(SparedProcess(one.process.pid, one.run_id, one.command, why))
        else:
            kept.append(one)
    return Leftovers(tuple(sorted(kept, key=lambda one: (one.run_id, one.process.pid))), tuple(spared))


def prove_leftover(
    pid: int,
    except_dir: str | None = None,
    within: str | None = None,
    views: dict[str, run_view.RunView] | None = None,
) -> Leftover | SparedProcess | None:
    """What the process is to us; None when it carries no marker, is gone, or belongs to a live run.

    `views` holds what was seen of each run directory during one look: a run may have hundreds of processes.
    """
    process = identify(pid)
    environ = read_environ(pid)
    if process is None or environ is None or "HOLDFAST_RUN_ID" not in environ:
        return None
    run_id, run_dir = environ["HOLDFAST_RUN_ID"], environ.get("HOLDFAST_RUN_DIR", "").rstrip("/")
    attempt = environ.get("HOLDFAST_ATTEMPT", "")
    if within is not None and os.path.realpath(os.path.dirname(run_dir)) != os.path.realpath(within):
        return None
    # The number may have changed hands between the two reads.
    if not is_alive(process) or read_uid(pid) != os.geteuid() or (except_dir and run_dir == except_dir):
        return None
    command = redact_text(read_command(pid) or "?")[:COMMAND_MAX]
    blank = SparedProcess(pid, run_id, command, "")
    if not is_run_id(run_id) or os.path.basename(run_dir) != run_id or not (attempt.isascii() and attempt.isdigit()):
        return replace(blank, why="its marker names no run directory of that run")
    problem = _check_directory(run_dir)
    if problem:
        return replace(blank, why=problem, orphaned=not os.path.lexists(run_dir))
    known = {} if views is None else views
    view = known.get(run_dir) or known.setdefault(run_dir, observe.observe_run(run_dir))
    if not view.over or view.end is None or view.state is None:
        return None if view.job_lives or view.supervised else replace(blank, why=_describe_open_end(view))
    if view.reach is not run_view.RunReach.HERE or clock.is_other_boot(view.state.box.boot_id):
        return replace(blank, why="the run ended before this box was started, so it cannot be of it")
    started = clock.epoch_s() - _age(process)
    if started < clock.parse_utc(str(view.record.get("created_at") or view.state.created_at)) - _CREATED_SLACK_S:
        return replace(blank, why="it is older than the run that it names")
    return Leftover(process, run_id, run_dir, int(attempt), view.condition, command, _age(process))


def _describe_open_end(view: run_view.RunView) -> str:
    return f"the run is {view.condition}, and its end is not completely on record (holdfast reconcile)"


def _check_directory(run_dir: str) -> str:
    """Why a run directory proves nothing; empty when it is a directory of ours."""
    try:
        facts = os.lstat(run_dir)
    except OSError as error:
        return f"its run directory cannot be seen ({error.strerror}), so nothing says that the run has ended"
    if not stat.S_ISDIR(facts.st_mode):
        return "its run directory is a link"
    if facts.st_uid != os.geteuid():
        return f"its run directory belongs to {user_name(facts.st_uid)}"
    return ""


def _age(process: ProcessId) -> float:
    return max(clock.boottime_ns() / 1e9 - process.start_ticks / os.sysconf("SC_CLK_TCK"), 0.0)


def list_live_processes(roots: Iterable[str]) -> dict[ProcessId, str]:
    """Supervisors, keepers and leaders of runs that have not ended, by identity."""
    found: dict[ProcessId, str] = {}
    for root in dict.fromkeys(roots):
        try:
            names = [name for name in os.listdir(root) if is_run_id(name)]
        except OSError:
            continue
        for name in names:
            view = observe.observe_run(f"{root}/{name}")
            if view.state is None or view.over:
                continue
            keeper, job = run_view.recorded_processes(view.state.state)
            for process in (view.state.supervisor, keeper, job):
                if process is not None:
                    found[process] = f"it is part of {name}, which is {view.condition}"
    return found


def _find_carriers(ended: Container[str], views: dict[str, run_view.RunView]) -> dict[int, str]:
    """Processes above one of another run that is not known to be over, with the reason to leave them alone.

    A supervisor or keeper that was started from inside an ended run has that run's marker, and its own job another one:
    so it is found wherever that other run's directory lies. `ended` are the run directories to whose processes this
    does not apply; `views` as in `prove_leftover`.
    """
    found: dict[int, str] = {}
    for pid in list_pids():
        environ = (read_environ(pid) or {}) if read_uid(pid) == os.geteuid() else {}
        run_dir, name = environ.get("HOLDFAST_RUN_DIR", "").rstrip("/"), environ.get("HOLDFAST_RUN_ID", "")
        if not run_dir or run_dir in ended:
            continue
        view = views.get(run_dir) or views.setdefault(run_dir, observe.observe_run(run_dir))
        facts, steps = None if view.over else read_stat(pid), 0
        while facts is not None and facts.ppid > 1 and steps < MOST_STEPS:
            found[facts.ppid] = f"process {pid} of {name}, which is not over, descends from it"
            facts, steps = read_stat(facts.ppid), steps + 1
    return found


def _is_above(process: ProcessId) -> bool:
    """Whether the process is us, or one that we descend from."""
    pid, steps = os.getpid(), 0
    while pid > 1 and steps < MOST_STEPS:
        if pid == process.pid:
            return True
        facts = read_stat(pid)
        if facts is None:
            return False
        pid, steps = facts.ppid, steps + 1
    return False
