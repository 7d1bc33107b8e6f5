"""The main program of a supervisor: how it starts, reads its run, and what it does after the run's end.

It comes up in one of four ways: spawned for an attempt (`launch.start_supervisor`), spawned ahead and told its attempt
through its standard input (`prestart`), forked by the queue's worker, whose image is as clean and has all loaded
that a start needs (`fork_supervisor`), or in the foreground of a place (`place.foreground`). The image that it begins
with it keeps for life.

Whatever goes wrong here ends with words in the supervisor's log and an exit code; a job that runs already goes on under
its keeper, and another supervisor can take over.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from holdfast.core.job.setup import put_setup_first
from holdfast.host.box import read_box
from holdfast.host.clock import boot_epoch_s, utc_now
from holdfast.host.files import files
from holdfast.host.files.job_change import find_job, read_job_change, wait_as_queued
from holdfast.host.process import libc
from holdfast.host.process.processes import identify_self, read_environ
from holdfast.host.process.signals import SURVIVED
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.job import JobSpec, OrphanPolicy
from holdfast.model.record import replace
from holdfast.model.run import Created, Ended, Outcome, Refusal

from .control.run_lock import TakenUp, take_supervisor_lock, take_unlocked
from .launch import open_log
from .plan.placement import apply_placement, read_placement
from .queue.change.start_worker import restart_worker
from .supervise.notify import FINISH_S
from .supervise.rebuild import rebuild_state
from .supervise.recorder import Recorder
from .supervise.supervisor import Supervisor
from .view.retries import is_followed
from .view.source_change import read_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.profile import Profile
    from holdfast.model.run import RunState

    from .place.foreground.stand import Stance

EXIT_FAULT = 70
EXIT_UNREADABLE = 74
LOCK_PATIENCE_S = 0.05
PREDECESSOR_PATIENCE_S = 2 * FINISH_S
"""How long the supervisor of a new attempt waits for that of the one before, which tells people of its end.

Well beyond what that may take: who leaves too early leaves an attempt that nobody takes up.
"""
NAME = "holdfast-superv"
"""As ps and top show it: the arguments of one that was forked or prestarted do not say what it is. 15 bytes at most."""
COERCED = "LC_CTYPE"
"""What an interpreter sets in its own environment where the locale is C. Source: PEP 538."""


# --- coming up -------------------------------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    """``RUN_DIR ATTEMPT REASON``, or ``--wait`` and these three through the standard input: supervise that attempt.

    The job's umask and environment are those that this process was started with.
    """
    umask = os.umask(0o077)
    if COERCED not in (read_environ(os.getpid()) or os.environ):
        # The interpreter put it there, and the job is to have what its caller had.
        os.environ.pop(COERCED, None)
    if words == ["--wait"]:
        words = _await_run()
        if not words:
            return 0
    return supervise(words[0], int(words[1]), words[2], umask=umask)


def _await_run() -> list[str]:
    """Sleep until the run is known; empty when there will be none."""
    words = [os.fsdecode(word) for word in os.read(0, 1 << 16).split(b"\0")]
    if len(words) != 3:
        return []
    log, null = open_log(words[0], int(words[1])), os.open(os.devnull, os.O_RDONLY)
    _connect(null, log)
    return words


def _connect(null: int, log: int) -> None:
    """Make these the standard streams."""
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def fork_supervisor(run_dir: str, attempt: int, *, environ: Mapping[str, str], reason: str) -> None:
    """As `launch.start_supervisor`, by a fork of this process: for the worker, which has loaded what a start needs.

    Raises:
        StorageError: its log cannot be opened, or no process can be had.
    """
    log = open_log(run_dir, attempt)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SURVIVED)
    try:
        first = os.fork()
    except OSError as error:
        os.close(log)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise StorageError(f"no supervisor could be started: {error.strerror}", hint="see `ulimit -u`") from error
    if first == 0:
        _leave_and_supervise((run_dir, attempt, reason), dict(environ), log)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(log)
    os.waitpid(first, 0)


def _leave_and_supervise(order: tuple[str, int, str], environ: dict[str, str], log: int) -> None:
    """In the child: own session, an orphan, nothing of the worker's open, supervise. Never returns."""
    code = EXIT_FAULT
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.environ.clear()
        os.environ.update(environ)
        _connect(os.open(os.devnull, os.O_RDONLY), log)
        os.closerange(3, 1024)
        os.chdir("/")
        code = supervise(*order, umask=os.umask(0o077))
    except BaseException:  # noqa: BLE001 - the last barrier of a forked child: nothing may unwind into our caller
        import traceback

        files.write_all(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


# --- one attempt -----------------------------------------------------------------------------------------------------


def supervise(run_dir: str, attempt: int, reason: str, *, umask: int, stance: Stance | None = None) -> int:
    """Supervise one attempt until it has ended, then see that the queue that it came from, if any, has a worker.

    `umask` is the caller's, for the job; our own files are private whatever it is. `stance` is that of a supervisor in
    the foreground, which holds the lock of the run already. Answers the exit code of the run's outcome; 0 where
    somebody else supervises.
    """
    libc.set_name(NAME)
    try:
        record = wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)
        recorder = Recorder(run_dir, os.path.basename(run_dir), attempt)
        starts = read_code(run_dir, attempt)
        spec = put_setup_first(replace(_read_spec(record, recorder), command=starts.command))
        profile = None if record.get("profile") is None else _take_profile(record["profile"], spec)
        if stance is None:
            lock, real = take_supervisor_lock(run_dir, LOCK_PATIENCE_S if reason == "adopt" else PREDECESSOR_PATIENCE_S)
        else:
            # What the place has killed must not go on without it.
            spec = replace(spec, on_supervisor_death=OrphanPolicy.KILL)
            lock, real = stance.lock, stance.real
        if lock is None:
            recorder.log("another supervisor is at work; leaving")
            return 0
        state = replace(_read_state(recorder), unlocked=not real)
        if stance is not None and isinstance(state.state, Created) and state.supervisor is None:
            # It may have been made on another box: from now on it is this one's.
            state = replace(state, box=read_box(), boot_epoch_s=boot_epoch_s())
        if reason != "adopt" and state.supervisor is not None:
            # It was started twice, and this one waited for the lock: only an adoption goes on from where another was.
            recorder.log("another supervisor has taken the attempt up meanwhile; leaving")
            return 0
        if starts.changed and reason != "adopt" and os.path.exists(recorder.path(wire.CODE)):
            recorder.event("code_changed", changed=starts.changed)
        if not real:
            if stance is None and not take_unlocked(recorder.directory, state, TakenUp(identify_self(), read_box())):
                recorder.log("another supervisor takes the attempt up, and no lock can tell more; leaving")
                return 0
            recorder.event("no_lock", path=f"{run_dir}/{wire.SUPERVISOR_LOCK}")
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"{utc_now()} cannot supervise {run_dir} attempt {attempt}: {error}\n")
        return EXIT_UNREADABLE
    try:
        _finish_before(record, run_dir, attempt, umask)
        code = _supervise(record, recorder, spec, state, reason=reason, umask=umask, stance=stance, profile=profile)
    except Exception as error:  # noqa: BLE001 - supervision barrier: the keeper goes on, another can take over
        import traceback

        recorder.log("".join(traceback.format_exception(error)).rstrip())
        recorder.event("supervisor_failed", error=f"{type(error).__name__}: {error}")
        _give_up(recorder, f"holdfast itself failed before anything was started: {type(error).__name__}: {error}")
        code = EXIT_FAULT
    if record.get("queued") is not None:
        restart_worker(recorder.log)
    return code


