"""Files of the desk in verbs that are sent to a place: what they read goes along, what they write comes back whole."""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.core.control_characters import one_line
from holdfast.desk.route.carry import MARK, Carried, CarriedFile, Collector, gather_files, parse_files
from holdfast.desk.route.line import read_line
from holdfast.model.errors import HoldfastError, StorageError, UsageError
from tests.cli.live import live_run
from tests.desk.route.loop import WarmLoop
from tests.rundirs import ended, make_run
from tests.training.directories import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
RUN = "20261120-100000-digits-0a1b"
AWKWARD = 'a "b" ü'


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> WarmLoop:
    """One root for all: the bundle is pushed once."""
    return WarmLoop(tmp_path_factory.mktemp("loop"))


@pytest.fixture
def loop(
    warm: WarmLoop, no_leaks: None, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[WarmLoop]:
    """Make this machine a place, too, with the same runs and the same queue."""
    monkeypatch.setenv("HOLDFAST_RUNS", str(warm.root))
    warm.add()
    yield warm
    assert list_calls(warm.root) == []
    warm.keep()


def list_calls(root: Path) -> list[str]:
    """What calls have left beside the bundle."""
    return [str(path) for path in root.glob(".agent-*/.call-*")]


def list_leftovers(directory: Path) -> list[str]:
    """What an unfinished file has left."""
    return [name for name in os.listdir(directory) if name.endswith(".part")]


@pytest.mark.slow
def test_what_a_verb_writes_comes_to_the_desk(loop: WarmLoop, holdfast: Command, tmp_path: Path) -> None:
    run_dir = make_run(str(loop.root), RUN, ended())
    make_directory(Path(run_dir, "checkpoints"), steps=2)
    (tmp_path / AWKWARD).mkdir()
    path = f"{AWKWARD}/out.safetensors"
    done = holdfast("checkpoints", "export", "loop:digits", path, "--name", "state", "--json")
    assert done.code == 0, done
    assert done.json()["path"] == str(tmp_path / path)
    here = holdfast("checkpoints", "export", run_dir, "here.safetensors", "--name", "state")
    assert here.code == 0
    assert (tmp_path / path).read_bytes() == (tmp_path / "here.safetensors").read_bytes()
    # A call to a place has no packages: the Python that trained writes a torch file.
    written = holdfast("checkpoints", "export", "loop:digits", "out.pt")
    if find_spec("torch") is not None:
        assert (written.code, zipfile.is_zipfile(tmp_path / "out.pt")) == (0, True), written.err
    else:
        assert "let the name of OUT end in .safetensors" in written.err
    told = holdfast("diagnose", "loop:digits", "--bundle", "why.tgz")
    assert (told.code, str(tmp_path / "why.tgz") in told.out) == (0, True), told
    with tarfile.open(tmp_path / "why.tgz") as archive:
        assert any(name.endswith("run.json") for name in archive.getnames())
    assert list_leftovers(tmp_path) == []


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "directory.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    for words, code, said in (
        ("sweep export s there.csv", 74, "there.csv is there already: --overwrite replaces it"),
        ("diagnose a --bundle there.csv", 74, "there.csv is there already: give another name"),
        ("sweep export s directory.csv --overwrite", 74, "directory.csv is a directory: name the file"),
        ("sweep export s new/", 74, "new/ is a directory"),
        ("sweep export s none/t.csv", 74, f"there is no directory {tmp_path}/none: mkdir -p {tmp_path}/none"),
        ("sweep export s pipe.csv --overwrite", 74, "is no regular file"),
        ("sweep add s --jobs none.csv", 65, "--jobs: none.csv: No such file or directory"),
        ("restart a --env-file none.env", 64, "--env-file: none.env: No such file or directory"),
        ("restart a --env-file /dev/zero", 64, "/dev/zero is larger than 32 MiB"),
    ):
        with pytest.raises(HoldfastError) as refused:
            gather_files(read_line(words.split()))
        told = f"{refused.value}: {refused.value.hint}"
        assert (refused.value.exit_code, said in told) == (code, True), told
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(StorageError, match="cannot be written to by this account"):
        gather_files(read_line(["sweep", "export", "s", "t.csv"]))
    assert (tmp_path / "there.csv").read_text() == "mine"


@pytest.mark.slow
def test_a_command_that_fails_there_writes_nothing_here(loop: WarmLoop, holdfast: Command, tmp_path: Path) -> None:
    missing = holdfast("diagnose", "loop:nobody", "--bundle", "why.tgz")
    assert (missing.code, os.listdir(tmp_path).count("why.tgz")) == (66, 0), missing
    no_form = holdfast("sweep", "export", "s", "t.txt", "--on", "loop")
    assert no_form.code == 66
    assert ".call-" not in no_form.err
    assert list_leftovers(tmp_path) == []


