"""The state of one save, copied once: where each file's bytes will lie, and the reused shared buffer that holds them.

The buffer is an anonymous shared file (memfd) that the writer process maps too: the training loop pays for one copy of
memory, nothing is sent. It is reused by every save and its pages are touched ahead of the first one, because a page
fault for each 4 KiB would cost more than the copy. Each file's region begins on a page, so the writer can write past
the page cache straight from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.model.record import record
from holdfast.training.storage import arrays
from holdfast.training.storage.layout import PAGE, PlacedArray, place_arrays

from .copy import copy_all

MADV_POPULATE_WRITE = 23
"""Linux 5.14; source: madvise(2)."""
HUGE_FROM = 64 << 20
"""From this many bytes on a buffer asks for huge pages: a direct write then has a 512th of the pages to pin.

Below it, the part of the last one that is not used would count.
"""
HEADROOM = 1.1
"""A snapshot is made in memory only where this many times its size is free."""


@record
class PlannedFile:
    """A file of the checkpoint: its path in the checkpoint, its place in the buffer, and what is copied into it."""

    path: str
    offset: int
    nbytes: int
    head: bytes
    items: tuple[tuple[Any, arrays.DescribedArray, int, int], ...] = ()
    """Arrays, their offsets from the file's beginning, and their bytes."""

    def pieces(self) -> Iterator[memoryview]:
        """The file's bytes, array by array, without the buffer: for a box whose memory has no room for a snapshot."""
        yield memoryview(self.head)
        for value, what, _, nbytes in self.items:
            address = arrays.address_of(value, what)
            if address is not None:
                # As it lies there: one array may be most of the state, and there is no room for a copy.
                yield memoryview((ctypes.c_char * nbytes).from_address(address))
            elif nbytes:
                yield memoryview(self._copy(value, what))

    def _copy(self, value: Any, what: arrays.DescribedArray) -> bytearray:  # noqa: ANN401 - an array of any library
        try:
            piece = bytearray(what.nbytes)
        except MemoryError:
            words = f"no memory for a copy of an array of {what.nbytes / 1e6:,.0f} MB"
            raise OSError(errno.ENOMEM, words, self.path) from None
        arrays.copy_into(value, what, piece, 0)
        arrays.synchronize()
        return piece


class Layouts:
    """The layouts of the save before, by tracked name: between two saves numbers change, seldom shapes."""

    def __init__(self) -> None:
        """None is known."""
        self._known: dict[str, tuple[dict[str, arrays.DescribedArray], tuple[bytes, list[PlacedArray], int]]] = {}

    def place(self, name: str, described: dict[str, arrays.DescribedArray]) -> tuple[bytes, list[PlacedArray], int]:
        """As `layout.place_arrays`."""
        known = self._known.get(name)
        if known is None or known[0] != described:
            known = self._known[name] = (described, place_arrays(described))
        return known[1]


def plan_files(
    prefix: str,
    tracked: Mapping[str, Mapping[str, Any]],
    state: bytes,
    described: Mapping[str, dict[str, arrays.DescribedArray]] | None = None,
    layouts: Layouts | None = None,
) -> list[PlannedFile]:
    """Every file of one rank: one data file for each tracked name that has arrays, then the document.

    `tracked` maps the name to its arrays by key, `described` to what they are stored as; `state` is the encoded
    document, `prefix` the rank's directory.
    """
    layouts = layouts or Layouts()
    planned, offset = [], 0
    for name, found in tracked.items():
        if not found:
            continue
        stored = (
            described[name] if described else {k: arrays.describe_array(v, f"{name}.{k}") for k, v in found.items()}
        )
        header, places, nbytes = layouts.place(name, stored)
        items = tuple((found[p.key], stored[p.key], p.start, p.end - p.start) for p in places)
        planned.append(PlannedFile(f"{prefix}{name}.safetensors", offset, nbytes, header, items))
        offset += _pages(nbytes)
    planned.append(PlannedFile(f"{prefix}state.json", offset, len(state), state))
    return planned


def bytes_needed(planned: list[PlannedFile]) -> int:
    """How large a buffer for these files is."""
    return planned[-1].offset + _pages(planned[-1].nbytes)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


