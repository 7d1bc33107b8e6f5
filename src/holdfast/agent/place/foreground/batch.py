"""The entry ``slurm-batch``: `stand` as the batch process of a job of Slurm, which knows what Slurm's signals mean.

Words: ``--run RUN_DIR``. What it adds: where the job ends is asked of Slurm; TERM is explained by what Slurm says of
the job (a preemption, its time limit, or somebody's scancel); and after the warning ahead of the time limit, once the
end of the attempt is on record, the job is put back into the queue. Slurm starts it again under its id, as the next
attempt.

Source: sbatch(1), ``--signal`` and SLURM_RESTART_COUNT; slurm.conf(5), KillWait; measured with 22.05.8: on TERM the
state is COMPLETING, and ``Restarts`` counts already when the job was preempted, and ``Reason`` is TimeLimit at its end.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from holdfast.agent.login_environment import choose_environ
from holdfast.agent.scheduler.slurm.commands import call
from holdfast.agent.scheduler.slurm.files import read_record, record_job
from holdfast.agent.supervise.watch.place_end import PlaceEndWatch
from holdfast.agent.view.observe import observe_run
from holdfast.core.run.stop_record import EXIT_PREEMPTED
from holdfast.core.slurm.texts import read_config, read_duration, read_job
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.process.signals import STOPS_IN_FOREGROUND, WARNINGS
from holdfast.host.process.surroundings import find_allocation
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, PlaceError, UsageError
from holdfast.model.foreground import PlaceSignal
from holdfast.model.requeue import Requeue, RequeueAction
from holdfast.model.run import StopCause

from . import stand
from .progress import TAKEN, describe_standstill, was_warned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.host.process.surroundings import SlurmJob

ASK_LIMIT_S = 2.0
START_LIMIT_S = 5.0
REQUEUE_LIMIT_S = 10.0
REQUEUE_AGAIN_S = 2.0
KILL_WAIT_S = 30.0
"""Source: slurm.conf(5), KillWait."""
LAST_MOMENT_S = 5.0
"""So long before its end a job stops trying to be put back."""
END = "SLURM_JOB_END_TIME"
"""Where the job learns its end, in seconds since 1970; Slurm sets it itself from 22.05.9 on."""


def main(words: list[str], *, supervise: stand.Supervise) -> int:
    """Be the entry ``slurm-batch``; the exit code of the run's outcome."""
    if len(words) != 2 or words[0] != "--run":
        raise UsageError(f"slurm-batch does not take the words {words!r}")
    run_dir = os.path.abspath(words[1])
    job = find_allocation(os.environ)
    try:
        record = read_record(run_dir)
        if job is None or record is None:
            raise UsageError(f"{run_dir} is no run that this job of Slurm was submitted for")
        native_id = name_native(job, os.environ)
        if record.job_id is None and native_id not in record.earlier:
            # Whoever submitted it was killed before it could say so.
            record = record_job(run_dir, record, native_id)
        if record.job_id != native_id:
            raise UsageError(f"{run_dir} is the run of job {record.job_id or 'to come'}, not of {native_id}")
        environ = dict(choose_environ(record.env_from, os.environ))
    except HoldfastError as error:
        say(str(error))
        return error.exit_code
    os.environ.clear()
    os.environ.update(environ)
    place = _Batch(native_id, job.restarts)
    code = stand.main(
        ["--run", run_dir, "--next", "requeue"],
        supervise=supervise,
        explain=place.explain,
        beside=lambda context: PlaceEndWatch(context, place).begin(),
    )
    # Another code: no attempt could be begun here, and the one before it was put back already.
    if code == EXIT_PREEMPTED:
        _go_on(run_dir, place)
    return code


def _go_on(run_dir: str, place: _Batch) -> None:
    """Have a run that was warned begin again, where nobody wants it stopped and it gets anywhere; else say why not."""
    view = observe_run(run_dir)
    if not was_warned(view) or view.desired is not None:
        return
    standstill = describe_standstill(view)
    why = standstill if standstill and not place.is_preempted() else place.requeue()
    if not why:
        say(f"job {place.native_id} is put back into the queue; Slurm starts it as the next attempt")
        return
    say(f"job {place.native_id} was not put back into the queue: {why}")
    path = f"{view.attempt_dir}/{wire.REQUEUE}"
    decided = Requeue(RequeueAction.NOTHING, f"Slurm's job was not put back: {why}")
    try:
        files.commit(path, wire.to_bytes(decided, at=utc_now(), job_sha256=view.record.get("job_sha256")))
    except OSError as error:
        say(f"{path}: {error.strerror}")


