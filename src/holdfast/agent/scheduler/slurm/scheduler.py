"""Slurm as a `Scheduler`: one squeue for all runs of a look, and one sacct for those that it has forgotten.

squeue lists what ended within MinJobAge as well, as ``scontrol show job`` does: there is nothing to ask of each job.
What it does not list is over; how it ended sacct may know, where the site keeps accounts and they answer at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.core.control_characters import one_line
from holdfast.core.slurm.contradictions import refuse_contradictions
from holdfast.core.slurm.options import check_options, lay_over
from holdfast.core.slurm.reasons import ENDS, advise
from holdfast.core.slurm.states import find_meaning
from holdfast.core.slurm.texts import SACCT_FIELDS, AccountedJob, QueuedLine, read_sacct
from holdfast.host.clock import epoch_s, format_utc, utc_now
from holdfast.host.files.files import read_last_lines
from holdfast.model.errors import HoldfastError, PreflightFailed, StorageError, UsageError
from holdfast.model.record import replace
from holdfast.model.run import StopCause
from holdfast.model.scheduler import Phase, SchedulerReport
from holdfast.model.slurm import SlurmRecord
from holdfast.model.units import format_bytes, format_duration

from .arrays import find_array, note_task, read_most_tasks, submit_array
from .check import check_attempt
from .commands import ask_squeue, call, cancel_jobs
from .files import RECORD, SCRIPT, has_begun, has_ended, log_path, read_record, script_path, write_record
from .submit import find_by_script, prepare_again, submit

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

LOOK_LIMIT_S = 10.0
SACCT_LIMIT_S = 3.0
MOST_IDS = 5000
"""So many ids fit into one word of a command line (128 KiB); of more forgotten jobs the newest are asked for."""
MEMORY_FACTOR = 1.2
MOST_LOG_BYTES, MOST_WORDS = 4096, 300
ARRAYS = "/.sweeps-"
"""In the path of each array's script (`model.runs_root.sweeps_dir`)."""
NOT_HANDED = "it was not handed to Slurm yet, as far as is recorded"


def open_here() -> SlurmScheduler:
    """The Slurm that this machine's commands speak to."""
    return SlurmScheduler()


class SlurmScheduler:
    """The Slurm that this machine's commands speak to."""

    read_most_tasks = staticmethod(read_most_tasks)
    submit_array = staticmethod(submit_array)
    find_array = staticmethod(find_array)
    note_task = staticmethod(note_task)
    check_attempt = staticmethod(check_attempt)

    def look(self, run_dirs: Iterable[str]) -> dict[str, SchedulerReport]:
        """As of `Scheduler.look`."""
        known, damaged = _read_records(run_dirs)
        unknown = SchedulerReport("", Phase.UNKNOWN, "", evidence=NOT_HANDED)
        found = {run_dir: unknown for run_dir, record in known.items() if record is None}
        records = {run_dir: record for run_dir, record in known.items() if record is not None}
        if not records:
            return found
        owners = {run_dir: _find_owner(run_dir) for run_dir in records}
        queued = _ask_queue({os.geteuid(), *owners.values()})
        listed = {line.base: line for line in queued.values()}
        lines = {run_dir: _find_line(run_dir, record, queued) for run_dir, record in records.items()}
        forgotten = [run_dir for run_dir, line in lines.items() if line is None and not has_ended(run_dir)]
        accounted = _ask_accounting({job_id for one in forgotten if (job_id := records[one].job_id) is not None})
        for run_dir, line in lines.items():
            job_id, mine = records[run_dir].job_id, os.geteuid() in (0, owners[run_dir])
            if line is not None:
                found[run_dir] = _read_line(line)
            elif run_dir in damaged:
                found[run_dir] = _read_damaged(run_dir, damaged[run_dir], queued.values(), mine=mine)
            elif job_id is None:
                found[run_dir] = unknown
            elif _was_taken_out(run_dir, records[run_dir], listed.get(job_id.partition("_")[0])):
                words = f"Slurm: job {job_id} was cancelled before it began: it lists others of its array only"
                found[run_dir] = SchedulerReport(
                    job_id, Phase.OVER, "CANCELLED", evidence=words, cause=StopCause.SIGNAL
                )
            else:
                found[run_dir] = _read_forgotten(job_id, accounted.get(job_id), mine=mine)
        return {run_dir: _add_log(run_dir, known.get(run_dir), word) for run_dir, word in found.items()}

    def cancel(self, run_dirs: Iterable[str], words: Mapping[str, SchedulerReport] | None = None) -> None:
        """As of `Scheduler.cancel`."""
        jobs = _name_jobs(run_dirs, words)
        # Of a submitter that was killed nothing is recorded, and by its script a job is found only while it lives.
        for run_dir, job_id in jobs.items():
            _record_found(run_dir, job_id)
        cancel_jobs(jobs.values())

    def hold(self, run_dir: str, *, held: bool) -> str:
        """As of `Scheduler.hold`."""
        word = self.look([run_dir]).get(run_dir)
        if word is None or word.phase is not Phase.WAITING:
            seen = "Slurm says nothing of it" if word is None else word.evidence
            run_id = os.path.basename(run_dir)
            raise UsageError(f"{run_id}: only a job that waits can be held ({seen})", hint=f"holdfast show {run_id}")
        # A hold of the user's, whoever types it: the owner can take it back. Source: scontrol(1), uhold.
        call(("scontrol", "uhold" if held else "release", word.native_id))
        return word.native_id

    def begin_again(self, run_dir: str, job: JobSpec, after: Sequence[str]) -> str:
        """As of `Scheduler.begin_again`."""
        known = read_record(run_dir)
        options = check_options(lay_over(known.options if known is not None else {}, job.slurm))
        # Of an earlier version one that is recorded may have come of --after.
        if after and "dependency" in check_options(job.slurm):
            hint = "leave dependency out: it waits again for what it was to begin after; or hand it in as another run"
            raise UsageError("the --after of this run and --slurm dependency say the same", hint=hint)
        refuse_contradictions(job, options)
        try:
            done = submit(run_dir, prepare_again(run_dir, job, after), os.environ)
        except PreflightFailed:
            if known is not None:
                write_record(run_dir, known)
            raise
        assert done.job_id is not None
        return done.job_id


