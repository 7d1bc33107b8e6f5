"""What belongs to a run comes home, and nothing else: directories, results elsewhere, links, names, what is damaged."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast.agent.place.data.run_roster import (
    MOST_LEFT_OUT,
    Found,
    LeftOuts,
    Opener,
    hash_found,
    keep_hash,
    make_roster,
    open_memory,
)
from holdfast.agent.place.data.send import _read
from holdfast.core.code.manifest import DIRECTORY, LINK, CodeEntry, hash_link
from holdfast.core.digest import sha256_hex
from holdfast.core.pull.choose import Choice
from holdfast.core.pull.stream import PULLING, Wish
from holdfast.host.files import fallback, files
from holdfast.host.files.code import hashes
from holdfast.host.files.code.hashes import Remembered
from holdfast.host.files.filesystems import Mount
from holdfast.host.process import libc
from holdfast.model.errors import ResourceBusy, StorageError, UsageError
from holdfast.model.receipt import GRAVE, OUTSIDE, TAKEN, UNREAD
from holdfast.transfer.pull.copy import Copy
from holdfast.transfer.pull.pull import PullResult, take_run
from holdfast.transfer.pull.trial import reread
from tests.host.small_disk import fill, mount_small_disk
from tests.rundirs import ended, make_run
from tests.transfer.pull.streams import PullBox

pytestmark = pytest.mark.process
RUN = "20261120-100000-digits-0a1b"
MIB = 1 << 20


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> Path:
    """A run of this machine that has ended."""
    return Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))


def pull(target: Path, box: PullBox | None = None) -> PullResult:
    copy = Copy(str(target), "gpu1", RUN, os.environ)
    copy.check()
    with copy.held():
        taken = take_run((box or PullBox()).as_box(), Wish(RUN), copy, pauses_s=())
        reread(copy, taken.here)
    return taken


def declare(run_dir: Path, *artifacts: str) -> None:
    origin = json.loads((run_dir / "run.json").read_text())
    origin["job"]["artifacts"] = artifacts
    (run_dir / "run.json").write_text(json.dumps(origin))


def test_empty_directories_and_results_elsewhere_come_too(run_dir: Path, tmp_path: Path) -> None:
    """What shut the gate for good because no pull brought it."""
    data, copy = tmp_path / "data" / "out", tmp_path / "copy"
    (data / "sub" / "void").mkdir(parents=True)
    (data / "a.bin").write_bytes(b"a")
    (tmp_path / "weights.pt").write_bytes(b"w")
    (tmp_path / "far.bin").write_bytes(b"f")
    (run_dir / "artifacts" / "far.bin").symlink_to(tmp_path / "far.bin")
    (run_dir / "logs" / "deep").mkdir(parents=True)
    (run_dir / "zero").touch()
    nowhere = str(tmp_path / "not mounted" / "x")
    declare(run_dir, str(data), str(data / "a.bin"), f"{tmp_path}/*.pt", "artifacts/far.bin", "artifacts/gone", nowhere)
    aside = Path(str(fallback.directory(RUN, 1)))
    aside.mkdir()
    try:
        (aside / "late.json").write_text("{}")
        taken = pull(copy)
    finally:
        shutil.rmtree(aside)
    outside = copy / "outside"
    assert (outside / str(data)[1:] / "a.bin").read_bytes() == b"a"
    assert (outside / str(data)[1:] / "sub" / "void").is_dir()
    assert (outside / str(tmp_path)[1:] / "weights.pt").read_bytes() == b"w"
    assert (outside / str(tmp_path)[1:] / "far.bin").read_bytes() == b"f"
    assert (outside / str(aside)[1:] / "late.json").read_text() == "{}"
    assert (copy / "logs" / "deep").is_dir()
    assert DIRECTORY in {entry.kind for entry in taken.here}
    assert taken.about.files == sum(entry.kind != DIRECTORY for entry in taken.here)
    # What is declared and not there: only what may be on a disk that is not mounted is said to matter.
    why = {one.path: one.why for one in taken.about.left_out}
    assert why[nowhere].startswith(OUTSIDE)
    assert not why["artifacts/gone"].startswith((OUTSIDE, UNREAD))
    again = pull(copy)
    assert (again.received, again.sent) == (0, 0)
    shutil.rmtree(run_dir / "logs")
    (run_dir / "logs").touch()  # an empty file is no empty directory
    (copy / "logs" / "deep").rmdir()
    pull(copy)
    assert (copy / "logs").is_file()


@pytest.mark.parametrize("kind", ["file", "directory", "empty"])
def test_a_run_with_the_name_of_what_lies_elsewhere_says_what_did_not_come(
    run_dir: Path, tmp_path: Path, kind: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.bin").write_bytes(b"declared")
    declare(run_dir, str(data))
    own = run_dir / "outside" / str(data)[1:] / "a.bin" if kind == "directory" else run_dir / "outside"
    own.mkdir() if kind == "empty" else own.parent.mkdir(parents=True, exist_ok=True)
    if kind != "empty":
        own.write_bytes(b"own")
    taken = pull(tmp_path / "copy")
    assert [one.path for one in taken.about.left_out if one.why.startswith(OUTSIDE)] == [str(data)]
    if kind != "empty":
        assert (tmp_path / "copy" / own.relative_to(run_dir)).read_bytes() == b"own"


def test_what_a_directory_became_replaces_it_where_it_is_empty(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "best").symlink_to("artifacts/x")
    pull(tmp_path / "copy")
    (run_dir / "checkpoints").rmdir()
    (run_dir / "checkpoints").symlink_to("artifacts")
    # A file that holds what was the target of a link is another thing than the link.
    (run_dir / "best").unlink()
    (run_dir / "best").write_text("artifacts/x")
    pull(tmp_path / "copy")
    assert (tmp_path / "copy" / "checkpoints").readlink() == Path("artifacts")
    assert not (tmp_path / "copy" / "best").is_symlink()
    (run_dir / "best").unlink()
    (run_dir / "best").mkdir()
    with pytest.raises(StorageError, match="is no directory here, and one in the run"):
        pull(tmp_path / "copy")
    assert (tmp_path / "copy" / "best").read_text() == "artifacts/x"


def test_a_chain_of_links_leads_out_of_neither_side(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "d").mkdir()
    (run_dir / "d" / "x").symlink_to("..")
    (run_dir / "y").symlink_to("d/x/../../secret")
    (run_dir / "z").symlink_to("d/x/artifacts")
    taken = pull(tmp_path / "copy")
    why = {one.path: one.why for one in taken.about.left_out}
    assert "leads out of the run" in why["y"]
    assert not os.path.lexists(tmp_path / "copy" / "y")
    assert (tmp_path / "copy" / "z").readlink() == Path("d/x/artifacts")
    # A place that sends it nevertheless is refused, and the link is not left.
    copy = Copy(str(tmp_path / "copy"), "gpu1", RUN, os.environ)
    target = "d/x/../../secret"
    copy.place_link("y", target, hash_link(target.encode()))
    with pytest.raises(StorageError, match="the link y, which leads out"):
        reread(copy, [CodeEntry("y", LINK, hash_link(target.encode()), len(target))])
    assert not os.path.lexists(tmp_path / "copy" / "y")
    # A directory that becomes a link between the look and the opening.
    (run_dir / "d" / "f").write_text("mine")
    found = Found("d/f", (run_dir / "d" / "f").lstat(), str(run_dir))
    opener = Opener()
    os.close(opener.open(found))
    opener.close()
    (run_dir / "d").rename(tmp_path / "elsewhere")
    (run_dir / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="d"):
        opener.open(found)
    opener.close()


def test_a_file_with_a_name_that_a_copy_keeps_for_itself_closes_a_gate(run_dir: Path, tmp_path: Path) -> None:
    """It is not in the copy, whoever wrote it."""
    (run_dir / "receipt.json").write_text("{}")
    taken = pull(tmp_path / "copy")
    [left_out] = [one for one in taken.about.left_out if one.path == "receipt.json"]
    assert left_out.why == f"{TAKEN}: rename it there"
    assert left_out.why.startswith(GRAVE)


def test_two_names_that_are_one_to_the_desk_are_refused_with_both(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a Mac's disk, which finds its own directory under another case, too."""
    for name in ("Model.pt", "model.pt"):
        (run_dir / "artifacts" / name).write_text(name)
    copy = tmp_path / "copy"
    (copy / PULLING).mkdir(parents=True, mode=0o700)
    pull(copy)
    exists = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: exists(path) or str(path).endswith(PULLING.upper()))
    shutil.rmtree(copy / "artifacts")
    with pytest.raises(StorageError, match=r"artifacts/Model\.pt and artifacts/model\.pt are one name") as caught:
        pull(copy)
    assert "that tells them apart" in caught.value.hint
    assert (copy / "artifacts" / "Model.pt").read_text() == "Model.pt"
    shutil.rmtree(copy / "artifacts")
    (copy / "Artifacts").mkdir()
    with pytest.raises(StorageError, match="Artifacts and artifacts are one name"):
        pull(copy)
    (copy / "Artifacts").rmdir()
    (run_dir / "Receipt.json").write_text("a result")
    with pytest.raises(StorageError, match=r"receipt\.json and Receipt\.json are one name"):
        pull(copy)


