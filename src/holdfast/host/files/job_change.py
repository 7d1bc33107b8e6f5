"""The job of an attempt as it is in force: what ``run.json`` says, or what somebody changed since (``job.json``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.model import step_names, wire
from holdfast.model.record import replace

from . import fallback

LONGEST_PATH = 4096
if TYPE_CHECKING:
    from holdfast.model.job import JobSpec


def read_job_change(run_dir: str, attempt: int) -> tuple[int, dict[str, Any]]:
    """As `read_newest`, of ``job.json``."""
    return read_newest(run_dir, attempt, wire.JOB)


def read_newest(run_dir: str, attempt: int, name: str) -> tuple[int, dict[str, Any]]:
    """The newest record of a name at or before an attempt, with the number of its attempt; (0, {}) without one.

    Raises:
        OSError, WireError: it is there and cannot be read. An older one would be of another job.
    """
    run_id = os.path.basename(run_dir)
    for number in range(attempt, 0, -1):
        path = f"{wire.attempt_dir(run_dir, number)}/{name}"
        try:
            return number, wire.parse_object(fallback.read(run_id, number, path), name)
        except FileNotFoundError:
            continue
    return 0, {}


def find_job(record: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The job in force as JSON, from ``run.json`` and what `read_job_change` found; empty when neither has one.

    With the command as asked for: what an attempt runs instead of a script is in `AttemptCode`.
    """
    job = change.get("job")
    if isinstance(job, dict):
        return job
    job, snapshot = record.get("job"), record.get("snapshot")
    script = snapshot.get("script") if isinstance(snapshot, dict) else None
    if not isinstance(job, dict):
        return {}
    return {**job, "command": script["argv"]} if isinstance(script, dict) and "argv" in script else job


def wait_as_queued(spec: JobSpec, record: Mapping[str, Any]) -> JobSpec:
    """The job with the wait for cards that whoever queued its run (``run.json``) gave it; its own wait stands."""
    wait_s = record.get("gpu_wait_s")
    if not isinstance(wait_s, (int, float)) or not spec.gpus.wanted or spec.gpu.wait_s:
        return spec
    return replace(spec, gpu=replace(spec.gpu, wait_s=float(wait_s)))


def has_checkpoint(run_dir: str, job: Mapping[str, Any]) -> bool:
    """Whether something that is not hidden lies in the run's checkpoint directory or mirror, or where the job said."""
    said = _read_where_it_said(run_dir, job)
    return any(map(_holds_something, _list_own_places(run_dir, job))) or (said is not None and os.path.exists(said))


def find_newest_step(run_dir: str, job: Mapping[str, Any]) -> int | None:
    """Complete steps in the newest checkpoint of the training library; None: there is none of its own, or unreadable.

    A job that hangs or was killed did not hear of its last save, so its own word may be one behind.
    """
    return max((step for place in _list_checkpoint_places(run_dir, job) for step in _list_steps(place)), default=None)


def _list_checkpoint_places(run_dir: str, job: Mapping[str, Any]) -> list[str]:
    """The directories that `has_checkpoint` looks at, whether they are there or not."""
    said = _read_where_it_said(run_dir, job)
    return [*_list_own_places(run_dir, job), *([] if said is None else [os.path.dirname(said.rstrip("/"))])]


def _list_own_places(run_dir: str, job: Mapping[str, Any]) -> list[str]:
    stated = job.get("checkpoints")
    mirror = stated.get("mirror") if isinstance(stated, dict) else None
    places = [f"{run_dir}/{wire.CHECKPOINTS}"]
    return (
        [*places, f"{mirror.rstrip('/')}/{os.path.basename(run_dir)}"] if isinstance(mirror, str) and mirror else places
    )


def _read_where_it_said(run_dir: str, job: Mapping[str, Any]) -> str | None:
    """The path of the checkpoint of which the training library said, as it left, that it is the newest.

    A script may keep them in a directory of its own, whose path counts from that of the job.
    """
    workdir = job.get("workdir")
    try:
        attempts = [int(name) for name in os.listdir(f"{run_dir}/{wire.ATTEMPTS}") if name.isdecimal()]
        path = read_newest(run_dir, max(attempts, default=0), wire.STOP)[1].get("checkpoint")
        if not isinstance(path, str) or not 0 < len(path) <= LONGEST_PATH:
            return None
        return os.path.join(workdir if isinstance(workdir, str) else run_dir, path)
    except (OSError, ValueError):
        return None


def _holds_something(place: str) -> bool:
    try:
        return any(not name.startswith(".") for name in os.listdir(place))
    except OSError:
        return False


def _list_steps(place: str) -> list[int]:
    try:
        return [step for name in os.listdir(place) if (step := step_names.parse_step(name)) is not None]
    except OSError:
        return []
