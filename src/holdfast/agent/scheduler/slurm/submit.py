"""From a run that is there to exactly one job of Slurm.

In this order, each step durable before the next: script and name are written, sbatch takes the job, its id is recorded,
by us or by the job itself as soon as it runs. Whoever is killed in between leaves a job that is found again by its
script, which is this run's alone, or that has recorded itself. So the same call may come any number of times. Of two
jobs that two callers made at the same moment the older one stays; the other is cancelled, and would begin nothing
(`place.foreground.batch`).

The job is not held meanwhile: of a held job Slurm checks nothing, and it would wait for ever for what no node has
(measured with 22.05.8: ``--hold --gres=gpu:9`` is taken, without ``--hold`` it is refused).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from holdfast.agent.detached import build_command
from holdfast.core.control_characters import one_line
from holdfast.core.recorded_environment import select_recorded
from holdfast.core.slurm.reasons import NEVER, name_reason
from holdfast.core.slurm.script import ScriptPlan, mark_job, name_job, note_lead, render_script
from holdfast.core.slurm.states import find_meaning
from holdfast.core.slurm.texts import QueuedLine, read_duration
from holdfast.host.clock import format_utc, utc_now
from holdfast.host.files import files
from holdfast.host.job.measured_saves import find_save_s
from holdfast.model.errors import InternalError, PreflightFailed, StorageError
from holdfast.model.job import JobSpec
from holdfast.model.record import replace
from holdfast.model.scheduler import Phase
from holdfast.model.slurm import SlurmRecord
from holdfast.model.units import format_duration

from .commands import KEPT, LONGEST_WORDS, ask_squeue, call, cancel_jobs, clean_environment
from .facts import select_partitions
from .files import read_record, script_path, write_record, write_script

OF_THIS_MACHINE = frozenset({"TMPDIR", "XDG_RUNTIME_DIR"})
_JOB = re.compile(r"(\d{1,18})(?:;\S*)?")
_MOMENT = re.compile(r"(?<=to start at )\d{9,11}\b")


def prepare(
    run_dir: str, job: JobSpec, options: Mapping[str, str], env_from: str, after: Sequence[str] = ()
) -> SlurmRecord:
    """What is recorded of a run before Slurm hears of it, with its script written; as it stands where it is there.

    `after` are jobs of Slurm that are to succeed before.

    Raises:
        StorageError: it cannot be read or written.
    """
    known = read_record(run_dir)
    if known is not None and known.job_id is not None:
        return known
    run_id = os.path.basename(run_dir)
    # A restart that was cut off has jobs before it, which are to begin nothing.
    earlier = () if known is None else known.earlier
    record = SlurmRecord(name_job(run_id), mark_job(run_id), dict(options), env_from, earlier=earlier)
    return _write(run_dir, record, job, after)


def prepare_again(run_dir: str, job: JobSpec, after: Sequence[str] = ()) -> SlurmRecord:
    """As `prepare`, of a run whose recorded job is over: its script is written anew, and that job begins nothing more.

    A run of a sweep gets a job of its own.

    Raises:
        StorageError: it cannot be read or written, or was never handed to Slurm.
    """
    known = read_record(run_dir)
    if known is None:
        hint = "the `holdfast run` that it was ordered by goes on with it"
        raise StorageError(f"{os.path.basename(run_dir)} was not handed to Slurm yet", hint=hint)
    if known.array:
        run_id = os.path.basename(run_dir)
        known = replace(known, name=name_job(run_id), comment=mark_job(run_id), array="", task=None)
    if known.job_id is not None:
        known = replace(known, job_id=None, submitted_at=None, earlier=(*known.earlier, known.job_id))
    return _write(run_dir, known, job, after)


def _write(run_dir: str, record: SlurmRecord, job: JobSpec, after: Sequence[str]) -> SlurmRecord:
    """Write the script of a run's job, and what is recorded before Slurm hears of it."""
    command = build_command("slurm-batch", "--run", run_dir)
    # Of this job alone, and not recorded: another one of the run may have others to wait for, or none.
    waits = {"dependency": f"afterok:{':'.join(after)}"} if after else {}
    shown = replace(record, options={**record.options, **waits})
    plan = ScriptPlan(os.path.basename(run_dir), run_dir, shown, job, command, save_s=find_save_s(run_dir))
    written = replace(note_lead(plan), options=record.options)
    write_script(run_dir, render_script(plan))
    write_record(run_dir, written)
    return written


def submit(run_dir: str, record: SlurmRecord, environ: Mapping[str, str], *, fresh: bool = False) -> SlurmRecord:
    """Have Slurm take the run's job, once; the record with its id.

    `fresh`: nothing of it was recorded before this call, so Slurm has no job of it yet.

    Raises:
        PreflightFailed: Slurm refuses it, or would never start it; it has no job.
        PlaceError: no answer; the same call goes on with it.
        StorageError: its id cannot be recorded.
    """
    known = record if fresh or record.job_id is not None else find_job(run_dir, record)
    if known is not None and known.job_id is not None:
        return known
    _refuse_beyond_partition(run_dir)
    printed = call(("sbatch", "--parsable", script_path(run_dir)), environ=_choose_environ(environ))
    try:
        found = list_jobs(run_dir, record)
    except PreflightFailed:
        found = []  # squeue refuses, and Slurm has the job all the same
    made = _read_id(printed) or (found[-1].base if found else "")
    if not made:
        raise InternalError(f"sbatch answered {printed[:200]!r}, which names no job, and squeue lists none of this run")
    for line in found:
        if line.base == made and (hint := NEVER.get(name_reason(line.reason))):
            cancel_jobs((made,))
            raise PreflightFailed(f"Slurm would never start it: {line.reason}", hint=hint)
    return _keep_oldest(run_dir, record, found, made)


