"""Real file systems for one test: images in files, mounted through loop devices."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
# Source: include/uapi/linux/sched.h, include/uapi/linux/mount.h.
NEW_MOUNTS, OWN_PLACE = 0x20000, 0x200
RECURSIVE, PRIVATE = 1 << 14, 1 << 18


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
def private_mounts() -> Iterator[None]:
    """Within the block this thread, and what it starts, see mounts that nobody else does.

    Else whoever makes a mount namespace of its own meanwhile (a container, a job of another test) keeps a copy of each
    mount, and the images stay busy for as long as it lives.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before, where = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), os.getcwd()
    try:
        if libc.unshare(NEW_MOUNTS) != 0 or libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None) != 0:
            pytest.skip(f"no mount namespace can be made here: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        # Threads that began meanwhile (torch's) share their place with this one: setns(2) wants it for itself.
        if libc.unshare(OWN_PLACE) != 0 or libc.setns(before, NEW_MOUNTS) != 0:
            raise OSError(ctypes.get_errno(), "the way back to the mounts of this box")
        os.chdir(where)
        os.close(before)


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