def test_no_bound_hides_what_closes_a_gate() -> None:
    left_out = LeftOuts()
    for number in range(MOST_LEFT_OUT + 500):
        left_out.add(f"tmp-{number}", "neither a file nor a link")
    left_out.add("model.pt", UNREAD, ": Permission denied")
    assert left_out.named[0].path == "model.pt"
    assert left_out.more == {"neither a file nor a link": 500}
    for number in range(MOST_LEFT_OUT):
        left_out.add(f"{number}.pt", UNREAD, f": {number}")
    assert left_out.more[UNREAD] == 1


def test_a_block_that_cannot_be_read_ends_its_file_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    descriptor = os.open(tmp_path / "f", os.O_WRONLY)  # which cannot be read
    try:
        assert _read(descriptor, 1, 0) == b""
    finally:
        os.close(descriptor)


def test_what_shrinks_and_vanishes_meanwhile_is_as_it_is_then(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "artifacts" / "a.bin").write_bytes(os.urandom(3 * MIB))
    (run_dir / "artifacts" / "b.bin").write_bytes(b"b")
    (run_dir / "artifacts" / "void").mkdir()
    box = PullBox()

    def spoil(data: bytes, at: int) -> bytes:
        if at >= MIB and (run_dir / "artifacts" / "b.bin").exists():
            os.truncate(run_dir / "artifacts" / "a.bin", 5)
            (run_dir / "artifacts" / "b.bin").unlink()
            (run_dir / "artifacts" / "void").rmdir()
        return data

    box.spoil = spoil
    taken = pull(tmp_path / "copy", box)
    assert (tmp_path / "copy" / "artifacts" / "a.bin").stat().st_size == 5
    assert not (tmp_path / "copy" / "artifacts" / "b.bin").exists()
    assert (box.streams, taken.growing) == (2, ())