@pytest.mark.slow
def test_a_table_of_jobs_goes_along_and_its_mistakes_have_its_own_name(
    loop: WarmLoop, holdfast: Command, tmp_path: Path
) -> None:
    (tmp_path / "train.sh").write_text("exit 0\n")
    began = holdfast("sweep", "--name", "s", "--paused", "--grid", "lr=1,2", "--", "sh", "train.sh")
    assert began.code == 0, began
    (tmp_path / "more.csv").write_text("lr\n3\n4\n")
    added = holdfast("sweep", "add", "s", "--jobs", "more.csv", "--dry-run", "--json", "--on", "loop")
    assert [job["job"] for job in added.json()["jobs"]] == ["lr=3", "lr=4"]
    (tmp_path / "bad.csv").write_text("lr\n3,4\n")
    wrong = holdfast("sweep", "add", "s", "--jobs", "bad.csv", "--on", "loop")
    assert (wrong.code, "bad.csv:2: has 2 fields" in wrong.err, ".call-" in wrong.err) == (65, True, False), wrong
    piped = holdfast("sweep", "add", "s", "--jobs", "-", "--dry-run", "--json", "--on", "loop", stdin="lr\n5\n")
    assert [job["job"] for job in piped.json()["jobs"]] == ["lr=5"]
    there = holdfast("sweep", "export", "s", "t.csv", "--on", "loop")
    assert there.code == 0, there
    assert holdfast("sweep", "export", "s", "here.csv").code == 0
    assert (tmp_path / "t.csv").read_text() == (tmp_path / "here.csv").read_text()
    (tmp_path / "t.csv").write_text("old")
    assert holdfast("sweep", "export", "s", "t.csv", "--overwrite", "--on", "loop").code == 0
    assert (tmp_path / "t.csv").read_text() == (tmp_path / "here.csv").read_text()
    assert holdfast("queue", "cancel", "--yes", "s/").code == 0


@pytest.mark.slow
def test_variables_of_a_file_go_along_with_a_restart(loop: WarmLoop, holdfast: Command, tmp_path: Path) -> None:
    with live_run(holdfast) as run:
        assert holdfast("stop", "--now", run.run_id).code == 0
        (tmp_path / "env").write_text("COLOUR=blue\n")
        dry = holdfast("restart", f"loop:{run.run_id}", "--env-file", "env", "--env", "A=1", "--dry-run", "--json")
        assert {item["key"]: item["after"] for item in dry.json()["changed"]} == {"env.A": "1", "env.COLOUR": "blue"}
        (tmp_path / "env").write_text("COLOUR\n")
        wrong = holdfast("restart", f"loop:{run.run_id}", "--env-file", "env")
        assert (wrong.code, "env:1: is not NAME=VALUE" in wrong.err) == (64, True), wrong


# -------------------------------------------------------------------------------------------------- what a box answers


def collect(tmp_path: Path, *pieces: bytes) -> tuple[Collector, list[bytes]]:
    """A collector for ``x.csv`` that was fed."""
    target = CarriedFile(0, 0, "x.csv", "x.csv", str(tmp_path / "x.csv"))
    shown: list[bytes] = []
    made = Collector(Carried((target,), b"", target, replace=False), shown.append, tell=lambda _done, _total: None)
    for piece in pieces:
        made.take(piece)
    return made, shown


def stream(data: bytes, sha256: str) -> bytes:
    """A file as a box sends it."""
    lines = [
        {"schema": 1, "name": "x.csv", "entries": 1, "bytes": len(data), "directory": False},
        {"path": "", "kind": "file", "mode": 0o600, "mtime": 0, "size": len(data)},
    ]
    head = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return head + data + json.dumps({"sha256": sha256}).encode() + b'\n{"end": true}\n'


SHA_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_text_is_shown_when_the_file_is_there_however_it_comes(tmp_path: Path) -> None:
    whole = b"written\n" + MARK + stream(b"abc", SHA_OF_ABC)
    made, shown = collect(tmp_path, *(whole[index : index + 1] for index in range(len(whole))))
    assert (shown, os.path.exists(tmp_path / "x.csv")) == ([], False)
    made.finish()
    made.abandon()
    assert (shown, (tmp_path / "x.csv").read_bytes()) == ([b"written\n"], b"abc")
    assert list_leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "data",
    [
        MARK + stream(b"abc", "0" * 64),
        MARK + stream(b"abc", SHA_OF_ABC)[:-20],
        MARK,
        MARK + b'{"error": {"code": "storage", "message": "gone", "hint": ""}}\n',
        MARK + b"no json\n",
        b"x" * (9 << 20),
        b"written, it says\n",
    ],
    ids=lambda data: one_line(data[-30:].decode(), 40),
)
def test_what_is_not_whole_leaves_nothing(tmp_path: Path, data: bytes) -> None:
    made, _ = collect(tmp_path, b"")

    def take() -> None:
        made.take(data)
        made.finish()

    with pytest.raises(StorageError):
        take()
    made.abandon()
    assert [name for name in os.listdir(tmp_path) if name != "isolated"] == []


@pytest.mark.parametrize("text", ["", "{", "[[1]]", '[[0, 0, "../x", "x", "x", 1]]', '[[0, 0, "", "x", "x", 1]]'])
def test_names_that_lead_elsewhere_are_not_believed_on_the_box(text: str) -> None:
    with pytest.raises(UsageError):
        parse_files(text)
