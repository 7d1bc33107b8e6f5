"""Real file systems for one test: images in files, mounted through loop devices."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def run(*command: str) -> str:
    """Run a tool of the system; its output, without the last newline.

    Raises:
        OSError: it failed; the message has its words.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def need(*tools: str) -> None:
    """Skip where loop devices or tools are missing."""
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        pytest.skip("mounting images takes root and loop devices")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; `make test` installs what scripts/system-packages.txt names")


def make_image(path: Path, mebibytes: int, kind: str, options: Sequence[str] = ()) -> None:
    """A new image with an empty file system."""
    need(f"mkfs.{kind}")
    with path.open("wb") as file:
        file.truncate(mebibytes << 20)
    force = "-F" if kind == "ext4" else "-f"
    run(f"mkfs.{kind}", "-q", force, *options, str(path))


@contextlib.contextmanager
def attached(image: Path) -> Iterator[str]:
    """A loop device for an image."""
    device = run("losetup", "--find", "--show", str(image))
    try:
        yield device
    finally:
        run("losetup", "--detach", device)


@contextlib.contextmanager
def mounted(device: str, place: Path, *options: str) -> Iterator[Path]:
    """Mount a device at a directory, which is made."""
    place.mkdir(exist_ok=True)
    run("mount", *(("-o", ",".join(options)) if options else ()), device, str(place))
    try:
        yield place
    finally:
        run("umount", str(place))
