"""Payloads that read or write on the fault's disk until that fails."""

from __future__ import annotations

import mmap
import os
import time

from .common import LONGEST_S, choose, disk, mark, say_ready, told_errno, train, wait_for_act

CHUNK = bytes(1 << 16)
MANY = 1000


def write() -> None:
    """A checkpoint that does not fit."""
    train()
    with told_errno(), open(f"{disk()}/checkpoint.pt.tmp", "wb", buffering=0) as file:
        file.writelines(CHUNK for _ in range(MANY))


def many_files() -> None:
    """One small file for each sample."""
    train()
    for number in range(MANY):
        with told_errno(), open(f"{disk()}/sample-{number:05d}.json", "w", encoding="utf-8") as file:
            file.write("{}")


def read() -> None:
    """The data set."""
    train()
    with told_errno(), open(f"{disk()}/data.bin", "rb", buffering=0) as file:
        mark("reading")
        file.read(len(CHUNK))


def shared_memory() -> None:
    """A batch handed over in /dev/shm that the mount has no room for: the page cannot be had, SIGBUS."""
    train()
    size = 8 << 20
    descriptor = os.open("/dev/shm/batch", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)  # noqa: S108 - a private mount
    os.ftruncate(descriptor, size)
    with mmap.mmap(descriptor, size) as area:
        mark("mapped")
        for offset in range(0, size, mmap.PAGESIZE):
            area[offset] = 1


def frozen() -> None:
    """Writes that the frozen file system takes only when it is thawed."""
    with open(f"{disk()}/log", "ab", buffering=0) as file:
        file.write(CHUNK)
        train()
        say_ready()
        wait_for_act()
        mark("writing")
        file.write(CHUNK)
        os.fsync(file.fileno())
    time.sleep(LONGEST_S)


if __name__ == "__main__":
    {f.__name__.replace("_", "-"): f for f in (write, many_files, read, shared_memory, frozen)}[choose()]()
