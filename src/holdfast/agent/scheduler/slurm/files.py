"""The files of a run that Slurm starts: ``slurm.json`` (which job it is) and ``batch.sh`` (what Slurm was given)."""

from __future__ import annotations

import os

from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.job.measured_saves import list_newest
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.pattern import compile_later
from holdfast.model.record import replace
from holdfast.model.slurm import SlurmRecord

RECORD = "slurm.json"
SCRIPT = "batch.sh"
LARGEST_BYTES = 1 << 20
_ARRAY = compile_later(r"\.sweeps-\d+/[A-Za-z0-9][A-Za-z0-9._-]*/\d+\Z")


def read_record(run_dir: str, arrays: dict[str, SlurmRecord | None] | None = None) -> SlurmRecord | None:
    """Which job a run is; None where nothing is recorded yet. Of a task of an array the id is ``JOB_TASK``.

    `arrays` keeps the records of arrays that were read for other runs.

    Raises:
        StorageError: it cannot be read.
    """
    record = _read(run_dir)
    if record is None or not record.array:
        return record
    directory = find_array(run_dir, record)
    known = {} if arrays is None else arrays
    if directory not in known:
        known[directory] = _read(directory)
    whole = known[directory]
    if whole is None:
        return record
    job_id = None if whole.job_id is None else f"{whole.job_id}_{record.task}"
    return replace(whole, array=record.array, task=record.task, job_id=job_id)


def find_array(run_dir: str, record: SlurmRecord) -> str:
    """The directory of the array that a run is a task of.

    Raises:
        StorageError: what is recorded names none.
    """
    if not _ARRAY.match(record.array) or record.task is None:
        raise StorageError(f"{run_dir}/{RECORD} names no array: {record.array[:80]!r}", hint="see who wrote it")
    return f"{os.path.dirname(os.path.abspath(run_dir))}/{record.array}"


def record_job(run_dir: str, record: SlurmRecord, native_id: str) -> SlurmRecord:
    """Record that a run's job is this one, which it says itself; the record then.

    Raises:
        StorageError: it cannot be written.
    """
    found = replace(record, job_id=native_id, submitted_at=utc_now())
    if record.array:
        job_id = native_id.split("_", maxsplit=1)[0]
        write_record(find_array(run_dir, record), replace(found, job_id=job_id, array="", task=None))
    else:
        write_record(run_dir, found)
    return found


def _read(run_dir: str) -> SlurmRecord | None:
    path = f"{run_dir}/{RECORD}"
    try:
        return wire.from_bytes(SlurmRecord, files.read_bytes(path, limit=LARGEST_BYTES), path)
    except FileNotFoundError:
        return None
    except (OSError, wire.WireError) as error:
        hint = "it says which job of Slurm the run is, and with which options: hand the job in as another run"
        raise StorageError(f"{path}: {error}", hint=hint) from error


def write_record(run_dir: str, record: SlurmRecord, *, durable: bool = True) -> None:
    """Record which job a run is.

    Raises:
        StorageError: it cannot be written.
    """
    _commit(f"{run_dir}/{RECORD}", wire.to_bytes(record), durable=durable)


def write_script(run_dir: str, text: str) -> str:
    """Write the batch script of a run; its path, by which Slurm knows the job, too.

    Raises:
        StorageError: it cannot be written.
    """
    path = f"{run_dir}/{SCRIPT}"
    _commit(path, text.encode())
    return path


def has_begun(run_dir: str) -> bool:
    """Whether a job has taken up the newest attempt of a run, or that cannot be told."""
    numbers = list_newest(run_dir)
    return not numbers or os.path.lexists(f"{wire.attempt_dir(run_dir, numbers[0])}/{wire.NATIVE}")


def has_ended(run_dir: str) -> bool:
    """Whether the end of the newest attempt of a run is on record."""
    numbers = list_newest(run_dir)
    return bool(numbers) and os.path.lexists(f"{wire.attempt_dir(run_dir, numbers[0])}/{wire.EXIT}")


def log_path(run_dir: str, record: SlurmRecord | None, job_id: str) -> str:
    """Where Slurm puts what a job prints: what `core.slurm.script` says, with the job's id; of a task, with its array.

    Raises:
        StorageError: what is recorded names no array.
    """
    if record is not None and record.array:
        return f"{find_array(run_dir, record)}/slurm-{job_id}.log"
    return f"{os.path.abspath(run_dir)}/slurm-{job_id}.log"


def script_path(run_dir: str) -> str:
    """Where the batch script of a run is."""
    return f"{os.path.abspath(run_dir)}/{SCRIPT}"


def _commit(path: str, data: bytes, *, durable: bool = True) -> None:
    try:
        files.commit(path, data, durable=durable)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see whether the disk is full") from error