def test_a_disk_that_takes_nothing_is_said_and_what_was_there_stays(run_dir: Path, tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "small", 4 * MIB) as small:
        pull(small / "copy")
        before = sorted(str(path) for path in small.rglob("*"))
        (run_dir / "artifacts" / "new").write_bytes(b"new")
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        for target in (small / "copy", small / "other"):
            with pytest.raises(StorageError, match="Read-only file system") as caught:
                pull(target)
            assert "pull into another directory" in caught.value.hint
        subprocess.run(["mount", "-o", "remount,rw", small], check=True)
        assert sorted(str(path) for path in small.rglob("*")) == before
        while True:
            try:
                (small / f"inode-{len(os.listdir(small))}").touch()
            except OSError:
                break
        for target in (small / "copy", small / "other"):
            with pytest.raises(StorageError, match=r"inodes free|No space left") as caught:
                pull(target)
            assert "df -i" in caught.value.hint
        for path in small.glob("inode-*"):
            path.unlink()
        ballast = fill(small)
        with pytest.raises(StorageError, match=r"are missing|No space left") as caught:
            pull(small / "other")
        assert "make room there" in caught.value.hint
        ballast.unlink()
        pull(small / "copy")
        assert (small / "copy" / "artifacts" / "new").read_bytes() == b"new"


def test_whoever_waited_for_a_pull_that_has_just_ended_holds_nothing(tmp_path: Path, run_dir: Path) -> None:
    """It opened the directory of parts, which the other one has removed since."""
    assert run_dir.is_dir()
    copy = Copy(str(tmp_path / "copy"), "gpu1", RUN, os.environ)

    class Late(Copy):
        def _lock(self, descriptor: int) -> None:
            super()._lock(descriptor)
            copy.clear()

    with pytest.raises(ResourceBusy), Late(str(tmp_path / "copy"), "gpu1", RUN, os.environ).held():
        pass
    pull(tmp_path / "copy")


