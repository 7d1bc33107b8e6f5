"""Whether a job that was asked to leave is still at its last save: then it gets more time than its grace."""

from __future__ import annotations

import os
from collections.abc import Sequence

MOST_ENTRIES = 20_000
"""Looked at in one go: a save of more files is told by those."""


class ShutdownProgress:
    """What has been written below some directories, seen again and again."""

    def __init__(self, directories: Sequence[str]) -> None:
        """Nothing is looked at before `begin`."""
        self._directories = tuple(directories)
        self._seen = (0, 0)

    def begin(self) -> None:
        """Count from what is there now."""
        self._seen = self._measure()

    def has_moved(self) -> bool:
        """Whether anything was written since this was asked last."""
        before, self._seen = self._seen, self._measure()
        return self._seen != before

    def _measure(self) -> tuple[int, int]:
        """Total bytes and newest change."""
        total, newest, left = 0, 0, MOST_ENTRIES
        pending = list(self._directories)
        while pending and left > 0:
            try:
                entries = list(os.scandir(pending.pop()))
            except OSError:
                continue
            for entry in entries:
                left -= 1
                try:
                    facts = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                except OSError:
                    continue
                total += facts.st_size
                newest = max(newest, facts.st_mtime_ns)
        return total, newest