class StateSnapshot:
    """The buffer. One save uses it at a time; whoever calls sees to that."""

    def __init__(self) -> None:
        """Make an empty one.

        Raises:
            OSError: this system has no anonymous shared files.
        """
        self.fd = os.memfd_create("holdfast-snapshot", os.MFD_CLOEXEC)
        self.size = 0
        self._map: mmap.mmap | None = None
        self._filling: threading.Thread | None = None

    def reserve(self, nbytes: int, *, ahead: bool = False) -> None:
        """Make room for `nbytes`; with `ahead`, touch the pages in a thread of its own, which never holds the GIL.

        Raises:
            OSError, MemoryError: there is no room.
        """
        if self._filling is not None and not ahead:
            self._filling.join()
            self._filling = None
        if nbytes > self.size:
            # A little more than asked for: an optimizer's numbers grow by digits, and each growth costs a new mapping.
            size = _pages(nbytes + (nbytes >> 6))
            os.ftruncate(self.fd, size)
            self._map = mmap.mmap(self.fd, size)
            self.size = size
            if size >= HUGE_FROM:
                advise_huge(self._map)
            if ahead:
                filling = threading.Thread(
                    target=_populate, args=(self._map, _pages(nbytes)), name="holdfast-pages", daemon=True
                )
                # The account or its group may have no more threads: then the first copy touches the pages.
                with contextlib.suppress(RuntimeError):
                    filling.start()
                    self._filling = filling

    def fill(self, planned: list[PlannedFile]) -> None:
        """Copy the files' bytes: when this returns, what was copied may be changed."""
        self.reserve(bytes_needed(planned))
        buffer = self._map
        assert buffer is not None
        base = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        waiting, moves = False, []
        for file in planned:
            buffer[file.offset : file.offset + len(file.head)] = file.head
            begin = base + file.offset
            for value, what, at, size in file.items:
                source = arrays.address_of(value, what)
                if source is None:
                    waiting |= arrays.copy_into(value, what, buffer, file.offset + at)
                else:
                    moves.append((begin + at, source, size))
        copy_all(moves)
        if waiting:
            arrays.synchronize()

    def close(self) -> None:
        """Give the memory back."""
        if self._filling is not None:
            self._filling.join()
        self._map = None  # views of arrays may still export it; it goes with them
        os.close(self.fd)


def advise_huge(mapped: mmap.mmap) -> None:
    """Ask for huge pages, where the kernel has them for shared memory (``shmem_enabled``: advise or more)."""
    with contextlib.suppress(OSError, AttributeError):
        mapped.madvise(mmap.MADV_HUGEPAGE)


def _populate(buffer: mmap.mmap, nbytes: int) -> None:
    """Have every page there. ctypes releases the GIL meanwhile; a kernel without the advice leaves it to the copy."""
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    step = 64 << 20  # in parts: the call holds the lock of the address space, which allocations of the loop need
    for at in range(0, nbytes, step):
        length = min(step, nbytes - at)
        if libc.madvise(ctypes.c_void_p(address + at), ctypes.c_size_t(length), MADV_POPULATE_WRITE) != 0:
            return


def memory_free(read: Callable[[str], str | None] | None = None) -> int | None:
    """Bytes of memory that this process may still take: the least of the box's and its cgroups' (v2 and v1).

    None when nothing says so.
    """
    read = read or _read
    lines = (read("/proc/meminfo") or "").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for path, limit_name, used_name in _memory_groups(read("/proc/self/cgroup") or ""):
        limit, used = read(f"{path}/{limit_name}"), read(f"{path}/{used_name}")
        if limit and used and limit.strip().isdigit():
            cached = _inactive_file(read(f"{path}/memory.stat") or "")
            found.append(max(0, int(limit) - int(used) + cached))
    return min(found, default=None)


def _memory_groups(listing: str) -> Iterator[tuple[str, str, str]]:
    """The memory cgroups of this process and all above them."""
    for line in listing.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = "/sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = "/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        while True:
            yield base + path.rstrip("/"), *names
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _inactive_file(stat: str) -> int:
    """Page cache that the kernel gives back before it kills."""
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None
