"""Copies shared out to threads: every byte once, and an error is never taken for a copy."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import pytest

from holdfast.training.storage.write import copy

pytestmark = pytest.mark.contract


def address(data: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def moves_between(source: bytearray, target: bytearray, sizes: list[int]) -> list[copy.Move]:
    """The whole of `source` in pieces of these sizes, the last ones of it first in `target`."""
    found, at, to = [], 0, len(target)
    for size in sizes:
        to -= size
        found.append((address(target) + to, address(source) + at, size))
        at += size
    return found


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [1],
        [5, 1, 3000],
        [copy.ALONE_BELOW, 7],
        [copy.SMALL, copy.SMALL + 1, 1],
        [copy.PIECE * 5 + 3, 1, copy.PIECE, 12_000_001],
    ],
)
@pytest.mark.requirement("CKPT-17")
def test_every_byte_is_copied_once_to_its_place(sizes: list[int]) -> None:
    source, target = bytearray(os.urandom(sum(sizes))), bytearray(sum(sizes))
    copy.copy_all(moves_between(source, target, sizes))
    at, to = 0, len(target)
    for size in sizes:
        to -= size
        assert target[to : to + size] == source[at : at + size]
        at += size


def test_without_more_threads_it_copies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sizes = [copy.ALONE_BELOW, 100]
    source, target = bytearray(os.urandom(sum(sizes))), bytearray(sum(sizes))
    copy.copy_all(moves_between(source, target, sizes))
    assert target == source[sizes[0] :] + source[: sizes[0]]


def test_a_piece_that_one_thread_could_not_copy_is_an_error_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []

    def fail_once(*move: Any) -> None:
        copied.append(move)
        if len(copied) == 3:
            raise MemoryError

    monkeypatch.setattr(ctypes, "memmove", fail_once)
    with pytest.raises(MemoryError):
        copy.copy_all([(0, 0, copy.PIECE * 40)])
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-copy"]
