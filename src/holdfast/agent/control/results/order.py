"""What is to be copied of which attempt, and where to; how a copy that is under way is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.view.source_change import read_origin
from holdfast.host.clock import monotonic_s, utc_now
from holdfast.model import wire
from holdfast.model.record import record, replace
from holdfast.model.results import ResultsRecord
from holdfast.model.run import CopyState

if TYPE_CHECKING:
    from holdfast.host.files.copies.progress import Progress
    from holdfast.model.job import JobSpec

DEFAULT_PATHS = (wire.ARTIFACTS, f"{wire.ATTEMPTS}/*/metrics.jsonl")
"""What is copied where a job names nothing; either may be missing."""
STALLED_S = 300.0
"""A copy of which nothing moved for so long is given up: longer than a mount takes that comes back by itself."""


@record
class CopyOrder:
    """One copy: the record as it begins, and how it is to be made. `umask` is that of whoever wants the files.

    `place` is where to, as it was said: what is known of its mount is known by that.
    """

    run_dir: str
    begun: ResultsRecord
    paths: tuple[str, ...]
    tries: int
    wait_s: float
    umask: int
    place: str = ""


def build_order(run_dir: str, attempt: int, spec: JobSpec, *, to: str, by: str, training: str, umask: int) -> CopyOrder:
    """The copy of an attempt's results into a directory of its run's own below `to`."""
    origin, now = read_origin(run_dir), utc_now()
    run_id = run_dir.rstrip("/").rpartition("/")[2]
    begun = ResultsRecord(
        run_id=run_id,
        attempt=attempt,
        name=spec.name,
        job_sha256=str(origin.get("job_sha256") or ""),
        state=CopyState.COPYING,
        to=f"{to.rstrip('/')}/{run_id}",
        began_at=now,
        at=now,
        by=by,
        training=training,
    )
    results = spec.results
    return CopyOrder(run_dir, begun, results.paths, results.tries, results.wait_s, umask, to)


def describe_progress(begun: ResultsRecord, progress: Progress) -> ResultsRecord:
    """The record with the numbers and the words of now."""
    total, size, done, done_bytes, _ = progress.read()
    numbers = replace(begun, files_total=total, bytes_total=size, files_done=done, bytes_done=done_bytes)
    return replace(numbers, problem=progress.read_words())


class Watch:
    """Whether a copy still moves, by its numbers."""

    def __init__(self, progress: Progress) -> None:
        """It moves now."""
        self._progress, self._ticks, self._since = progress, -1, monotonic_s()

    def is_stalled(self) -> bool:
        """Whether nothing has moved for `STALLED_S`."""
        ticks = self._progress.read()[4]
        if ticks != self._ticks:
            self._ticks, self._since = ticks, monotonic_s()
        return monotonic_s() - self._since > STALLED_S
