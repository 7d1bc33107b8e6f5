"""How much room a run needs on each disk, and whether it is there (PRE-06, PRE-07, RAIL-10). Pure arithmetic.

The checkpoint budget is the size of one checkpoint, optimizer state included, times those that are kept and one more:
the new one is written beside the old ones before any is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.finding import Finding, Level
from holdfast.model.record import record
from holdfast.model.units import format_bytes, format_count

if TYPE_CHECKING:
    from holdfast.model.job import DiskNeeds


@record
class DiskUse:
    """One mounted file system that the run writes to, with every path of the run that lies on it.

    `free_inodes` is None where the file system does not count them. `takes_checkpoints`: the checkpoint budget and
    the job's files fall on it. `optional`: a shortage there is a warning (a temporary directory that the job may never
    use).
    """

    mount_point: str
    kind: str
    paths: tuple[str, ...]
    free_bytes: int
    total_bytes: int
    free_inodes: int | None
    read_only: bool = False
    is_memory: bool = False
    takes_checkpoints: bool = False
    optional: bool = False


def checkpoint_budget(needs: DiskNeeds) -> int:
    """Bytes that the kept checkpoints and the one being written take: size x (keep + 1)."""
    return needs.checkpoint_bytes * (needs.keep + 1)


def judge_disk(use: DiskUse, needs: DiskNeeds) -> tuple[Finding, ...]:
    """Bytes and inodes of one file system against what the run needs there."""
    subject = f"{use.mount_point} ({use.kind})"
    used_for = ", ".join(use.paths)
    bad = Level.WARN if use.optional else Level.FAIL
    if use.read_only:
        return (Finding("disk.read_only", bad, subject, f"is read-only; used for {used_for}", "use another place"),)
    budget = checkpoint_budget(needs) if use.takes_checkpoints else 0
    wanted = needs.min_free_bytes + budget
    seen = f"{format_bytes(use.free_bytes)} free of {format_bytes(use.total_bytes)}; used for {used_for}"
    asked = f"needs {format_bytes(wanted)}" + (
        f" ({needs.keep} kept checkpoints and one being written of {format_bytes(needs.checkpoint_bytes)}, "
        f"and {format_bytes(needs.min_free_bytes)} to stay free)"
        if budget
        else " to stay free"
    )
    findings = []
    if use.free_bytes < wanted:
        missing = format_bytes(wanted - use.free_bytes)
        remedy = (
            f"free {missing} there, have the runs elsewhere (--runs; of a place its `root`), or lower disk.min_free "
            "or disk.keep"
        )
        findings.append(Finding("disk.bytes", bad, subject, f"{asked}; {seen}: {missing} short", remedy))
    else:
        findings.append(Finding("disk.bytes", Level.PASS, subject, f"{seen}; {asked}"))
    files = needs.expected_files if use.takes_checkpoints else 0
    if use.free_inodes is not None and use.free_inodes < needs.min_free_inodes + files:
        made = f"the job will make {format_count(files, 'file')} and " if files else ""
        kept = f"{needs.min_free_inodes} are to stay free"
        evidence = f"{use.free_inodes} inodes (files) free, {made}{kept}; used for {used_for}"
        remedy = "remove many small files there, or lower disk.min_free_inodes"
        if files:
            remedy = "write fewer, larger files (shards, one archive for each condition), or use another disk"
        findings.append(Finding("disk.inodes", bad, subject, evidence, remedy))
    elif use.free_inodes is not None:
        findings.append(Finding("disk.inodes", Level.PASS, subject, f"{use.free_inodes} inodes free"))
    return tuple(findings)
