"""The doctor's findings about runs and disks: what earlier runs left, room for the next ones, and what takes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.agent.checks.box import describe_leftovers
from holdfast.agent.checks.context import failed, passed, unknown, warned
from holdfast.agent.patrol.reconcile import reconcile
from holdfast.agent.view.runs.leftovers import find_leftovers
from holdfast.diagnosis.storage.consumers import Consumer, MeasuredPath, find_consumers, list_caches
from holdfast.host.files.disks import DiskSpace, DiskUnreadable, measure_space
from holdfast.host.files.filesystems import read_mounts
from holdfast.model.finding import Finding
from holdfast.model.units import format_bytes, format_count

if TYPE_CHECKING:
    from .host import HostFacts

LOW_BYTES = 1_000_000_000
LOW_INODES = 1000
SHORT_PCT = 10
"""Less free than this is a warning. Source: the alarm of netdata (90 %)."""
WALK_WITHIN_S = 8.0
SMALL_BYTES = 100 * 1024**2
MOST_CONSUMERS = 8
MOST_DEEDS = 10
RECORDS_WITHIN_S = 5.0


def check_leftovers(host: HostFacts) -> Iterator[Finding]:
    """Processes of runs that have ended."""
    yield from describe_leftovers(find_leftovers(roots=host.roots))


def check_records(host: HostFacts) -> Iterator[Finding]:
    """Runs whose supervisor is gone, and sentinels that wait for nothing any more."""
    seen = reconcile(host.roots, dry_run=True, whole_s=RECORDS_WITHIN_S)
    for deed in seen.repairs[:MOST_DEEDS]:
        yield warned("doctor.records", deed.subject, f"{deed.kind.value}: {deed.why}", "holdfast reconcile")
    for text in seen.unread[:MOST_DEEDS]:
        yield unknown("doctor.records", "records", text, "holdfast reconcile --dry-run")
    if not seen.repairs and not seen.unread:
        count = format_count(seen.runs, "run")
        yield passed("doctor.records", "records", f"{count}, and every sentinel, are in line with what is so")


def check_disks(host: HostFacts) -> Iterator[Finding]:
    """Bytes and inodes where runs, caches and temporary files lie, each file system once."""
    mounts = read_mounts()
    seen: dict[int, tuple[DiskSpace, list[str]]] = {}
    for name, path in _list_places(host):
        try:
            space = measure_space(path, mounts)
        except DiskUnreadable as error:
            yield unknown("doctor.disk", path, f"{name}: not told: {error.strerror}", "see whether its server answers")
            continue
        # Only now: on a server that hangs, looking whether it is there would hang, too.
        if not os.path.lexists(path):
            continue
        label = name if os.path.realpath(path) == os.path.abspath(path) else f"{name} {path} -> {space.real_path}"
        seen.setdefault(space.device, (space, []))[1].append(label)
    for space, names in seen.values():
        yield from judge_space(space, names)


def _list_places(host: HostFacts) -> Iterator[tuple[str, str]]:
    for root in host.roots:
        yield "runs", root
    yield "home", os.path.expanduser("~")
    yield from ((place.name, place.path) for place in list_caches(host.environ))
    yield "temporary files", host.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - looked at, not written to


def judge_space(space: DiskSpace, names: list[str]) -> Iterator[Finding]:
    """Bytes and inodes of one file system, with what lies on it."""
    subject = f"{space.mount_point} ({space.kind})"
    used_for = ", ".join(dict.fromkeys(names))
    free = f"{format_bytes(space.free_bytes)} of {format_bytes(space.total_bytes)} free; used for {used_for}"
    remedy = "see the largest places below; holdfast prune RUN for a run's scratch, holdfast rm RUN for ended runs"
    if space.read_only:
        yield warned("doctor.disk", subject, f"is read-only; used for {used_for}", "use another place")
    elif space.free_bytes < LOW_BYTES:
        yield failed("doctor.disk", subject, free, remedy)
    elif space.free_bytes * 100 < space.total_bytes * SHORT_PCT:
        yield warned("doctor.disk", subject, free, remedy)
    else:
        yield passed("doctor.disk", subject, free)
    if space.free_inodes is not None and space.free_inodes < LOW_INODES:
        text = f"only {space.free_inodes} files can still be made, whatever bytes are free; used for {used_for}"
        yield failed("doctor.inodes", subject, text, "remove many small files: caches first, then ended runs")
    if space.is_network and any(name.startswith("runs") for name in names):
        text = "runs lie on a network file system: a server that hangs stops their records and their checkpoints"
        yield warned("doctor.network_disk", subject, text, "keep runs on a local disk: HOLDFAST_RUNS=/local/you/runs")


def check_consumers(host: HostFacts) -> Iterator[Finding]:
    """What takes the room: caches behind a link first, with their real place."""
    host.tell(f"measuring caches and runs (up to {WALK_WITHIN_S:g} s)")
    places = [
        *list_caches(host.environ),
        *(MeasuredPath("runs", root, "holdfast rm RUN, for ended runs") for root in host.roots),
    ]
    reading = find_consumers(places, within_s=WALK_WITHIN_S)
    if reading.value is None:
        yield unknown("doctor.consumers", "caches and runs", reading.unread, "du -sh ~/.cache/*")
        return
    told = [one for one in reading.value if one.linked or one.size_bytes >= SMALL_BYTES or one.unread]
    for one in told[:MOST_CONSUMERS]:
        yield _describe(one)
    if not told:
        yield passed("doctor.consumers", "caches and runs", f"none takes more than {format_bytes(SMALL_BYTES)}")


def _describe(one: Consumer) -> Finding:
    size = f"{'' if one.whole else 'at least '}{format_bytes(one.size_bytes)} in {format_count(one.files, 'file')}"
    place = (
        f"{one.path} lies in {one.real_path}, on {one.mount_point}"
        if one.linked
        else f"{one.path}, on {one.mount_point}"
    )
    if one.unread:
        return unknown(
            "doctor.consumers", one.name, f"{size}: {place}; not read: {one.unread}", f"du -sh {one.real_path}"
        )
    return passed(
        "doctor.consumers", one.name, f"{size}: {place}" + (f"; to make room: {one.advice}" if one.advice else "")
    )
