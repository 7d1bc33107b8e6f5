"""A job's bytes with their place: however the stream is cut, the position is that of the last byte shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.desk.route.frames import (
    ANCHOR_BYTES,
    SAID,
    FrameReader,
    Position,
    build_head,
    read_position,
    write_position,
)

pytestmark = pytest.mark.pure

RUN = "20261120-104501-digits-3fa2"


class Heard:
    """A reader, and what it has answered."""

    def __init__(self) -> None:
        self.text, self.job = b"", b""
        self.reader = FrameReader(self._take_text, self._take_job)

    def _take_text(self, data: bytes) -> None:
        self.text += data

    def _take_job(self, data: bytes) -> None:
        self.job += data


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 9))
def test_pieces_come_through_whole_however_they_are_cut(pieces: list[bytes], step: int) -> None:
    heard, begin = Heard(), 7
    stream = b"head\n"
    for piece in pieces:
        stream += build_head(RUN, 2, begin, len(piece), min(begin, ANCHOR_BYTES)) + piece + b"said\n"
        begin += len(piece)
    for at in range(0, len(stream), step):
        heard.reader.feed(stream[at : at + step])
        if heard.reader.position is not None:
            assert heard.reader.position.offset == 7 + len(heard.job)
            assert heard.reader.position.anchor == heard.job[-ANCHOR_BYTES:]
    assert heard.job == b"".join(pieces)
    assert heard.text == b"head\n" + b"said\n" * len(pieces)


def test_what_is_said_between_is_shown_and_moves_nothing() -> None:
    heard = Heard()
    heard.reader.feed(build_head(RUN, 1, 0, 4, 0) + b"abcd" + build_head(RUN, 1, 90, 5, SAID) + b"<cut>")
    assert heard.job == b"abcd<cut>"
    assert heard.reader.position == Position(RUN, 1, 90, b"")
    heard.reader.feed(build_head(RUN, 1, 90, 1, 0) + b"e")
    assert heard.reader.position == Position(RUN, 1, 91, b"e")


def test_a_nul_that_begins_no_piece_is_text() -> None:
    heard = Heard()
    heard.reader.feed(b"a\0b\0hf nonsense\n\0hf 1 2 3\n")
    assert heard.text == b"a\0b\0hf nonsense\n\0hf 1 2 3\n"
    assert heard.job == b""
    assert heard.reader.position is None


def test_a_head_without_end_is_not_waited_for() -> None:
    heard = Heard()
    heard.reader.feed(b"\0hf " + b"x" * 300)
    assert heard.text == b"\0hf " + b"x" * 300


def test_a_position_goes_to_the_box_and_back() -> None:
    position = Position(RUN, 3, 12345, bytes(range(256)))
    assert read_position(write_position(position)) == position
    for text in ("new", "", f"{RUN}:1:2", f"{RUN}:x:2:", f"nonsense:1:2:{'A' * 4}", f"{RUN}:1:2:!!!!"):
        assert read_position(text) == (Position(RUN, 1, 2, b"") if text == f"{RUN}:1:2" else None)
