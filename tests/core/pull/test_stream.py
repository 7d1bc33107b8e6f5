"""What travels when a run is pulled: what is written is read again, and what was damaged is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.pull import stream
from holdfast.core.pull.choose import Choice
from holdfast.core.pull.stream import Have, Wish

pytestmark = pytest.mark.pure
SHA = "ab" * 32
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)


@given(st.dictionaries(NAMES, st.integers(0, 10**12)))
def test_a_request_is_read_as_it_was_written(sizes: dict[str, int]) -> None:
    wish = Wish("digits", ("*.pt",), ("a b", "ü"))
    have = {path: Have(size, SHA) for path, size in sizes.items()}
    assert stream.parse_request(stream.build_request(wish, have.items())) == (wish, have)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}\n", b"[]\n", b"no json\n", b"x" * 10, b'{"run": "a", "only": [], "without": []}\nno record\0',
     b'{"run": "a", "only": [], "without": []}\n5 ' + SHA.encode() + b"\t../up\0",
     b'{"run": "a", "only": [], "without": []}\n5 ' + SHA.encode() + b"\ttorn"],
)  # fmt: skip
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whichever word it has
        stream.parse_request(data)


@given(NAMES, st.integers(0, 10**15), st.data())
def test_a_damaged_head_is_noticed(name: str, number: int, data: st.DataObject) -> None:
    head = stream.head_path(stream.FILE, name, 0, number, 0o644, 5)
    line, _, path = head.partition(b"\n")
    stream.check_head(line, path)
    at, bit = data.draw(st.integers(0, len(head) - 1)), data.draw(st.integers(0, 7))
    damaged = head[:at] + bytes([head[at] ^ (1 << bit)]) + head[at + 1 :]
    line, _, path = damaged.partition(b"\n")
    with pytest.raises(ValueError, match="damaged"):
        stream.check_head(line, path)


def test_a_damaged_object_is_noticed() -> None:
    line = stream.line_about(stream.ROSTER, {"run_id": "a", "live": False}, 17).rstrip(b"\n")
    assert stream.parse_about(line, 1) == ([17], {"run_id": "a", "live": False})
    for at in range(len(line)):
        damaged = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
        if damaged.startswith(b"roster "):
            with pytest.raises(ValueError, match=r"damaged|CRC|invalid literal"):
                stream.parse_about(damaged, 1)
    with pytest.raises(ValueError, match="damaged"):
        stream.parse_about(b"roster 5", 1)


def test_a_manifest_that_was_damaged_is_none() -> None:
    packed = stream.pack_manifest(b"holdfast-code 1\n" * 10)
    assert stream.unpack_manifest(packed) == b"holdfast-code 1\n" * 10
    with pytest.raises(ValueError, match="torn"):
        stream.unpack_manifest(packed[:-3])
    with pytest.raises(ValueError, match="damaged"):
        stream.unpack_manifest(b"\0" + packed)


@pytest.mark.parametrize(
    ("only", "without", "path", "why"),
    [
        ([], [], "a/b.pt", ""),
        (["*.pt"], [], "a/b.pt", ""),
        (["*.pt"], [], "a/b.bin", "--only *.pt"),
        (["checkpoints"], [], "checkpoints/step-1/x.bin", ""),
        (["checkpoints/"], [], "a/checkpoints/x", ""),
        (["a/*.bin"], [], "b/a/c.bin", "--only a/*.bin"),
        (["*.pt"], ["tmp"], "tmp/b.pt", "--without tmp"),
        ([], ["artifacts/**"], "artifacts/x/y", "--without artifacts/**"),
        (["*.pt"], ["*.json"], "run.json", ""),
        (["*.pt"], ["*"], "attempts/1/exit.json", ""),
        (["*.pt"], [], "artifacts/run.json", "--only *.pt"),
    ],
)
def test_patterns_choose(only: list[str], without: list[str], path: str, why: str) -> None:
    assert Choice(only, without).refuse(path) == why
