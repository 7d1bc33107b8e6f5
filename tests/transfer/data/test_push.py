"""Data sets on their way to a box: only what is missing, file by file, proven; nothing is lost by a cut."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.core.code import stream
from holdfast.core.code.manifest import PUSHING, ROSTER, CodeEntry, build_manifest
from holdfast.core.digest import sha256_hex
from holdfast.host.files.code.roster import read_roster
from holdfast.model.errors import CutOff, PreflightFailed, ResourceBusy, StorageError, UsageError
from holdfast.model.place import Place
from holdfast.transfer.data import hub
from holdfast.transfer.data.push import Pushed, push_data
from holdfast.transfer.data.roster import read_data
from tests.host.small_disk import mount_small_disk
from tests.transfer.code.repositories import EntryBox, list_tree, write
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

pytestmark = pytest.mark.process
MIB = 1 << 20


@pytest.fixture
def box(tmp_path: Path, isolated_environment: dict[str, str]) -> EntryBox:
    assert isolated_environment
    return EntryBox(tmp_path / "runs")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A data set of this machine."""
    names: dict[str, bytes | str] = {f"train/{n}.bin": os.urandom(1000) for n in range(20)}
    return write(tmp_path / "set", {**names, "labels.csv": "a,1\n" * 100, "empty": "", "same.csv": "a,1\n" * 100})


def push(box: EntryBox, directory: Path, *locals_: str, **options: object) -> Pushed:
    data = read_data(locals_, os.environ)
    return push_data(cast("Box", box), data, str(directory), pauses_s=(), **options)  # type: ignore[arg-type]