def _take_profile(stated: object, spec: JobSpec) -> Profile:
    """The profile of the place; what it says to the checks, the job and whoever is told of it is in the environment.

    Loaded for runs that have one alone: a supervisor holds what it loads for as long as its job runs.
    """
    from holdfast.agent.plan.profile import find_variables, read_profile  # lazy: for runs that have one alone

    profile = read_profile(stated)
    os.environ.update(find_variables(profile, spec, os.environ))
    return profile


def _supervise(
    record: dict[str, Any],
    recorder: Recorder,
    spec: JobSpec,
    state: RunState,
    *,
    reason: str,
    umask: int,
    stance: Stance | None = None,
    profile: Profile | None = None,
) -> int:
    found = Supervisor(
        recorder.run_dir,
        recorder.attempt,
        spec,
        recorder,
        state,
        reason=reason,
        umask=umask,
        queued=record.get("queued") is not None,
        foreground=None if stance is None else stance.foreground,
        profile=profile,
    )
    return found.run()


def _finish_before(record: dict[str, Any], run_dir: str, attempt: int, umask: int) -> None:
    """Write the rest of the end of the attempt before, whose supervisor was killed after it had begun this one."""
    before = Recorder(run_dir, os.path.basename(run_dir), attempt - 1)
    if attempt == 1 or not is_followed(run_dir, attempt - 1) or os.path.exists(before.path(wire.EXIT)):
        return
    try:
        state = before.read_state()
        if isinstance(state.state, Ended):
            _supervise(record, before, _read_spec(record, before), state, reason="adopt", umask=umask)
    except Exception as error:  # noqa: BLE001 - an old record is not worth the attempt that is to begin
        before.log(f"the end of attempt {attempt - 1} could not be written: {type(error).__name__}: {error}")


def _read_spec(record: dict[str, Any], recorder: Recorder) -> JobSpec:
    """The job as this attempt is given cards: with what the queue said about its wait and its placement."""
    change = read_job_change(recorder.run_dir, recorder.attempt)[1]
    spec = wait_as_queued(wire.decode(JobSpec, find_job(record, change)), record)
    placement = read_placement(recorder.directory)
    return spec if placement is None else apply_placement(spec, placement)


def _give_up(recorder: Recorder, words: str) -> None:
    """End a run of which nothing was begun, so that nobody waits for it; one that was begun is left to a successor."""
    try:
        state = recorder.read_state()
        if isinstance(state.state, Created):
            refusal = Refusal("internal", 70, words, "please report it with supervisor.log")
            ended = Ended(utc_now(), Outcome.FAILED, 70, words, refusal=refusal)
            recorder.commit_state(replace(state, state=ended, version=state.version + 1, updated_at=utc_now()))
            recorder.commit_exit({**wire.encode(ended), "ended_at": ended.at, "ending": words})
    except (OSError, ValueError) as error:
        recorder.log(f"the end could not be recorded: {error}")


def _read_state(recorder: Recorder) -> RunState:
    try:
        return recorder.read_state()
    except (OSError, ValueError) as error:
        return rebuild_state(recorder, str(error))
