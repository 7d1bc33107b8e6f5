"""Files of commands as people have them: read whole, without a shell, jobs known by name."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.sweep.lines import parse_lines, read_lines, split_words, to_jobs
from holdfast.model import wire
from holdfast.model.errors import JobFileError
from holdfast.model.job import JobSpec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("QUEUE-02", "QUEUE-04")]


def commands(text: str) -> list[list[str]]:
    """The words of each command in a text."""
    return [list(line.command) for line in parse_lines(text, "night.txt")]


@pytest.mark.requirement("QUEUE-04", "B-60")
@pytest.mark.parametrize(
    "text",
    [
        "a 1\nb 2\nc 3",
        "a 1\nb 2\nc 3\n",
        "a 1\r\nb 2\r\nc 3\r\n",
        "a 1\r\nb 2\r\nc 3",
        "\ufeffa 1\n\n   \n# comment\n  # another\nb 2  # why\nc 3\n\n",
        "a \\\n 1\nb 2\nc\\\r\n 3",
    ],
)
def test_three_commands_are_three_however_the_file_ends_and_is_spaced(text: str, tmp_path: Path) -> None:
    path = tmp_path / "night.txt"
    path.write_bytes(text.encode())
    assert [list(line.command) for line in read_lines(str(path))] == [["a", "1"], ["b", "2"], ["c", "3"]]


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12), min_size=1, max_size=5))
def test_words_come_back_as_they_were_quoted(words: list[str]) -> None:
    words = ["run", *words]
    assert split_words(shlex.join(words)) == words


@pytest.mark.parametrize(
    "line", [r"a\ b 'c d' \"e", '"a\\"b" c', "a'b'\"c\"d", "x#y # z", r"a \# b", "'$HOME' \\*", "a\t b"]
)
def test_words_are_split_as_a_shell_splits_them(line: str) -> None:
    done = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert split_words(line) == done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a | b", "|"),
        ("a && b", "&"),
        ("a; b", ";"),
        ("a > log", ">"),
        ("a < in", "<"),
        ("a *.py", "*"),
        ("a $HOME", "$"),
        ('a "$HOME"', "$HOME"),
        ("a `date`", "`"),
        ("a $(date)", "$"),
        ("a ~/x", "~"),
        ("(a)", "("),
        ("a 'b", "quote"),
        ('a "b', "quote"),
        ("a \\", "backslash"),
        ("A=1", "runs nothing"),
        ("name=x", "runs nothing"),
        ("name=a/b run", "no name"),
        ("CUDA_VISIBLE_DEVICES=0 a", "--gpus"),
        ("HOLDFAST_RUN_ID=x a", "own"),
        ("HF_TOKEN=hf_abc a", "secret"),
        ("DATA='https://b.example/x?X-Amz-Signature=c4n4ry51c4n4ry51' a", "secret"),
        ("ARGS=--api-key=c4n4ry51 a", "secret"),
        ("a\rb", "control"),
    ],
)
def test_what_would_need_a_shell_or_cannot_be_meant_is_refused_with_its_line(line: str, said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_lines(f"fine\n{line}", "night.txt")
    assert str(caught.value).startswith("night.txt:2: ")
    assert said in str(caught.value)


def test_the_place_is_quoted_in_whole_words() -> None:
    with pytest.raises(JobFileError, match=r"`train\.py \| tee log`"):
        parse_lines("python train.py | tee log", "night.txt")


def test_ten_mistakes_are_named_and_the_rest_counted() -> None:
    with pytest.raises(JobFileError) as caught:
        parse_lines("\n".join(["a | b"] * 25), "night.txt")
    assert str(caught.value).count("night.txt:") == 10
    assert "15 more" in str(caught.value)


def test_the_advice_names_what_a_shell_can_do() -> None:
    with pytest.raises(JobFileError) as caught:
        parse_lines("a | b", "night.txt")
    assert "bash -c" in caught.value.hint


def test_variables_before_the_command_become_its_environment() -> None:
    (line,) = parse_lines("A=1 B='x y' python train.py C=3", "night.txt")
    assert line.environment == {"A": "1", "B": "x y"}
    assert line.command == ("python", "train.py", "C=3")


def test_a_jobs_name_depends_on_its_command_alone() -> None:
    lines = [f"python train.py --lr {lr} --seed {seed}" for lr in ("1e-3", "3e-4") for seed in range(5)]
    names = {line.command: line.name for line in parse_lines("\n".join(lines), "a")}
    assert len(set(names.values())) == len(lines)
    random.Random(4).shuffle(lines)
    again = parse_lines("# new first line\nother\n" + "\n".join(f"  {line}   # x" for line in lines), "b")
    assert {line.command: line.name for line in again if line.command in names} == names


def test_a_name_can_be_given_and_stands_for_the_job() -> None:
    line, other = parse_lines("name=first python a.py\nname=second python a.py", "a")
    assert (line.name, other.name) == ("first", "second")


@pytest.mark.parametrize("text", ["a 1\nb\na  '1'", "name=x a\nname=y b\nname=x c"])
def test_two_lines_of_one_name_are_refused_with_both_numbers(text: str) -> None:
    with pytest.raises(JobFileError, match=r"night.txt:3: .* line 1 "):
        parse_lines(text, "night.txt")


def test_a_file_without_a_command_is_no_empty_success() -> None:
    with pytest.raises(JobFileError, match="holds no command"):
        parse_lines("# nothing\n\n", "night.txt")


def test_jobs_carry_command_environment_and_their_name() -> None:
    base = wire.encode(JobSpec(name="x", command=("true",), workdir="/", env={"A": "0"}))
    one, two = to_jobs(parse_lines("OUT_DIR=o/{job} train --out out/{job}\nname=n eval", "a"), base)
    assert one.change["env"] == {"A": "0", "OUT_DIR": f"o/{one.name}"}
    assert one.change["command"] == ["train", "--out", f"out/{one.name}"]
    assert (two.name, two.change["command"], two.change["name"]) == ("n", ["eval"], "n")
    assert len(one.sha256) == 64


def test_a_pipe_a_directory_and_a_binary_are_told_apart(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        os.write(write, b"a 1\nb 2")
        os.close(write)
        assert len(read_lines(f"/dev/fd/{read}")) == 2
    finally:
        os.close(read)
    (tmp_path / "bin").write_bytes(b"a\n\xff\xfe")
    for path, said in ((tmp_path, "directory"), (tmp_path / "bin", "UTF-8"), (tmp_path / "none", "no such")):
        with pytest.raises(JobFileError, match=said):
            read_lines(str(path))