@pytest.mark.requirement("STOR-06", "B-31", "XPORT-03")
def test_only_what_is_missing_or_different_is_sent(box: EntryBox, here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (here / "link").symlink_to("train/1.bin")
    (here / "train" / "run.sh").write_text("#!/bin/sh\r\n")
    (here / "train" / "run.sh").chmod(0o755)
    first = push(box, there, f"{here}/")
    assert (first.files, first.sent, first.replaced) == (25, 25, 0)
    found = list_tree(there)
    roster = read_roster(str(there))
    assert found.pop(ROSTER)
    assert found == list_tree(here)
    assert roster is not None
    assert [entry.path for entry in roster.entries] == sorted(found)
    assert os.access(there / "train" / "run.sh", os.X_OK)
    assert not (there / PUSHING).exists()
    # Unchanged it is one call, and nothing is sent.
    box.asked.clear()
    again = push(box, there, f"{here}/")
    assert (box.asked, again.sent, again.bytes) == (["ask"], 0, 0)
    # The same size and time, and another content: told by its hash.
    seen = (there / "labels.csv").stat()
    (there / "labels.csv").write_bytes(b"b,2\n" * 100)
    os.utime(there / "labels.csv", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    (here / "new").write_text("new\n")
    mended = push(box, there, f"{here}/")
    assert (mended.sent, mended.replaced, list_tree(there)["labels.csv"]) == (2, 1, b"a,1\n" * 100)
    # What is not here any more stays there, and is told.
    (here / "new").unlink()
    third = push(box, there, f"{here}/")
    assert (third.others, third.sent, (there / "new").read_text()) == (1, 0, "new\n")
    roster = read_roster(str(there))
    assert roster is not None
    assert "new" in [entry.path for entry in roster.entries]


@pytest.mark.requirement("XPORT-04")
@pytest.mark.gotcha("U13")
def test_a_directory_goes_by_its_name_and_its_content_with_a_slash(box: EntryBox, here: Path, tmp_path: Path) -> None:
    there = tmp_path / "a" / "b"
    (tmp_path / "x.bin").write_bytes(b"x")
    push(box, there, str(here), str(tmp_path / "x.bin"))
    assert sorted(path.name for path in there.iterdir()) == [ROSTER, "set", "x.bin"]
    with pytest.raises(UsageError, match=r"would both be x.bin"):
        push(box, there, str(tmp_path / "x.bin"), str(tmp_path / "x.bin"))
    with pytest.raises(UsageError, match="does not exist"):
        push(box, there, str(tmp_path / "y.bin"))


@pytest.mark.requirement("XPORT-17")
def test_XPORT_17_what_the_box_can_fetch_itself_is_said_before_it_is_sent(
    box: EntryBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LARGE_BYTES", 1000)
    cache = write(
        tmp_path / "hub",
        {
            "models--org--net-7b/blobs/x": os.urandom(2000),
            "datasets--pairs/blobs/x": os.urandom(1500),
            "models--org--small/blobs/x": os.urandom(500),
            "models--org--net; rm/blobs/x": os.urandom(5000),
            "other/x": os.urandom(5000),
        },
    )
    box.place = Place("gpu1", host="gpu1.lab")
    said: list[str] = []
    push(box, tmp_path / "there", str(cache), dry_run=True, say=said.append)
    begun = "is on a hub: gpu1 may have it sooner by itself: holdfast run -d --no-code --on gpu1 -- hf download"
    assert sorted(said) == [
        f"datasets--pairs (1.46 KiB) {begun} pairs --repo-type dataset",
        f"models--org--net-7b (1.95 KiB) {begun} org/net-7b",
    ]
    said.clear()
    push(box, tmp_path / "there", f"{cache}/models--org--net-7b/", say=said.append)
    assert len(said) == 1
    said.clear()
    push(box, tmp_path / "there", f"{cache}/models--org--net-7b/", say=said.append)
    assert not said, "it is there"


def test_a_dry_run_changes_nothing_there(box: EntryBox, here: Path, tmp_path: Path) -> None:
    found = push(box, tmp_path / "there", f"{here}/", dry_run=True)
    assert (box.asked, found.sent, found.dry_run, (tmp_path / "there").exists()) == (["look"], 23, True, False)


@pytest.mark.requirement("STOR-06", "XPORT-20", "XPORT-02")
@pytest.mark.gotcha("U12")
def test_STOR_06_after_a_cut_the_same_command_goes_on(box: EntryBox, tmp_path: Path) -> None:
    large = os.urandom(12 * MIB)
    here = write(tmp_path / "set", {"a": os.urandom(MIB), "b": large, "c": b"c" * 100})
    there = tmp_path / "there"
    box.cut_after = 8 * MIB
    with pytest.raises(CutOff, match="the link was cut"):
        push(box, there, f"{here}/")
    # The first file is whole and in its place; of the second there is a part, and no roster says that it is there.
    assert (there / "a").read_bytes() == (here / "a").read_bytes()
    assert not (there / "b").exists()
    assert not (there / ROSTER).exists()
    box.sent = 0
    done = push(box, there, f"{here}/")
    assert (done.sent, done.bytes < 6 * MIB, box.sent < 6 * MIB) == (2, True, True)
    assert (there / "b").read_bytes() == large
    assert not (there / PUSHING).exists()


def test_a_part_that_is_not_its_beginning_is_sent_anew(box: EntryBox, tmp_path: Path) -> None:
    here = write(tmp_path / "set", {"b": os.urandom(3 * MIB)})
    there = tmp_path / "there"
    (there / PUSHING).mkdir(mode=0o700, parents=True)
    digest = sha256_hex((here / "b").read_bytes())
    (there / PUSHING / digest).write_bytes(os.urandom(2 * MIB))
    assert push(box, there, f"{here}/").bytes == 3 * MIB
    assert (there / "b").read_bytes() == (here / "b").read_bytes()


def test_a_push_that_was_killed_at_a_link_is_no_hindrance(box: EntryBox, tmp_path: Path) -> None:
    here = write(tmp_path / "set", {"a": b"of another hash"})
    (here / "link").symlink_to("a")
    there = tmp_path / "there"
    (there / PUSHING).mkdir(mode=0o700, parents=True)
    (there / PUSHING / f"{sha256_hex(b'a')}.link").symlink_to("a")
    push(box, there, f"{here}/")
    assert os.readlink(there / "link") == "a"
    assert not (there / PUSHING).exists()


@pytest.mark.requirement("XPORT-05")
def test_a_lost_link_is_tried_again_by_itself(box: EntryBox, tmp_path: Path) -> None:
    here = write(tmp_path / "set", {"b": os.urandom(3 * MIB)})
    box.cut_after = 2 * MIB
    said: list[str] = []
    data = read_data((f"{here}/",), os.environ)
    push_data(cast("Box", box), data, str(tmp_path / "there"), pauses_s=(0.0,), say=said.append)
    assert (said, list_tree(tmp_path / "there")["b"]) == (["the link was cut; going on in 0 s"], list_tree(here)["b"])


@pytest.mark.requirement("XPORT-05")
@pytest.mark.gotcha("U12")
def test_XPORT_05_it_is_tried_for_as_long_as_each_try_brings_something(box: EntryBox, tmp_path: Path) -> None:
    here = write(tmp_path / "set", {str(number): os.urandom(MIB) for number in range(6)})
    data = read_data((f"{here}/",), os.environ)
    said: list[str] = []

    def cut_again(words: str) -> None:
        said.append(words)
        box.cut_after = 3 * MIB // 2

    cut_again("")
    push_data(cast("Box", box), data, str(tmp_path / "there"), pauses_s=(0.0,), say=cut_again)
    assert len(said) >= 4
    assert set(list_tree(tmp_path / "there")) - {ROSTER} == set(list_tree(here))
    # What brings nothing is given up, and says how to go on.
    other = write(tmp_path / "other", {"a": os.urandom(MIB)})
    said.clear()

    def cut_at_once(words: str) -> None:
        said.append(words)
        box.cut_after = 10

    cut_at_once("")
    with pytest.raises(CutOff) as caught:
        push_data(
            cast("Box", box),
            read_data((f"{other}/",), os.environ),
            str(tmp_path / "x"),
            pauses_s=(0.0,),
            say=cut_at_once,
        )
    assert (len(said), "the same command goes on" in caught.value.hint) == (2, True)


def test_holes_stay_holes(box: EntryBox, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with (tmp_path / "set" / "sparse").open("wb") as file:
        file.write(b"begin")
        file.truncate(64 * MIB)
    push(box, tmp_path / "there", f"{tmp_path}/set/")
    seen = (tmp_path / "there" / "sparse").stat()
    assert (seen.st_size, seen.st_blocks * 512 < 2 * MIB) == (64 * MIB, True)


def test_too_little_room_is_said_before_anything_is_sent(box: EntryBox, tmp_path: Path) -> None:
    here = write(tmp_path / "set", {"a": os.urandom(4 * MIB)})
    with mount_small_disk(tmp_path / "disk", 2 * MIB) as disk:
        with pytest.raises(StorageError, match=r"free, and 4.* would be sent: 2.* are missing"):
            push(box, disk / "there", f"{here}/")
        assert (box.asked, list(disk.iterdir())) == (["ask"], [])


@pytest.mark.requirement("XPORT-14")
def test_keys_and_credentials_stay_here(box: EntryBox, here: Path, tmp_path: Path) -> None:
    write(here, {"id_rsa": "x", "kaggle.json": "{}", "notes.txt": "-----BEGIN RSA PRIVATE KEY-----\nabc\n"})
    os.mkfifo(here / "pipe")
    with pytest.raises(PreflightFailed) as refused:
        push(box, tmp_path / "there", f"{here}/")
    text = str(refused.value)
    assert all(words in text for words in ("id_rsa, notes.txt", "credentials: kaggle.json", "pipe")), text
    (here / ".holdfastignore").write_text("id_rsa\nnotes.txt\npipe\n!kaggle.json\n")
    push(box, tmp_path / "there", f"{here}/")
    assert (tmp_path / "there" / "kaggle.json").exists()
    assert not (tmp_path / "there" / "id_rsa").exists()
    assert box.asked


def test_links_that_lead_out_and_repositories_are_left_out_and_named(here: Path) -> None:
    (here / "out").symlink_to("/etc/passwd")
    write(here, {".git/config": "x"})
    data = read_data((f"{here}/",), os.environ)
    assert data.warnings == (
        "links that lead out are left out: out -> /etc/passwd",
        "repositories of git are left out: .git",
    )
    assert not {"out", ".git/config"} & set(data.sources)


def test_what_stands_in_the_way_is_named_and_kept(box: EntryBox, here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "labels.csv").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"labels.csv is a directory there, and a file here"):
        push(box, there, f"{here}/")
    (there / "labels.csv").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (there / "train").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"there/train leads out of"):
        push(box, there, f"{here}/")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_that_is_written_meanwhile_ends_the_push(box: EntryBox, here: Path, tmp_path: Path) -> None:
    data = read_data((f"{here}/",), os.environ)
    (here / "train" / "3.bin").write_bytes(b"another")
    with pytest.raises(StorageError, match=r"3.bin was changed while it was pushed"):
        push_data(cast("Box", box), data, str(tmp_path / "there"), pauses_s=())
    assert not (tmp_path / "there" / ROSTER).exists()


def test_a_stream_that_is_not_what_its_roster_says_is_refused(box: EntryBox, tmp_path: Path) -> None:
    good, evil = b"good", b"evil"
    entries = [CodeEntry("a", "f", sha256_hex(good), 4), CodeEntry("b", "f", sha256_hex(evil), 4)]
    roster = build_manifest(entries)

    def send(*frames: bytes) -> None:
        head = stream.head_manifest(len(roster.data)) + roster.data
        box.entry(
            "data", ("receive", str(tmp_path / "t")), stdin=stream.pack([head, *frames], deflate=False), limit_s=LONG_S
        )

    with pytest.raises(UsageError, match="not what its hash says"):
        send(stream.head_file(entries[0].sha256, 4), evil, stream.END)
    with pytest.raises(UsageError, match="not in the roster"):
        send(stream.head_file("0" * 64, 4), evil, stream.END)
    with pytest.raises(StorageError, match=r"/t/b: No such file"):
        send(stream.head_file(entries[0].sha256, 4), good, stream.END)
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [PUSHING, "a"]


def test_what_a_push_killed_beside_a_link_left_does_not_stop_the_next_one(box: EntryBox, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "link").symlink_to("a")
    there = tmp_path / "there"
    (there / PUSHING).mkdir(mode=0o700, parents=True)
    (there / PUSHING / f"{sha256_hex(b'a')}.link").symlink_to("a")
    assert push(box, there, f"{tmp_path / 'set'}/").sent == 1
    assert os.readlink(there / "link") == "a"


@pytest.mark.parametrize("name", [PUSHING, ROSTER])
def test_data_with_a_name_that_a_push_needs_is_refused_on_either_side(box: EntryBox, tmp_path: Path, name: str) -> None:
    """It would be proven, and then removed with the parts or replaced by the roster."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "f").write_text("f")
    with pytest.raises(UsageError, match="files of its own"):
        push(box, tmp_path / "there", str(tmp_path / name))
    roster = build_manifest([CodeEntry(f"{name}/f", "f", sha256_hex(b"f"), 1)])
    head = stream.head_manifest(len(roster.data)) + roster.data
    frames = [head, stream.head_file(sha256_hex(b"f"), 1), b"f", stream.END]
    with pytest.raises(UsageError, match="needs for itself"):
        box.entry("data", ("receive", str(tmp_path / "t")), stdin=stream.pack(frames, deflate=False), limit_s=LONG_S)


def test_two_pushes_into_one_directory_are_not_mixed(box: EntryBox, here: Path, tmp_path: Path) -> None:
    place = tmp_path / "there" / PUSHING
    place.mkdir(mode=0o700, parents=True)
    held = os.open(place, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(ResourceBusy, match=r"another push into .*there is at work"):
            push(box, tmp_path / "there", f"{here}/")
        # Neither does one write a roster into the other's work that finds all of its files there.
        shutil.copytree(here, tmp_path / "there", dirs_exist_ok=True)
        with pytest.raises(ResourceBusy, match=r"another push into .*there is at work"):
            push(box, tmp_path / "there", f"{here}/")
    finally:
        os.close(held)
    assert push(box, tmp_path / "there", f"{here}/").sent == 0
    assert read_roster(str(tmp_path / "there")) is not None
    assert not place.exists()


@pytest.mark.slow
def test_a_program_stays_one_and_nothing_is_sent_for_a_mode(box: EntryBox, here: Path, tmp_path: Path) -> None:
    push(box, tmp_path / "there", f"{here}/")
    (here / "labels.csv").chmod(0o755)
    changed = push(box, tmp_path / "there", f"{here}/")
    assert (changed.sent, os.access(tmp_path / "there" / "labels.csv", os.X_OK)) == (0, True)
    assert not os.access(tmp_path / "there" / "same.csv", os.X_OK)
    (here / "labels.csv").chmod(0o644)
    push(box, tmp_path / "there", f"{here}/")
    assert not (tmp_path / "there" / "labels.csv").stat().st_mode & 0o111


def test_a_relative_directory_and_an_unknown_variable_are_refused(box: EntryBox, here: Path) -> None:
    for text, words in (("data", "is relative"), ("$NO_SUCH/data", "NO_SUCH is not set there")):
        with pytest.raises(UsageError, match=words):
            push(box, cast("Path", text), f"{here}/")
    push(box, cast("Path", "~/data"), f"{here}/")
    assert (Path(os.environ["HOME"]) / "data" / "labels.csv").exists()


def test_a_variable_is_that_of_the_jobs_of_the_place(box: EntryBox, here: Path) -> None:
    home = Path(os.environ["HOME"])
    for name in (".profile", ".bash_profile"):
        (home / name).write_text("export SCRATCH=~/scratch\n")
    box.place = Place("box", host="box", env_from="login")
    push(box, cast("Path", "$SCRATCH/in"), f"{here}/")
    assert (home / "scratch/in/labels.csv").exists()