def test_a_pull_that_was_killed_as_it_marked_its_directory_goes_on(run_dir: Path, tmp_path: Path) -> None:
    assert run_dir.is_dir()
    torn = Path(files.name_temporary(str(tmp_path / "copy" / "copy.json")))
    torn.parent.mkdir()
    torn.write_text("{")
    copy = Copy(str(tmp_path / "copy"), "gpu1", RUN, os.environ)
    copy.check()
    with copy.held():
        copy.clear()
    assert os.listdir(tmp_path / "copy") == ["copy.json"]


def test_a_checkpoint_that_is_only_a_link_out_shuts_the_gate(run_dir: Path, tmp_path: Path) -> None:
    """Checkpoints are put on a large disk by a link; the receipt said "1 left out", and the gate opened."""
    large = tmp_path / "large"
    large.mkdir()
    (large / "last.pt").write_bytes(b"w")
    (run_dir / "declared").symlink_to(large)
    inside, kept = run_dir / "checkpoints", run_dir / "artifacts"
    inside.mkdir(exist_ok=True)
    (inside / "step-1").mkdir()
    (inside / "latest").symlink_to(inside / "step-1")  # absolute, and of the run
    (inside / "last.pt").symlink_to(large / "last.pt")
    (kept / "gone.pt").symlink_to("/nowhere/gone.pt")
    left_out = {one.path: one.why for one in pull(tmp_path / "copy").about.left_out}
    grave = {path for path, why in left_out.items() if why.startswith(OUTSIDE)}
    assert grave == {"checkpoints/last.pt", "artifacts/gone.pt"}
    declare(run_dir, "declared")
    left_out = {one.path: one.why for one in pull(tmp_path / "copy").about.left_out}
    assert [path for path, why in left_out.items() if why.startswith(OUTSIDE)] == ["artifacts/gone.pt"]
    shutil.rmtree(inside)
    inside.symlink_to(tmp_path)
    left_out = {one.path: one.why for one in pull(tmp_path / "copy").about.left_out}
    assert left_out["checkpoints"].startswith(OUTSIDE)


def test_the_hash_of_a_files_beginning_is_never_remembered_as_that_of_the_file(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that grew between the listing and its reading, and then rested."""
    file = run_dir / "work.bin"
    file.write_bytes(b"begin")
    listed = Found("work.bin", file.lstat(), str(run_dir))
    file.write_bytes(b"beginning")
    memory = open_memory(str(run_dir), os.environ)
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)  # it has rested
    with closing(Opener()) as opener:
        assert hash_found(opener, listed, memory, tell=lambda: None) is not None
    assert memory.recall("work.bin", file.lstat()) is None


def store(mapped: mmap.mmap, file: Path, content: bytes) -> None:
    """Through the map, when the clock of the file system has gone on: else a change would be within one tick."""
    before, clock = file.stat().st_ctime_ns, file.with_name("clock")
    clock.touch()
    while clock.stat().st_ctime_ns <= before:
        clock.touch()
    clock.unlink()
    mapped[: len(content)] = content


def test_what_is_stored_through_a_memory_map_is_in_the_next_roster(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel changes a file's times with the first store into a page alone, until the page was written back."""
    monkeypatch.setattr(hashes, "SETTLED_NS", 0)
    file = run_dir / "artifacts" / "index.bin"
    file.write_bytes(bytes(8192))

    def hash_now() -> str:
        """As the entries do, each of which is a process of its own."""
        memory = open_memory(str(run_dir), os.environ)
        roster, _ = make_roster(str(run_dir), Choice((), ()), memory)
        memory.save()
        return next(entry.sha256 for entry in roster.entries if entry.path == "artifacts/index.bin")

    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 8192) as mapped:
        for content in (b"first", b"second", b"third"):
            store(mapped, file, content)
            assert hash_now() == sha256_hex(file.read_bytes()), content


