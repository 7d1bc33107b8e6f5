"""The frame of an answer: whatever stands around it, and however it is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.transport.base import MOST_NOISE_BYTES
from holdfast.transport.frame import Framed, build_line, make_nonce

pytestmark = pytest.mark.pure

NONCE = "0123456789abcdef01234567"
WORDS = st.lists(
    st.sampled_from(
        [b"\n", b" ", b"0", b"7", b"end", b" end", NONCE.encode(), NONCE[:7].encode(), b"begin", b"\0\xff"]
    ),
    max_size=12,
).map(b"".join)


def parse(data: bytes, sizes: list[int], *, with_code: bool) -> tuple[Framed, bytes]:
    """Feed data in pieces of some sizes."""
    stream, wrote, at = Framed(NONCE, with_code=with_code), b"", 0
    for size in [*sizes, len(data)]:
        wrote += stream.feed(data[at : at + size])
        at += size
    return stream, wrote


@given(WORDS, WORDS, st.integers(0, 255), st.lists(st.integers(1, 9), max_size=40), st.booleans())
def test_noise_answer_and_code_come_apart_in_any_pieces(
    noise: bytes, answer: bytes, code: int, sizes: list[int], with_code: bool
) -> None:
    nonce = NONCE.encode()
    end = b"%s end %d\n" % (nonce, code) if with_code else b"%s end\n" % nonce
    if nonce + b" begin\n" in noise + nonce + b" begin" or _holds_end(answer, nonce, with_code=with_code):
        return
    stream, wrote = parse(noise + nonce + b" begin\n" + answer + end, sizes, with_code=with_code)
    assert (wrote, stream.noise, stream.begun, stream.over) == (answer, noise, True, True)
    assert stream.code == (code if with_code else None)


def _holds_end(answer: bytes, nonce: bytes, *, with_code: bool) -> bool:
    """Whether the answer itself has what ends one; no command can know the nonce before it is asked."""
    stream = Framed(NONCE, with_code=with_code)
    stream.feed(nonce + b" begin\n" + answer)
    return stream.over or nonce + b" end" in answer + nonce[:-1]


@given(WORDS, st.lists(st.integers(1, 9), max_size=40))
def test_without_its_end_no_answer_is_over(answer: bytes, sizes: list[int]) -> None:
    nonce = NONCE.encode()
    stream, wrote = parse(nonce + b" begin\n" + answer.replace(nonce, b""), sizes, with_code=True)
    assert not stream.over
    assert stream.code is None
    assert answer.replace(nonce, b"").startswith(wrote)


def test_a_command_line_that_is_echoed_begins_nothing() -> None:
    stream = Framed(NONCE, with_code=False)
    assert stream.feed(f"+ {build_line(NONCE, 'true', ())}\n".encode()) == b""
    assert not stream.begun


def test_noise_is_bounded() -> None:
    stream = Framed(NONCE, with_code=True)
    for _ in range(100):
        stream.feed(b"x" * 10_000)
    assert stream.too_noisy
    assert len(stream.noise) == MOST_NOISE_BYTES


def test_64_kib_of_noise_are_skipped() -> None:
    stream = Framed(NONCE, with_code=False)
    stream.feed(b"x" * MOST_NOISE_BYTES)
    assert stream.feed(f"{NONCE} begin\nanswer".encode()) == b"answer"


def test_nonces_differ() -> None:
    assert len({make_nonce() for _ in range(100)}) == 100
