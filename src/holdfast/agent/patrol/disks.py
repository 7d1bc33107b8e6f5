"""The disks of one run as they are now, for a patrol: bytes, inodes, and whether they fill soon (MON-10)."""

from __future__ import annotations

import os
from typing import Any

from holdfast.agent.view.run_view import RunView
from holdfast.core.patrol.evidence import DiskReading
from holdfast.core.run.trend import ALARM_S, SLOW_FACTOR
from holdfast.model import wire


def read_places(view: RunView, sample: dict[str, Any]) -> tuple[tuple[DiskReading, ...], list[str]]:
    """The disks that the run writes to: as its last sample has them, else as they are now; and what was not readable.

    The sample knows more (network mounts, caches, how fast they fill), and asking it touches no mount.
    """
    disks = sample.get("disks")
    sampled = [entry for entry in disks if isinstance(entry, dict)] if isinstance(disks, list) else []
    if sampled:
        found = [_place_of(entry) for entry in sampled]
        problems = [f"the disk {place}" for place in found if isinstance(place, str)]
        return tuple(place for place in found if isinstance(place, DiskReading)), problems
    places: dict[int, DiskReading] = {}
    problems = []
    for path in (view.run_dir, f"{view.run_dir}/{wire.CHECKPOINTS}", f"{view.run_dir}/{wire.ARTIFACTS}"):
        try:
            device = os.stat(path).st_dev
            if device not in places:
                places[device] = _measure(os.path.realpath(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"the disk of {path}: {error.strerror}")
    return tuple(places.values()), problems


def _place_of(entry: dict[str, Any]) -> DiskReading | str:
    """One disk of a sample; words when it did not answer."""
    where = str(entry.get("mount_point"))[:300]
    free, total = wire.as_number(entry.get("free_bytes")), wire.as_number(entry.get("total_bytes"))
    if free is None:
        return f"{where}: {str(entry.get('unread') or 'its sample says nothing')[:200]}"
    inodes, all_inodes = wire.as_number(entry.get("free_inodes")), wire.as_number(entry.get("total_inodes"))
    return DiskReading(
        path=where,
        free_bytes=int(free),
        byte_share=1 - free / total if total else None,
        inode_share=1 - inodes / all_inodes if inodes is not None and all_inodes else None,
        full_in_s=_fill_time(entry),
    )


def _fill_time(entry: dict[str, Any]) -> float | None:
    """Seconds until nothing is left, when that is soon and sure (`core.run.trend.is_soon`)."""
    between = entry.get("full_between_s")
    latest = wire.as_number(between[1]) if isinstance(between, list) and len(between) == 2 else None
    times = [wire.as_number(entry.get("inodes_full_in_s"))]
    if latest is not None and latest < SLOW_FACTOR * ALARM_S:
        times.append(wire.as_number(entry.get("full_in_s")))
    return min((time for time in times if time is not None and time < ALARM_S), default=None)


def _measure(path: str) -> DiskReading:
    facts = os.statvfs(path)
    usable = facts.f_blocks - facts.f_bfree + facts.f_bavail
    files = facts.f_files - facts.f_ffree + facts.f_favail
    return DiskReading(
        path=path,
        free_bytes=facts.f_bavail * facts.f_frsize,
        byte_share=1 - facts.f_bavail / usable if usable else None,
        inode_share=1 - facts.f_favail / files if facts.f_files and files else None,
    )