def test_what_is_stored_through_a_memory_map_into_a_copy_is_seen(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate looks at the copy again and again, each time in a process of its own."""
    monkeypatch.setattr(hashes, "SETTLED_NS", 0)
    (run_dir / "artifacts" / "index.bin").write_bytes(bytes(8192))
    pull(tmp_path / "copy")
    file = tmp_path / "copy" / "artifacts" / "index.bin"
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 8192) as mapped:
        for content in (b"first", b"second"):
            store(mapped, file, content)
            copy = Copy(str(tmp_path / "copy"), "gpu1", RUN, os.environ)
            placed = copy.prove("artifacts/index.bin")
            copy.save()
            assert placed is not None
            assert placed.sha256 == sha256_hex(file.read_bytes()), content


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), AttributeError("sync_file_range")])
def test_a_file_that_cannot_be_written_back_is_read_each_time(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)
    file = run_dir / "work.bin"
    file.write_bytes(b"content")
    monkeypatch.setattr(libc, "write_back", Mock(side_effect=error))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "I/O error")))
    memory = open_memory(str(run_dir), os.environ)
    with closing(Opener()) as opener:
        found = Found("work.bin", file.lstat(), str(run_dir))
        assert hash_found(opener, found, memory, tell=lambda: None) == sha256_hex(b"content")
    memory.save()
    assert open_memory(str(run_dir), os.environ).recall("work.bin", file.lstat()) is None


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_lies_in_memory_alone_is_read_each_time(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    """Nothing writes it back, so no times tell of a map."""
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)
    seen = (run_dir / "run.json").lstat()
    device = f"{os.major(seen.st_dev)}:{os.minor(seen.st_dev)}"
    mount = Mount("/dev/shm", "tmpfs" if in_memory else "ext4", "any", read_only=False, device=device)
    monkeypatch.setattr(hashes, "read_mounts", lambda: (mount,))
    memory = open_memory(str(run_dir), os.environ)
    memory.remember("run.json", seen, Remembered("0" * 64, seen.st_size), settled_ns=time.time_ns())
    memory.save()
    assert (open_memory(str(run_dir), os.environ).recall("run.json", seen) is None) == in_memory


def test_the_same_run_id_of_two_places_is_never_one_copy(run_dir: Path, tmp_path: Path) -> None:
    """As a run that was copied from one box to another one by hand, and went on there."""
    pull(tmp_path / "copy")
    before = sorted(os.listdir(tmp_path / "copy"))
    other = Copy(str(tmp_path / "copy"), "gpu2", RUN, os.environ)
    with pytest.raises(UsageError, match=f"holds a copy of gpu1:{RUN}, another run"):
        other.check()
    late = Copy(str(tmp_path / "late"), "gpu2", RUN, os.environ)
    late.check()
    pull(tmp_path / "late")  # another command was faster
    with pytest.raises(UsageError, match="another run"), late.held():
        pytest.fail("it is held by the copy of another place")
    assert sorted(os.listdir(tmp_path / "copy")) == before


@pytest.mark.parametrize("way", ["", "..", "../../.."])
def test_a_result_that_is_a_directory_above_the_run_is_not_pulled(run_dir: Path, tmp_path: Path, way: str) -> None:
    """All other runs would come with it, and the run itself, again and again."""
    (run_dir / "artifacts" / "all").symlink_to(run_dir / way)
    declare(run_dir, "artifacts/all")
    (run_dir.parent / "secret.txt").write_text("of another run")
    taken = pull(tmp_path / "copy")
    left_out = {one.path: one.why for one in taken.about.left_out if one.why.startswith(OUTSIDE)}
    above = os.path.realpath(run_dir / way)
    assert not [entry.path for entry in taken.here if "secret" in entry.path]
    if way:
        assert "the run itself lies in it" in left_out[above]
        assert not (tmp_path / "copy" / "outside").exists()


def test_what_was_hashed_as_it_was_sent_is_not_read_again_for_the_roster(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of a first pull was read and hashed twice: what one stream had hashed was remembered for the next."""
    file = run_dir / "work.bin"
    file.write_bytes(b"work")
    memory, listed = open_memory(str(run_dir), os.environ), Found("work.bin", file.lstat(), str(run_dir))
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)  # it has rested
    with open(file, "rb") as opened:
        keep_hash("work.bin", listed.seen, opened.fileno(), "a" * 64, memory, settled_ns=time.time_ns())
    with closing(Opener()) as opener:
        assert hash_found(opener, listed, memory, tell=lambda: None) == "a" * 64
        file.write_bytes(b"else")
        listed = Found("work.bin", file.lstat(), str(run_dir))
        assert hash_found(opener, listed, memory, tell=lambda: None) == sha256_hex(b"else")