def _record_found(run_dir: str, job_id: str) -> None:
    """Record the job of a run that was found by its script, so that its end is seen; not where that cannot be."""
    with contextlib.suppress(StorageError):
        record = read_record(run_dir)
        if record is not None and record.job_id is None and not record.array:
            write_record(run_dir, replace(record, job_id=job_id, submitted_at=utc_now()))


def _name_jobs(run_dirs: Iterable[str], words: Mapping[str, SchedulerReport] | None) -> dict[str, str]:
    """The ids of the jobs of these runs that Slurm lists: by the words of a look, or by one that is made here.

    Raises:
        PlaceError, PreflightFailed: as of `call`.
    """
    if words is not None:
        living = {run_dir: word for run_dir, word in words.items() if word.phase is not Phase.OVER}
        return {run_dir: word.native_id for run_dir, word in living.items() if word.native_id}
    records = {one: record for one, record in _read_records(run_dirs)[0].items() if record is not None}
    if not records:
        return {}
    queued = _ask_queue({os.geteuid(), *map(_find_owner, records)})
    lines = {run_dir: _find_line(run_dir, record, queued) for run_dir, record in records.items()}
    return {run_dir: line.job_id for run_dir, line in lines.items() if line is not None}


def _read_records(run_dirs: Iterable[str]) -> tuple[dict[str, SlurmRecord | None], dict[str, str]]:
    """What is recorded of the jobs of these runs, as of `read_record`; and of which it is damaged, with what was seen.

    A damaged record is as one without an id: the run's job is then found by its script.
    """
    found: dict[str, SlurmRecord | None] = {}
    damaged: dict[str, str] = {}
    arrays: dict[str, SlurmRecord | None] = {}
    for run_dir in run_dirs:
        try:
            found[run_dir] = read_record(run_dir, arrays)
        except StorageError as error:
            found[run_dir], damaged[run_dir] = SlurmRecord("", ""), str(error)
    return found, damaged


def _read_damaged(run_dir: str, problem: str, lines: Iterable[QueuedLine], *, mine: bool) -> SchedulerReport:
    """Of a run that nothing readable says the job of, and that has none by its script.

    A run without a script of its own is a task of an array: of one of those that are listed, or of none.
    """
    words = f"which job of Slurm it is cannot be read: {problem}"
    living = (line for line in lines if find_meaning(line.state).phase is not Phase.OVER)
    may_be_task = not os.path.lexists(script_path(run_dir)) and any(ARRAYS in line.command for line in living)
    if may_be_task or not mine:
        return SchedulerReport("", Phase.UNKNOWN, f"damaged {RECORD}", evidence=words)
    return SchedulerReport("", Phase.OVER, "", evidence=f"{words}; Slurm lists none with its script")


def _find_line(run_dir: str, record: SlurmRecord, queued: Mapping[str, QueuedLine]) -> QueuedLine | None:
    """The line of a run's job; of one whose submitter was killed before it could record it, found by its script."""
    if record.job_id is not None or record.array:
        line = queued.get(record.job_id or "")
        return line if line is not None and _may_be_of(run_dir, record, line) else None
    return next(iter(find_by_script(run_dir, record, queued.values())), None)


def _may_be_of(run_dir: str, record: SlurmRecord, line: QueuedLine) -> bool:
    """Whether a job is this run's by its script, where that is told: a Slurm that was set up anew gives ids again.

    The root may be reached by another path than when the job was handed in.
    """
    command, mine = line.command.strip(), record.array or os.path.basename(os.path.abspath(run_dir))
    return command in ("", "(null)") or command.endswith(f"/{mine}/{SCRIPT}")


def _was_taken_out(run_dir: str, record: SlurmRecord, other: QueuedLine | None) -> bool:
    """Whether a task was cancelled before it began: Slurm forgets it at once, and still lists an `other` of its array.

    Measured with 22.05.8; when all that wait are cancelled, the array itself is listed without tasks.
    """
    if not record.array or other is None:
        return False
    return _may_be_of(run_dir, record, other) and not has_begun(run_dir)


