"""What a place says cannot steer this terminal."""

from __future__ import annotations

import pytest

from holdfast.desk.route.screen import Filter

pytestmark = pytest.mark.pure

HOSTILE = {
    b"plain \xc3\xbc\ttab\n": b"plain \xc3\xbc\ttab\n",
    b"\x1b[31mred\x1b[0m": b"\x1b[31mred\x1b[0m",
    b"\x1b[2Jgone": b"\\x1b[2Jgone",
    b"\x1b]0;title\x07": b"\\x1b]0;title\\x07",
    b"over\rwritten": b"over\\x0dwritten",
    b"\xc2\x9b31m": b"\\x9b31m",
    b"\xc2\xb0C": b"\xc2\xb0C",
    b"\x1b[31;999999999999999999999999m": b"\\x1b[31;999999999999999999999999m",
    b"\x00\x08\x7f": b"\\x00\\x08\\x7f",
}


def test_only_newlines_tabs_and_colours_pass() -> None:
    assert {data: Filter().pass_on(data) for data in HOSTILE} == HOSTILE


def test_it_does_not_matter_where_the_stream_is_cut() -> None:
    wrong = []
    for data, shown in HOSTILE.items():
        for at in range(1, len(data)):
            once = Filter()
            found = once.pass_on(data[:at]) + once.pass_on(data[at:])
            if found != shown:
                wrong.append((data, at, found))
    assert wrong == []
