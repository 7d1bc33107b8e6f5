"""``holdfast cp`` and ``holdfast files``: files of a run, here and at a place behind a real sshd."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.run_files import send_path
from holdfast.model.errors import StorageError, UsageError
from holdfast.transfer.fetch import Receiver
from tests.cli.conftest import ENTRY
from tests.cli.far import FarRun, far_run
from tests.proxy import Proxy
from tests.rundirs import ended, make_run
from tests.waiting import LIMIT_S, LONG_S, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = [pytest.mark.cli, pytest.mark.timeout(180)]

WORK = "work"
"""The copy of the code in a run directory."""
__all__ = ["far_run"]
RUN = "20261120-100000-digits-0a1b"
AWKWARD = ["new\nline", "Grüße", "a b", "it's", "-x"]


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> Path:
    """A run of this machine that has ended."""
    return Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))


def is_bare(directory: Path) -> bool:
    """Whether nothing of a copy was left beside its target."""
    return not [name for name in os.listdir(directory) if name.endswith(".part")]


@pytest.mark.slow
def test_files_of_a_run_here_are_listed_and_copied_as_they_are(
    holdfast: Command, run_dir: Path, tmp_path: Path
) -> None:
    top = run_dir / "artifacts" / "plots"
    top.mkdir()
    for name in AWKWARD:
        (top / name).write_bytes(name.encode())
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o755)
    (top / "latest").symlink_to("run.sh")
    (top / "out").symlink_to("/etc/passwd")
    (top / "up").symlink_to("../../run.json")
    os.mkfifo(top / "pipe")
    (top / "empty").mkdir()
    (top / "nothing").write_bytes(b"")
    listed = holdfast("files", "digits", "artifacts/plots", "--json").json()
    kinds = {file["name"]: file["kind"] for file in listed["files"]}
    assert kinds == {**dict.fromkeys([*AWKWARD, "run.sh", "nothing"], "file"), "empty": "dir", "pipe": "other"} | (
        dict.fromkeys(["latest", "out", "up"], "link")
    )
    assert "work" in holdfast("files", "digits").out
    done = holdfast("cp", "digits/artifacts/plots", "copy")
    assert (done.code, done.out) == (0, f"copy: 7 files, {sum(len(n.encode()) for n in AWKWARD) + 10} B, proven\n"), (
        done
    )
    assert sorted(line.partition(":")[2] for line in done.err.splitlines()) == [
        " left out: out: leads out to /etc/passwd",
        " left out: pipe: no file, directory or link",
        " left out: up: leads out to ../../run.json",
    ]
    copy = tmp_path / "copy"
    assert sorted(os.listdir(copy)) == sorted([*AWKWARD, "run.sh", "nothing", "latest", "empty"])
    assert all((copy / name).read_bytes() == name.encode() for name in AWKWARD)
    assert os.readlink(copy / "latest") == "run.sh"
    assert stat.S_IMODE((copy / "run.sh").stat().st_mode) & 0o700 == 0o700
    assert is_bare(tmp_path)


@pytest.mark.slow
def test_what_is_there_is_not_replaced_unasked_and_what_is_not_there_is_said(
    holdfast: Command, run_dir: Path, tmp_path: Path
) -> None:
    (run_dir / "artifacts" / "a").write_text("new")
    (tmp_path / "a").write_text("old")
    refused = holdfast("cp", "digits/artifacts/a", ".")
    assert (refused.code, "./a is there already" in refused.err) == (64, True)
    assert (tmp_path / "a").read_text() == "old"
    told = holdfast("cp", "--force", "--json", "digits/artifacts/a", ".").json()
    assert (told["files"], told["sha256"]) == (1, hashlib.sha256(b"new").hexdigest())
    assert (tmp_path / "a").read_text() == "new"
    assert holdfast("cp", "digits/artifacts", "b").code == holdfast("cp", "--force", "digits/artifacts", "b").code == 0
    (run_dir / "out").symlink_to("/etc")
    (run_dir / "attempts" / "1" / "output.log").write_text("loss 1\n")
    for words, code, said in (
        (("digits", "."), 64, "names no file of a run"),
        (("digits/", "."), 64, "names no file of a run"),
        (("gpu1:digits:a.pt", "."), 64, "such as gpu1:digits/a.pt"),
        (("digits:artifacts", "."), 64, "such as digits/artifacts; `holdfast files digits` lists"),
        (("digits:artifacts/a", "."), 64, "digits is a run, and no place"),
        (("b", "digits/work"), 64, "'b' is a file of this machine"),
        (("digits/nothing", "."), 66, "-digits-"),
        (("digits:output.log", "x.log"), 64, "such as digits/attempts/1/output.log;"),
        (("digits/output.log", "x.log"), 66, "did you mean attempts/1/output.log?"),
        (("digits/../x", "."), 64, "no path below a run"),
        (("digits/out/passwd", "."), 64, "is a link out of the run"),
        (("digits/artifacts/a", "no/such/x"), 64, "there is no such directory"),
        (("digits/artifacts/a", "no/"), 64, "there is no such directory"),
        (("nobody/artifacts/a", "."), 66, "nobody"),
        (("nowhere:digits/artifacts/a", "."), 66, "nowhere"),
    ):
        done = holdfast("cp", *words)
        assert (done.code, said in done.err) == (code, True), done
    assert is_bare(tmp_path)


@pytest.mark.slow
def test_files_at_a_place_are_copied_while_it_runs_and_a_cut_leaves_nothing(
    far_run: FarRun, holdfast: Command, tmp_path: Path
) -> None:
    for name in AWKWARD:
        far_run.write(f"work/out/{name}", name.encode())
    big = os.urandom(1 << 20) * 8
    far_run.write("work/big", big)
    done = holdfast("cp", f"{far_run.name}/{WORK}/out", "out", timeout_s=LONG_S)
    assert (done.code, sorted(os.listdir(tmp_path / "out"))) == (0, sorted(AWKWARD)), done
    listed = holdfast("files", far_run.name, "work", timeout_s=LONG_S)
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == ["big", "out/"]
    far_run.write("work/closed", b"x").chmod(0)
    refused = holdfast("cp", f"{far_run.name}/{WORK}/closed", ".", timeout_s=LONG_S)
    assert (refused.code, "closed cannot be read: Permission denied" in refused.err) == (74, True), refused
    missing = holdfast("cp", f"{far_run.name}/{WORK}/missing", ".", timeout_s=LONG_S)
    assert (missing.code, "No such file" in missing.err) == (66, True), missing
    with Proxy(far_run.box.port) as link:
        alias = far_run.box.alias("box", via=link.port)
        places = Path(os.environ["XDG_CONFIG_HOME"], "holdfast/places.toml")
        before = places.read_text()
        places.write_text(f'{before}[far]\nhost = "{alias}"\nroot = "~/{far_run.root.name}"\n')
        assert holdfast("show", f"far:{far_run.run_id}", timeout_s=LONG_S).code == 0
        link.cut_after(2 << 20)
        cut = holdfast("cp", f"far:{far_run.run_id}/{WORK}/big", ".", timeout_s=LONG_S)
        assert (cut.code, "link ended" in cut.err) == (69, True), cut
        assert not (tmp_path / "big").exists()
        assert is_bare(tmp_path)
        whole = holdfast("cp", f"far:{far_run.run_id}/{WORK}/big", ".", timeout_s=LONG_S)
        assert whole.code == 0, whole
        assert (tmp_path / "big").read_bytes() == big
        far_run.box.forget(alias)


def test_a_file_that_is_being_written_is_copied_as_far_as_it_was(
    holdfast: Command, run_dir: Path, tmp_path: Path
) -> None:
    log = run_dir / "artifacts" / "log"
    log.write_bytes(b"0123456789" * 100)
    script = f"while :; do echo 0123456789 >> {log}; done"
    writer = subprocess.Popen(["sh", "-c", script])
    try:
        wait_until(lambda: log.stat().st_size > 2000)
        done = holdfast("cp", "digits/artifacts/log", "copy")
        assert done.code == 0, done
        assert log.read_bytes().startswith((tmp_path / "copy").read_bytes())
    finally:
        writer.kill()
        writer.wait()


def test_a_copy_that_is_interrupted_leaves_nothing(holdfast: Command, run_dir: Path, tmp_path: Path) -> None:
    with (run_dir / "artifacts" / "big").open("wb") as file:
        file.truncate(2 << 30)
    process = subprocess.Popen([*ENTRY, "cp", "digits/artifacts/big", "."], cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: not is_bare(tmp_path), what="the beginning of the copy")
        process.terminate()
        assert process.wait(LIMIT_S) == 143
    finally:
        process.kill()
        process.communicate()
    assert is_bare(tmp_path)
    assert not (tmp_path / "big").exists()


BEGIN = {"schema": 1, "name": "x", "entries": 3, "bytes": 4, "directory": True}
TOP = {"path": "", "kind": "dir", "mode": 0o700, "mtime": 0}
FILE = {"path": "a", "kind": "file", "mode": 0o600, "mtime": 0, "size": 4}
LINK = {"path": "a", "kind": "link", "mode": 0o777, "mtime": 0, "link": "b"}
HOSTILE: list[list[object]] = [
    [BEGIN, TOP, {**FILE, "path": "/etc/x"}],
    [BEGIN, TOP, {**FILE, "path": "../x"}],
    [BEGIN, TOP, {**FILE, "path": "a/../../x"}],
    [BEGIN, TOP, {**LINK, "link": "/etc"}],
    [BEGIN, TOP, {**LINK, "link": "../x"}],
    [BEGIN, TOP, {**LINK, "link": "."}, {**FILE, "path": "a/b"}],
    # By its words each stays inside; by way of the first one the second leads out.
    [
        {**BEGIN, "entries": 6, "bytes": 0},
        TOP,
        {**TOP, "path": "z"},
        {**TOP, "path": "a"},
        {**TOP, "path": "a/b"},
        {**LINK, "path": "a/b/l", "link": "../../z"},
        {**LINK, "path": "m", "link": "a/b/l/../../x"},
        {"end": True},
    ],
    [BEGIN, TOP, {**FILE, "kind": "device"}],
    [BEGIN, TOP, {**FILE, "size": 5}],
    [BEGIN, TOP, {**FILE, "size": -1}],
    [BEGIN, TOP, FILE, b"abcd", {"sha256": "0" * 64}],
    [{**BEGIN, "entries": 1}, TOP, FILE],
    [{**BEGIN, "entries": 10**9}],
    [{**BEGIN, "bytes": 10**18}],
    [{**BEGIN, "name": "../x"}],
    [BEGIN, FILE],
    [BEGIN, TOP, {"end": True}],
    [BEGIN, TOP],
    ["x" * 100_000],
    [BEGIN, TOP, b"no json\n"],
    [b"[" * 60_000 + b"\n"],
    [b'{"entries": 1e999, "bytes": 0, "directory": false, "name": "x"}\n'],
    [{**BEGIN, "entries": 1}, TOP, {"end": True, "left_out_count": "many"}],
    [{"error": {"code": "storage", "message": "seen", "hint": ""}}],
]


@pytest.mark.parametrize("stream", HOSTILE)
def test_what_no_copy_looks_like_is_refused_and_leaves_nothing(stream: list[object], tmp_path: Path) -> None:
    receiver = Receiver(str(tmp_path), force=False, tell=lambda _done, _total: None)
    data = b"".join(item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n" for item in stream)

    def take() -> None:
        receiver.feed(data)
        receiver.finish()

    with pytest.raises((StorageError, UsageError)):
        take()
    receiver.abandon()
    assert [name for name in os.listdir(tmp_path) if name != "isolated"] == []


def test_what_was_there_is_there_again_where_it_could_not_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").write_text("old")
    receiver = Receiver(str(tmp_path), force=True, tell=lambda _done, _total: None)
    for item in ({**BEGIN, "entries": 1, "bytes": 0}, TOP, {"end": True}):
        receiver.feed(json.dumps(item).encode() + b"\n")
    rename = os.rename

    def refuse(source: str, target: str) -> None:
        if target == str(tmp_path / "x") and not os.path.exists(f"{source}/old"):
            raise OSError(errno.EIO, "the disk", target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="the disk"):
        receiver.finish()
    receiver.abandon()
    assert [path.name for path in tmp_path.iterdir() if path.name != "isolated"] == ["x"]
    assert (tmp_path / "x" / "old").read_text() == "old"


def test_a_result_that_was_changed_since_its_run_ended_is_told(holdfast: Command, tmp_path: Path) -> None:
    job = ("sh", "-c", 'cd "$HOLDFAST_ARTIFACT_DIR"; echo 0.9 > score; echo 1 > other; mkdir deep; echo 1 > deep/x')
    begun = holdfast("run", "--json", "--name", "scored", "--", *job).json()
    source = Path(begun["run_dir"], "artifacts")
    sound = holdfast("cp", "scored/artifacts/score", str(tmp_path / "sound"))
    assert (sound.code, sound.err, ", proven" in sound.out) == (0, "", True), sound
    (source / "score").write_text("0.99\n")
    words = "holdfast: artifacts/score is not what it was at the end, when it was proven: the copy is what is there now"
    for number, (path, told) in enumerate((("score", 1), ("", 1), ("other", 0), ("deep", 0), ("deep/x", 0))):
        done = holdfast("cp", f"scored/artifacts/{path}".rstrip("/"), str(tmp_path / f"to-{number}"))
        assert (done.code, done.err.count(words)) == (0, told), done
        assert (", as it is now" if told else ", proven") in done.out
    assert (tmp_path / "to-0").read_text() == "0.99\n"
    os.symlink("score", source / "latest")
    for number, path in enumerate(("./artifacts/score", "artifacts//score", "artifacts/latest", ".")):
        done = holdfast("cp", f"scored/{path}", str(tmp_path / f"spelt-{number}"))
        assert (done.code, done.err.count(words)) == (0, 1), done
    os.unlink(source / "score")
    gone = holdfast("cp", "--json", "scored/artifacts", str(tmp_path / "gone")).json()
    assert gone["changed_count"] == 1
    assert gone["changed"] == ["artifacts/score was there at the end, when it was proven, and is gone from the run"]


@pytest.mark.slow
def test_what_a_copy_was_pulled_without_is_not_gone_from_the_run(holdfast: Command, tmp_path: Path) -> None:
    job = ("sh", "-c", 'cd "$HOLDFAST_ARTIFACT_DIR"; echo 0.9 > score; echo 1 > big')
    assert holdfast("run", "--name", "scored", "--", *job).code == 0
    assert holdfast("pull", "scored", str(tmp_path / "home"), "--without", "artifacts/big").code == 0
    done = holdfast("cp", f"{tmp_path}/home/artifacts", str(tmp_path / "to"))
    assert (done.code, done.err, ", proven" in done.out) == (0, "", True), done
    os.utime(tmp_path / "home/artifacts/score", (1, 1))
    done = holdfast("cp", f"{tmp_path}/home/artifacts", str(tmp_path / "other"))
    assert (done.code, "artifacts/score has the size but not the time" in done.err) == (0, True), done


def test_however_long_the_names_are_the_end_of_a_stream_is_a_line_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for number in range(120):
        os.symlink("/", tmp_path / "deep" / f"{number:03}{'長' * 80}")
    changed = [f"artifacts/{number:03}{'長' * 80} is another one" for number in range(120)]
    receiver = Receiver(str(tmp_path / "x"), force=False, tell=lambda _arrived, _total: None)
    for data in send_path(str(tmp_path / "deep"), "deep", changed=changed):
        receiver.feed(data)
    done = receiver.finish()
    assert (done.left_out_count, done.changed_count) == (120, 120)
    assert 20 < len(done.left_out) < 100
    assert 20 < len(done.changed) < 100
    assert done.changed[0] == changed[0]