def _find_owner(run_dir: str) -> int:
    """The account whose job a run is; ours where that is not told."""
    try:
        return os.stat(run_dir).st_uid
    except OSError:
        return os.geteuid()


def _as_number(job_id: str) -> tuple[int, str]:
    head = job_id.split("_", maxsplit=1)[0]
    return (int(head) if head.isdigit() else 0, job_id)


def _ask_queue(users: Iterable[int]) -> Mapping[str, QueuedLine]:
    """What squeue has of these accounts by id, in any state: so an id that it does not know is no error."""
    names = ",".join(map(str, sorted(users)))
    lines = ask_squeue("--array", f"--user={names}", "--states=all", limit_s=LOOK_LIMIT_S)
    return {line.job_id: line for line in lines}


def _ask_accounting(wanted: set[str]) -> Mapping[str, AccountedJob]:
    """What sacct has of these jobs; nothing where it does not answer, and nothing depends on it."""
    if not wanted:
        return {}
    ids = ",".join(sorted(wanted, key=_as_number)[-MOST_IDS:])
    words = ("sacct", "--noheader", "--parsable2", f"--jobs={ids}", f"--format={SACCT_FIELDS}")
    try:
        return read_sacct(call(words, limit_s=SACCT_LIMIT_S))
    except HoldfastError:
        return {}


def _add_log(run_dir: str, record: SlurmRecord | None, word: SchedulerReport) -> SchedulerReport:
    """Of a job that is over before an attempt was begun: where the node's own words are, and the last of them."""
    if word.phase is not Phase.OVER or not word.native_id or has_begun(run_dir):
        return word
    try:
        path = log_path(run_dir, record, word.native_id)
        lines = read_last_lines(path, MOST_LOG_BYTES)
    except (OSError, StorageError):
        return word
    if not lines:
        return word
    last = one_line(lines[-1].decode("utf-8", "replace"), MOST_WORDS)
    return replace(word, evidence=f"{word.evidence}; {path} ends with: {last}")


def _read_line(line: QueuedLine) -> SchedulerReport:
    meaning = find_meaning(line.state)
    reason = "" if line.reason == "None" else line.reason
    told = f" ({reason})" if reason else ""
    words = f"Slurm: job {line.job_id} {meaning.words}: {line.state}{told}"
    advice = _advise_end(meaning.cause)
    if meaning.phase is Phase.WAITING:
        advice = advise(reason)
        if line.starts_at is not None and (wait_s := line.starts_at - epoch_s()) > 0:
            at = format_utc(line.starts_at)[:16].replace("T", " ")
            words += f", expected to start in {format_duration(wait_s)} ({at} UTC)"
    elif meaning.phase in (Phase.RUNNING, Phase.SUSPENDED) and line.used_s is not None and line.limit_s is not None:
        words += f", {format_duration(line.used_s)} of its {format_duration(line.limit_s)} used"
    elif meaning.phase is Phase.OVER:
        advice = advice or ENDS.get(reason, "")
    return SchedulerReport(line.job_id, meaning.phase, line.state, reason, words, meaning.cause, advice)


def _read_forgotten(job_id: str, accounted: AccountedJob | None, *, mine: bool) -> SchedulerReport:
    """Of a job that squeue does not list: how it ended, as far as that is told."""
    words = f"Slurm does not know job {job_id} any more, neither in its queue nor among those that ended lately"
    if accounted is None:
        if mine:
            return SchedulerReport(job_id, Phase.OVER, "", evidence=words)
        words = f"Slurm does not show job {job_id} to this account, or does not know it any more"
        return SchedulerReport(job_id, Phase.UNKNOWN, "", evidence=words)
    meaning, state = find_meaning(accounted.state), accounted.state
    if meaning.phase is not Phase.OVER:
        # The end of a job that the controller has forgotten never came to the accounts, or is still on its way.
        return SchedulerReport(job_id, Phase.OVER, "", evidence=f"{words}; its accounts still say {state}")
    words = f"Slurm's accounts: job {job_id} {meaning.words}: {state}, ExitCode {accounted.exit_code}"
    if accounted.peak_bytes:
        # Of all that Slurm says of a job the evidence alone is recorded.
        words += f", MaxRSS {format_bytes(accounted.peak_bytes)}"
    advice = _advise_end(meaning.cause, accounted.peak_bytes)
    return SchedulerReport(job_id, Phase.OVER, state, evidence=words, cause=meaning.cause, advice=advice)


def _advise_end(cause: StopCause | None, peak_bytes: int | None = None) -> str:
    """What to change so that the next one does not end so."""
    if cause is not StopCause.MEMORY:
        return ""
    if not peak_bytes:
        return "ask for more with --limit-memory; a smaller batch does not help against a lack of host memory"
    wanted = format_bytes(int(peak_bytes * MEMORY_FACTOR)).replace(" ", "")
    return (
        f"at least {format_bytes(peak_bytes)} were in use (MaxRSS, which is sampled: the peak was higher); "
        f"ask for --limit-memory {wanted} or more; a smaller batch does not help against a lack of host memory"
    )
