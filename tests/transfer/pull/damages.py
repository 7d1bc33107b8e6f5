"""The ways in which a piece of a transfer is damaged."""

from __future__ import annotations

import random
from collections.abc import Callable

Spoil = Callable[[bytes, random.Random], "bytes | None"]


def flip(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def lose(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + data[at + draw.randrange(1, 5000) :]


def double(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[: at + draw.randrange(1, 5000)] + data[at:]


def swap(data: bytes, draw: random.Random) -> bytes:
    first, second = sorted(draw.sample(range(len(data) + 1), 2))
    return data[second:] + data[first:second] + data[:first]


def zero(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    size = min(draw.randrange(1, 4096), len(data) - at)
    return data[:at] + bytes(size) + data[at + size :]


def put_in(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + draw.randbytes(draw.randrange(1, 200)) + data[at:]


def cut(_data: bytes, _draw: random.Random) -> None:
    return None


DAMAGES: tuple[Spoil, ...] = (flip, flip, lose, double, swap, zero, put_in, cut)
