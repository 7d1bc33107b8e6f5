from __future__ import annotations

import pytest

from holdfast.core.code.manifest import (
    FORMAT,
    CodeEntry,
    build_manifest,
    describe_other_code,
    leads_out,
    parse_manifest,
    state_files,
)

pytestmark = pytest.mark.pure

A, B = "a" * 64, "b" * 64


def test_a_manifest_is_read_as_it_was_written_whatever_the_order() -> None:
    entries = [
        CodeEntry("train.py", "f", A, 3),
        CodeEntry("a\nb\udcff.sh", "x", B, 0),
        CodeEntry("data/link", "l", A, 3),
    ]
    made = build_manifest(entries)

    assert parse_manifest(made.data) == made == build_manifest(reversed(entries))
    assert len(made.tree) == 16
    assert made.bytes == 6


def test_another_mode_or_name_is_another_tree() -> None:
    base = build_manifest([CodeEntry("run", "f", A, 1)]).tree
    assert build_manifest([CodeEntry("run", "x", A, 1)]).tree != base
    assert build_manifest([CodeEntry("run2", "f", A, 1)]).tree != base


def _state(*files: tuple[str, str, str]) -> dict[str, str]:
    entries = [CodeEntry(path, kind, digest, 1) for path, kind, digest in files]
    return state_files(build_manifest(entries), besides=["job.yaml"])


def test_other_code_is_named_and_what_holdfast_writes_is_none() -> None:
    before = _state(
        ("a/train.py", "f", A), ("conf.yaml", "f", A), ("job.yaml", "f", A), ("old.csv", "f", A), ("go", "x", A)
    )
    same = _state(
        *(("a/train.py", "f", A), ("conf.yaml", "f", A), ("job.yaml", "f", B), ("go", "x", A)),
        *((".holdfastignore", "f", A), ("in/.holdfast-roster", "f", A), ("out.pt", "f", A), ("bundle.tar.gz", "f", A)),
    )
    other = _state(
        ("a/train.py", "f", B), ("conf.yaml", "f", B), ("b.py", "f", A), ("big.yaml", "f", A), ("old.csv", "x", A)
    )

    assert describe_other_code(before, same, ["python3", "a/train.py"]) == []
    assert describe_other_code(before, other, ["python3", "--config=../big.yaml"]) == [
        "a/train.py was changed",
        "b.py is new",
        "big.yaml, which the command names, is new",
        "conf.yaml was changed",
        "go is gone",
        "old.csv was changed",
    ]


def _record(path: bytes, kind: bytes = b"f", size: bytes = b"1") -> bytes:
    return kind + b" " + A.encode() + b" " + size + b"\t" + path + b"\0"


@pytest.mark.parametrize(
    "records",
    [
        _record(b"/etc/passwd"),
        _record(b"../out"),
        _record(b"a/../../out"),
        _record(b"a//b"),
        _record(b"./a"),
        _record(b"a/"),
        _record(b"x" * 256),
        _record(b"a") + _record(b"a"),
        _record(b"b") + _record(b"a"),
        _record(b"a") + _record(b"a/b"),
        _record(b"a", b"l") + _record(b"a/b/c"),
        _record(b"a", b"d"),
        _record(b"a", b"f", b"-1"),
        _record(b"a", b"f", b"01"),
        _record(b"a", b"f", b"9999999999999"),
        _record(b"a", b"l", b"5000"),
        _record(b"a")[:-1],
        b"junk\0",
    ],
)
def test_a_manifest_that_leads_out_or_says_a_thing_twice_is_refused(records: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_manifest(FORMAT + records)


def test_links_that_lead_out_by_their_words() -> None:
    assert not leads_out("a/b/link", "../../c")
    assert not leads_out("link", "a/../b")
    assert leads_out("a/link", "../../c")
    assert leads_out("link", "/etc")
    assert leads_out("link", "a/../../b")
    assert leads_out("link", "")
    assert leads_out("link", "a\0b")