def find_job(run_dir: str, record: SlurmRecord) -> SlurmRecord | None:
    """The record with the id of the job that Slurm has already; None where it has none.

    Raises:
        PlaceError: it does not answer.
        StorageError: its id cannot be recorded.
    """
    found = list_jobs(run_dir, record)
    return _keep_oldest(run_dir, record, found, found[0].base) if found else None


def _keep_oldest(run_dir: str, record: SlurmRecord, found: list[QueuedLine], made: str) -> SlurmRecord:
    """Record the oldest job as the run's, and cancel the others, which begin nothing then."""
    job_id = found[0].base if found else made
    record = replace(record, job_id=job_id, submitted_at=utc_now())
    write_record(run_dir, record)
    with contextlib.suppress(PreflightFailed):
        cancel_jobs(line.base for line in found if line.base != job_id)
    return record


def _refuse_beyond_partition(run_dir: str) -> None:
    """Refuse more time or nodes than the partition has: where a site does not enforce it, such a job waits for ever.

    Source: slurm.conf(5), EnforcePartLimits.
    """
    asked = dict(re.findall(r"^#SBATCH --(time|partition|nodes)=(\S+)$", _read_script(run_dir), re.MULTILINE))
    wanted_s, nodes = read_duration(asked.get("time", "")), int(asked.get("nodes", "1"))
    if wanted_s is None and nodes == 1:
        return
    meant = select_partitions(asked.get("partition"))
    # Of a partition whose nodes come by themselves Slurm counts those that are there: none may be.
    if meant and all(one.nodes and nodes > one.nodes for one in meant):
        raise PreflightFailed(
            f"{nodes} nodes are more than partition {' or '.join(one.name for one in meant)} has",
            hint="ask for fewer, or another partition: `sinfo -s` shows them",
        )
    limits = [(one.max_time_s, one.name) for one in meant if one.max_time_s is not None]
    # Of several Slurm takes one that has the time.
    if wanted_s is None or len(limits) < len(meant):
        return
    most_s, name = max(limits, default=(wanted_s, ""))
    if wanted_s > most_s:
        raise PreflightFailed(
            f"the time limit {format_duration(wanted_s)} is beyond that of partition {name}, {format_duration(most_s)}",
            hint="ask for less with --slurm time=MINUTES, or another partition: `sinfo -s` shows the limits",
        )


def _read_script(run_dir: str) -> str:
    try:
        return files.read_bytes(script_path(run_dir)).decode("utf-8", "replace")
    except OSError as error:
        raise StorageError(f"{script_path(run_dir)}: {error.strerror}", hint="see df there") from error


def list_jobs(run_dir: str, record: SlurmRecord) -> list[QueuedLine]:
    """The jobs that Slurm has of a run and that are not over, the oldest first; without earlier ones of the record.

    Of an array each task that is listed.

    Raises:
        PlaceError: it does not answer.
    """
    return find_by_script(run_dir, record, ask_squeue(f"--user={os.geteuid()}", f"--name={record.name}"))


def find_by_script(run_dir: str, record: SlurmRecord, lines: Iterable[QueuedLine]) -> list[QueuedLine]:
    """Of these lines those of a run's jobs that are not over, by its script, the oldest first; none that was before."""
    path = script_path(run_dir)
    found = (line for line in lines if line.command.strip() == path and line.job_id not in record.earlier)
    living = (line for line in found if find_meaning(line.state).phase is not Phase.OVER)
    return sorted(living, key=lambda line: (len(line.base), line.base))


def ask_whether_it_would_run(run_dir: str, environ: Mapping[str, str]) -> str:
    """When and where Slurm would start a script that it does not get: its own words, with the time as people read it.

    Raises:
        PreflightFailed: it would not.
        PlaceError: it does not answer.
        StorageError: the script cannot be read.
    """
    _refuse_beyond_partition(run_dir)
    said = call(("sbatch", "--test-only", script_path(run_dir)), environ=_choose_environ(environ), said=True)
    words = one_line(said.strip().removeprefix("sbatch: "), LONGEST_WORDS)
    return _MOMENT.sub(lambda found: f"{format_utc(float(found[0]))[:16].replace('T', ' ')} UTC", words)


def _choose_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What Slurm keeps of our environment, and gives the job.

    No more than is recorded with a run anyway, and nothing that is only on this machine.
    """
    recorded = select_recorded(environ)
    mine = {name: value for name, value in recorded.items() if name not in OF_THIS_MACHINE}
    mine |= {name: environ[name] for name in KEPT if name in environ}
    return clean_environment(mine)


def _read_id(printed: str) -> str:
    """The id in what sbatch printed, in the last line that can be one: a site's wrapper may have said something before.

    Empty where there is none. Source: sbatch(1), ``--parsable``.
    """
    lines = (_JOB.fullmatch(line.strip()) for line in reversed(printed.splitlines()))
    return next((found[1] for found in lines if found is not None), "")
