from __future__ import annotations

import pytest

from holdfast.core.code.ignore import is_asked_for, is_left_out, parse_ignore

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "out", "kept"),
    [
        ("*.ckpt", ["a.ckpt", "x/y/b.ckpt"], ["ckpt", "a.ckpt2"]),
        ("/data", ["data", "data/x"], ["src/data"]),
        ("data/", ["data/x", "src/data/y"], ["data"]),
        ("a/b", ["a/b", "a/b/c"], ["x/a/b"]),
        ("**/logs", ["logs", "x/logs", "x/y/logs/z"], ["xlogs"]),
        ("a/**", ["a/x", "a/x/y"], ["a", "b/a"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a/zz"]),
        ("b?r", ["bar", "x/bxr"], ["br", "b/r"]),
        ("[a-c]x", ["ax", "cx"], ["dx"]),
        ("[!a]x", ["bx"], ["ax", "/x"]),
        (r"\#a", ["#a"], ["a"]),
        (r"\!a", ["!a"], ["a"]),
        ("# a\n\n", [], ["a", "# a"]),
        ("*.log\n!keep.log", ["x.log"], ["keep.log", "d/keep.log"]),
        ("d/\n!d/keep", ["d/keep"], ["e/keep"]),
        ("a b  ", ["a b"], ["a"]),
        ("[", [], ["["]),
        ("a.b", ["a.b"], ["axb"]),
        ("(x|y)+", ["(x|y)+"], ["x"]),
    ],
)
def test_patterns_mean_what_git_means(text: str, out: list[str], kept: list[str]) -> None:
    patterns = parse_ignore(text)
    assert [path for path in out if not is_left_out(path, patterns)] == []
    assert [path for path in kept if is_left_out(path, patterns)] == []


def test_a_file_is_asked_for_by_name() -> None:
    patterns = parse_ignore("*.bin\n!big.bin\n!.env")
    assert is_asked_for("big.bin", patterns)
    assert is_asked_for("x/.env", patterns)
    assert not is_asked_for("other.bin", patterns)
    assert not is_asked_for("train.py", patterns)
