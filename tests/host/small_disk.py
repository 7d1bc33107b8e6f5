"""A real disk that is soon full: a tmpfs of a given size, mounted for one test."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_BYTES = 4096


@contextlib.contextmanager
def mount_small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a tmpfs of `size_bytes` at the new directory `path`; skips the test where that is not allowed."""
    path.mkdir()
    options = f"size={size_bytes},nr_inodes=64,mode=0700"
    command = ["mount", "-t", "tmpfs", "-o", options, "holdfast-test", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path, *, leave_bytes: int = 0) -> Path:
    """Take all space of the disk at `path` but `leave_bytes`; answers the file to unlink to free it."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(PAGE_BYTES))
        file.truncate(file.tell() - leave_bytes)
    return ballast
