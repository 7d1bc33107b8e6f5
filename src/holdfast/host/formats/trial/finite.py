"""Whether numbers in raw bytes are finite, without a library that knows numbers.

A float whose exponent is all ones is infinite or no number (IEEE 754). Of every element only the byte with the upper
part of the exponent is looked at, as one slice; what it does not rule out is looked at in full.
"""

from __future__ import annotations

from collections.abc import Iterable

BLOCK = 1 << 20
"""Bytes that are looked at at a time: a multiple of every element's size."""
SIZES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
"""Codes of floats, as safetensors names them, and their bytes."""
EIGHT_BIT = {
    "F8_E4M3": b"\x7f\xff",
    "F8_E5M2": bytes(value for value in range(256) if value & 0x7C == 0x7C),
    "F8_E8M0": b"\xff",
    "F8_E4M3FNUZ": b"\x80",
    "F8_E5M2FNUZ": b"\x80",
}
"""Of floats of one byte, those that are infinite or no number.

Sources: OCP 8-bit Floating Point Specification 1.0, table 2; OCP Microscaling Formats 1.0, 5.4.1; torch/headeronly/util
(`Float8_e4m3fnuz.h`, `Float8_e5m2fnuz.h`).
"""
_HIGH = {
    "F16": bytes(value for value in range(256) if value & 0x7C == 0x7C),
    "BF16": b"\x7f\xff",
    "F32": b"\x7f\xff",
    "F64": b"\x7f\xff",
}
_LOW = {"F16": 0x00, "BF16": 0x80, "F32": 0x80, "F64": 0xF0}
"""The part of the exponent in the byte below."""


def count_not_finite(code: str, pieces: Iterable[bytes], *, big_endian: bool = False) -> int:
    """How many of the floats are infinite or no number; 0 of what is no float. `pieces` may be of any length."""
    if code in EIGHT_BIT:
        return sum(len(piece) - len(piece.translate(None, EIGHT_BIT[code])) for piece in pieces)
    size = SIZES.get(code)
    if size is None:
        return 0
    found, held = 0, b""
    for piece in pieces:
        data = held + piece if held else piece
        whole = len(data) - len(data) % size
        held = data[whole:]
        for at in range(0, whole, BLOCK):
            found += _count(code, data[at : min(at + BLOCK, whole)], size, big_endian=big_endian)
    return found


def _count(code: str, block: bytes, size: int, *, big_endian: bool) -> int:
    high = block[0::size] if big_endian else block[size - 1 :: size]
    suspects = [byte for byte in _HIGH[code] if byte in high]
    if not suspects:
        return 0
    mask = _LOW[code]
    low = block[1::size] if big_endian else block[size - 2 :: size]
    wanted = bytes(suspects)
    return sum(1 for at, byte in enumerate(high) if byte in wanted and low[at] & mask == mask)
