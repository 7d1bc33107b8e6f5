"""``holdfast run`` on this machine: start the job under a supervisor of its own, follow it or return."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.agent.view.find import find_run
from holdfast.agent.view.live.attempt import read_followed
from holdfast.agent.view.live.start import FIRST_ATTEMPT, prove_start
from holdfast.agent.view.runs.roots import choose_root
from holdfast.cli.render import keep_done, note, print_record
from holdfast.cli.render.start import print_started
from holdfast.desk.terminal import listening
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.platforms.local.foreground import become_supervisor, find_reason, refuse_detached
from holdfast.platforms.local.start import SubmitContext, start_here

if TYPE_CHECKING:
    from holdfast.desk.terminal import ReceivedSignals
    from holdfast.model.job import JobSpec

    from .wish import RunWish


def run(spec: JobSpec, wish: RunWish) -> int:
    """Start `spec` here as it was asked for; the exit code."""
    if wish.dry_run:
        from .dry_run import show_plan  # lazy: the checks, which a start leaves to its supervisor

        return show_plan(spec, as_json=wish.as_json)

    job_file = None if wish.job_file is None else os.path.abspath(wish.job_file)
    call = SubmitContext(tuple(sys.argv), os.getcwd(), os.environ, job_file)
    reason = find_reason(os.environ)
    if reason and wish.detach:
        refuse_detached(reason)
    if reason:
        become_supervisor(spec, choose_root(wish.runs), call, as_json=wish.as_json)
    taken = start_here(spec, choose_root(wish.runs), call)
    keep_done(f"run {taken.run_id} was started; holdfast show {taken.run_id} says where it stands")
    if not wish.detach:
        # From here on Ctrl-C asks the run to stop, also while what follows it is being loaded.
        with listening() as listened:
            _tell_namesakes(spec.name)
            return _follow(taken.run_dir, taken.run_id, listened, as_json=wish.as_json)
    _tell_namesakes(spec.name)
    try:
        return _prove(taken.run_dir, prove_s=wish.prove_s, as_json=wish.as_json)
    except KeyboardInterrupt:
        run_id = taken.run_id
        note(f"left alone: {run_id} goes on; `holdfast attach {run_id}`, `holdfast stop {run_id}`")
        raise


def _tell_namesakes(name: str) -> None:
    """Say when other runs of this name have not ended: every verb refuses the name from now on."""
    try:
        find_run(name)
    except UsageError as error:
        note(f"{error}; {error.hint}")
    except HoldfastError:
        pass  # it is started, whatever cannot be read now


def _follow(run_dir: str, run_id: str, listened: tuple[int, ReceivedSignals], *, as_json: bool) -> int:
    if not as_json:
        note(f"run {run_id}")
    from holdfast.cli import attach  # lazy: loaded while the run starts

    code = attach.follow_run(run_dir, FIRST_ATTEMPT, quiet=as_json, listened=listened)
    if as_json:
        print_record(read_followed(run_dir, code))
    return code


def _prove(run_dir: str, *, prove_s: float, as_json: bool) -> int:
    started = prove_start(run_dir, FIRST_ATTEMPT, prove_s=prove_s)
    print_record(started) if as_json else print_started(started.run_id, started.state, warnings=started.warnings)
    return started.exit_code or 0