def name_native(job: SlurmJob, environ: Mapping[str, str]) -> str:
    """What Slurm calls the job: of a task of an array not the task's own number, which may be that of the array.

    Source: sbatch(1), SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task else job.job_id


class _Batch:
    """The job of Slurm that this process is."""

    def __init__(self, native_id: str, restarts: int) -> None:
        self.native_id, self._restarts, self._unwanted = native_id, restarts, False
        self._kill_wait_s = _ask_kill_wait_s()
        self.end_s = _read_number(self._ask(START_LIMIT_S), "EndTime")
        if self.end_s is not None:
            os.environ.setdefault(END, f"{self.end_s:.0f}")

    def explain(self, number: int) -> PlaceSignal:
        """What a signal means, and how long after it Slurm kills."""
        if number in WARNINGS:
            fields = self._ask(ASK_LIMIT_S)
            self.end_s = _read_number(fields, "EndTime") or self.end_s
            left_s = None if self.end_s is None else self.end_s - time.time()
            kills_in_s = left_s if left_s is not None and left_s > 1 else None
            return PlaceSignal(StopCause.PREEMPTION, kills_in_s, TAKEN if self._is_taken(fields) else "")
        cause = self._find_cause() if number == signal.SIGTERM else StopCause.SIGNAL
        self._unwanted = self._unwanted or cause is StopCause.SIGNAL
        return PlaceSignal(cause, self._kill_wait_s)

    def ask_end(self) -> float | None:
        """When the job ends, in epoch seconds; None where Slurm does not say."""
        return _read_number(self._ask(ASK_LIMIT_S), "EndTime")

    def _find_cause(self) -> StopCause:
        fields = self._ask(ASK_LIMIT_S)
        if not fields and self.end_s is not None and time.time() >= self.end_s:
            return StopCause.DEADLINE
        if self._is_taken(fields):
            return StopCause.PREEMPTION
        return StopCause.DEADLINE if fields.get("Reason") == "TimeLimit" else StopCause.SIGNAL

    def is_preempted(self) -> bool:
        """Whether another job takes the nodes: that the run got no further is then no fault of its own."""
        return self._is_taken(self._ask(ASK_LIMIT_S))

    def _is_taken(self, fields: Mapping[str, str]) -> bool:
        return self._is_put_back(fields) or fields.get("PreemptTime", "None") not in ("None", "Unknown", "")

    def _is_put_back(self, fields: Mapping[str, str]) -> bool:
        """Whether Slurm is to start the job again, or has done so."""
        restarts = _read_number(fields, "Restarts")
        return restarts is not None and restarts > self._restarts

    def requeue(self) -> str:
        """Have Slurm start the job again; why it does not, empty where it does."""
        while not self._is_unwanted():
            try:
                call(("scontrol", "requeue", self.native_id), limit_s=REQUEUE_LIMIT_S)
                return ""
            except PlaceError as error:
                left_s = 0.0 if self.end_s is None else self.end_s - time.time() - LAST_MOMENT_S
                if left_s > 0:
                    time.sleep(REQUEUE_AGAIN_S)
                    continue
                problem = str(error)
            except HoldfastError as error:
                problem = str(error)
            # An answer that came too late for an earlier call has Slurm refuse this one.
            return "" if self._is_put_back(self._ask(ASK_LIMIT_S)) else problem
        # A TERM that is held back may be that of a requeue of which the answer got lost.
        return "" if self._is_put_back(self._ask(ASK_LIMIT_S)) else "somebody ended it after the warning"

    def _is_unwanted(self) -> bool:
        """Whether somebody has ended the job, by a signal that the supervisor heard or one that is held back since."""
        for number in signal.sigpending() & (STOPS_IN_FOREGROUND - WARNINGS):
            self.explain(number)
        return self._unwanted

    def _ask(self, limit_s: float) -> dict[str, str]:
        """What Slurm says of the job now; empty when it does not answer."""
        try:
            said = call(("scontrol", "show", "job", "--oneliner", self.native_id), limit_s=limit_s)
            return read_job(said, self.native_id)
        except HoldfastError:
            return {}


def _ask_kill_wait_s() -> float:
    """How long after TERM Slurm kills: as it is configured, else as it is by default."""
    try:
        config = read_config(call(("scontrol", "show", "config"), limit_s=START_LIMIT_S))
    except HoldfastError:
        return KILL_WAIT_S
    return read_duration(config.get("KillWait", "")) or KILL_WAIT_S


def _read_number(fields: Mapping[str, str], name: str) -> float | None:
    text = fields.get(name, "")
    return float(text) if text.isascii() and text.isdigit() else None


def say(text: str) -> None:
    """Write a line into the job's log of Slurm."""
    try:
        files.write_all(2, f"holdfast: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return
