"""Which block devices carry a file system, under the names that the kernel's log gives them (``sda1``, ``dm-0``)."""

from __future__ import annotations

import os
import stat

SYS = "/sys"
MOST_DEVICES = 64


def find_block_devices(device: int, source: str, *, system: str = SYS) -> tuple[str, ...] | None:
    """The device behind a file system, its whole disk, and what a mapped or joined one is made of, all the way down.

    None where that cannot be told: an overlay, an image that is not ours to see, a pool of several disks.

    Args:
        device: ``st_dev`` of something on it.
        source: What the mount table names as its source, for file systems whose ``st_dev`` is no device's (btrfs).
        system: Where sysfs is, for tests.
    """
    start = _find_entry(device, system) or _find_source(source, system)
    if start is None:
        return None
    found: list[str] = []
    todo = [start]
    while todo and len(found) < MOST_DEVICES:
        entry = todo.pop()
        name = os.path.basename(entry)
        if name in found:
            continue
        found.append(name)
        if os.path.exists(f"{entry}/partition"):
            todo.append(os.path.dirname(entry))
        todo += [os.path.realpath(f"{entry}/slaves/{slave}") for slave in _list(f"{entry}/slaves")]
    return tuple(found)


def _find_entry(device: int, system: str) -> str | None:
    path = f"{system}/dev/block/{os.major(device)}:{os.minor(device)}"
    return os.path.realpath(path) if os.path.lexists(path) else None


def _find_source(source: str, system: str) -> str | None:
    if not source.startswith("/"):
        return None
    try:
        facts = os.stat(source)
    except OSError:
        return None
    return _find_entry(facts.st_rdev, system) if stat.S_ISBLK(facts.st_mode) else None


def _list(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
