"""The copy of a run's results to storage that lasts: its record at the run, and beside the copy (docs/results.md)."""

from __future__ import annotations

from .receipt import LeftOut
from .record import record
from .run import CopyState
from .units import format_bytes, format_count

ROSTER = "holdfast-results.json"
"""Beside a copy, and written last: the `ResultsRecord` of what lies there. Without it there is no whole copy."""


@record
class CopiedFile:
    """One file: its path below the run directory, and below the copy; size; SHA-256 as it was read back there."""

    path: str
    bytes: int
    sha256: str


@record
class Destination:
    """The content of ``destination.json``: where results are to lie, and the mount that this was on at preflight.

    That of ``mirror.json``, too: where checkpoints are copied to. `to` is as the job says it, `kind` the type of the
    file system.
    """

    to: str
    mount_point: str
    kind: str


@record
class ResultsRecord:
    """The content of ``results.json`` in an attempt, and of the roster beside the copy.

    `training` is the evidence of the job's own success, which no failed copy takes back. `to` is the copy's directory,
    `files_done` of `files_total` and `bytes_done` of `bytes_total` how far it is. `files` are those that are proven
    there: all of them once it is copied. `mended` are those of an earlier whole copy that were not any more what had
    been proven there, and were copied again. `problem` is why it failed; while it is copied, why the last try did.
    `pruned` says what of declared scratch was removed after it.
    """

    run_id: str
    attempt: int
    name: str
    job_sha256: str
    state: CopyState
    to: str
    began_at: str
    at: str
    by: str
    training: str = ""
    tries: int = 1
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    problem: str = ""
    pruned: str = ""
    files: tuple[CopiedFile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    mended: tuple[str, ...] = ()

    @property
    def extent(self) -> str:
        """What is proven there, for people: ``3 files, 1 GiB``."""
        return f"{count_files(self.files_done)}, {format_bytes(self.bytes_done)}"


def count_files(number: int) -> str:
    """So many files, in words."""
    return format_count(number, "file")
