from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.core.code import stream
from holdfast.core.code.manifest import FORMAT, CodeEntry, build_manifest
from holdfast.core.digest import sha256_hex
from holdfast.host.files.code import store
from holdfast.host.files.code.receive import receive_tree, sweep_store
from holdfast.model.errors import CutOff, NotPermitted, StorageError, UsageError
from holdfast.transfer.code.push import _make_frames, push_tree, shrinks
from holdfast.transfer.code.tree import CodeTree, read_tree
from tests.host.small_disk import fill, mount_small_disk
from tests.waiting import LONG_S, wait_until

from .repositories import MAIN, EntryBox, list_tree, make_repository, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

CODE = f".code-{os.geteuid()}"


@pytest.fixture
def box(tmp_path: Path) -> EntryBox:
    (tmp_path / "runs").mkdir(mode=0o700)
    return EntryBox(tmp_path / "runs")


def compare(box: EntryBox, tree: CodeTree) -> list[store.Difference]:
    """How the tree on the box differs from its manifest."""
    directory = store.tree_dir(str(box.root), tree.ref.tree)
    return list(store.compare_tree(f"{directory}/{store.FILES}", store.read_manifest(directory, tree.ref.tree)))


@pytest.fixture
def top(tmp_path: Path) -> Path:
    files: dict[str, bytes | str] = {f"pkg/m{n}.py": f"x = {n}\n" * 50 for n in range(30)}
    made = make_repository(
        tmp_path / "r", {**files, "run.sh": "#!/bin/sh\r\necho\r\n", "empty": "", "same": "x = 1\n" * 50}
    )
    (made / "run.sh").chmod(0o755)
    (made / "link").symlink_to("pkg/m1.py")
    return made


def read(top: Path) -> CodeTree:
    return read_tree(str(top), os.environ)


def files_of(box: EntryBox, tree: CodeTree) -> Path:
    return box.root / CODE / tree.ref.tree / "files"


@pytest.mark.slow
def test_a_tree_arrives_whole_and_read_only_and_is_not_sent_twice(box: EntryBox, top: Path) -> None:
    tree = read(top)
    told: list[tuple[int, int]] = []
    push_tree(box, tree, tell=lambda done, total: told.append((done, total)))  # type: ignore[arg-type]

    place = files_of(box, tree)
    expected = {path: data for path, data in list_tree(top).items() if not path.startswith(".git/")}
    assert list_tree(place) == {**expected, "run.sh": b"#!/bin/sh\necho\n"}
    assert told[-1][0] == told[-1][1]
    assert stat.S_IMODE(place.parent.parent.stat().st_mode) == 0o700
    assert all(not path.lstat().st_mode & 0o222 for path in place.rglob("*") if not path.is_symlink())
    assert (place / "run.sh").stat().st_mode & stat.S_IXUSR
    assert box.asked == ["receive"]

    push_tree(box, tree)  # type: ignore[arg-type]
    assert box.asked == ["receive", "has"]


@pytest.mark.slow
def test_of_a_changed_tree_only_the_changed_files_are_sent(box: EntryBox, top: Path) -> None:
    write(top, {"big.txt": os.urandom(500_000).hex()})
    push_tree(box, read(top))  # type: ignore[arg-type]
    write(top, {"pkg/m3.py": "y = 1\n", "copy.txt": (top / "big.txt").read_bytes()})
    box.asked, box.sent = [], 0
    tree = read(top)
    push_tree(box, tree)  # type: ignore[arg-type]
    assert box.asked == ["receive"]
    assert box.sent < 20_000
    assert (files_of(box, tree) / "copy.txt").read_bytes() == (top / "big.txt").read_bytes()
    assert compare(box, tree) == []


@pytest.mark.slow
def test_what_the_desk_remembers_of_a_box_is_no_more_than_a_guess(box: EntryBox, top: Path, tmp_path: Path) -> None:
    push_tree(box, read(top))  # type: ignore[arg-type]
    (box.root / CODE).rename(tmp_path / "gone")
    write(top, {"pkg/m3.py": "y = 1\n"})
    box.asked = []
    tree = read(top)
    push_tree(box, tree)  # type: ignore[arg-type]
    assert box.asked == ["receive", "has", "receive"]
    assert store.is_whole(str(box.root), tree.ref.tree)

    # A changed byte in a tree there is not copied into the next one.
    damaged = files_of(box, tree) / "pkg" / "m8.py"
    damaged.chmod(0o600)
    damaged.write_text("z = 8\n" * 50)
    write(top, {"pkg/m3.py": "y = 2\n"})
    box.asked = []
    tree = read(top)
    push_tree(box, tree)  # type: ignore[arg-type]
    assert box.asked == ["receive", "has", "missing", "receive"]
    assert store.is_whole(str(box.root), tree.ref.tree)


@pytest.mark.requirement("XPORT-18")
@pytest.mark.gotcha("U15")
def test_XPORT_18_what_shrinks_is_compressed_and_what_does_not_is_sent_as_it_is(box: EntryBox, tmp_path: Path) -> None:
    for name, content, packed in (
        ("text", b"all work and no play\n" * 50_000, True),
        ("noise", os.urandom(10**6), False),
    ):
        box.sent = 0
        push_tree(box, read(write(tmp_path / name, {"file": content})))  # type: ignore[arg-type]
        assert (box.sent < 10**5) is packed


def test_a_pipe_in_the_place_of_a_file_is_no_sample_and_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"all work and no play\n" * 50)
    os.mkfifo(tmp_path / "pipe")
    assert not shrinks([str(tmp_path / "pipe")])
    assert shrinks([str(tmp_path / "pipe"), str(tmp_path / "text")])


def test_after_a_cut_what_arrived_is_not_sent_again(box: EntryBox, tmp_path: Path) -> None:
    tree = read(write(tmp_path / "r", {f"{n}.bin": os.urandom(100_000) for n in range(20)}))
    box.cut_after = 1_500_000
    with pytest.raises(CutOff):
        push_tree(box, tree)  # type: ignore[arg-type]
    assert not files_of(box, tree).exists()
    push_tree(box, tree)  # type: ignore[arg-type]
    assert box.asked == ["has", "receive", "has", "missing", "receive"]
    assert box.sent < 2_400_000
    assert len(list_tree(files_of(box, tree))) == 20


def test_a_cut_before_the_manifest_arrived_leaves_nothing(box: EntryBox, top: Path) -> None:
    box.cut_after = 10
    with pytest.raises(CutOff):
        push_tree(box, read(top))  # type: ignore[arg-type]
    assert os.listdir(box.root / CODE) == []


def test_a_file_that_only_grew_is_sent_as_it_was_and_one_that_changed_is_named(box: EntryBox, top: Path) -> None:
    write(top, {"log.txt": "a line\n"})
    tree = read(top)
    with (top / "log.txt").open("a") as file:
        file.write("another line\n")
    push_tree(box, tree)  # type: ignore[arg-type]
    assert (files_of(box, tree) / "log.txt").read_text() == "a line\n"

    write(top, {"pkg/new.py": "1"})
    tree = read(top)
    write(top, {"pkg/new.py": "2"})
    with pytest.raises(StorageError, match=r"pkg/new\.py was changed while the code was sent"):
        push_tree(box, tree)  # type: ignore[arg-type]
    (top / "pkg/new.py").unlink()
    with pytest.raises(StorageError, match=r"pkg/new\.py cannot be read any more"):
        push_tree(box, tree)  # type: ignore[arg-type]
    assert not files_of(box, tree).exists()


@pytest.mark.slow
@pytest.mark.requirement("PRE-13")
@pytest.mark.gotcha("U42")
def test_one_byte_that_was_changed_on_the_box_is_found_and_mended_by_the_next_push(box: EntryBox, top: Path) -> None:
    tree = read(top)
    push_tree(box, tree)  # type: ignore[arg-type]
    push_tree(box, tree)  # type: ignore[arg-type]
    file = files_of(box, tree) / "pkg" / "m7.py"
    inode = file.parent.stat().st_ino
    file.chmod(0o600)
    seen = file.stat()
    file.write_bytes(file.read_bytes().replace(b"x = 7", b"x = 8", 1))
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    file.chmod(0o400)
    (files_of(box, tree)).chmod(0o700)
    (files_of(box, tree) / "same").unlink()

    found = compare(box, tree)
    assert found == [store.Difference("pkg/m7.py", "changed"), store.Difference("same", "missing")]
    box.asked = []
    push_tree(box, tree)  # type: ignore[arg-type]
    assert box.asked == ["has", "missing", "receive"]
    assert compare(box, tree) == []
    assert file.parent.stat().st_ino == inode, "a job may stand in this directory"


def test_a_damaged_manifest_is_replaced(box: EntryBox, top: Path) -> None:
    tree = read(top)
    push_tree(box, tree)  # type: ignore[arg-type]
    (files_of(box, tree).parent / "manifest").unlink()
    push_tree(box, tree)  # type: ignore[arg-type]
    assert store.is_whole(str(box.root), tree.ref.tree)


def test_the_same_tree_from_many_at_once_is_there_once(box: EntryBox, top: Path) -> None:
    tree, problems = read(top), []

    def send() -> None:
        try:
            push_tree(EntryBox(box.root), tree)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - told below
            problems.append(error)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert os.listdir(files_of(box, tree).parent.parent) == [tree.ref.tree]
    assert store.is_whole(str(box.root), tree.ref.tree)


@pytest.mark.slow
def test_a_receiver_that_is_killed_leaves_no_tree_and_its_rest_is_used_then_swept(
    box: EntryBox, tmp_path: Path
) -> None:
    tree = read(write(tmp_path / "r", {f"{n}.bin": os.urandom(300_000) for n in range(4)}))
    frames = list(_make_frames(tree, {entry.sha256: entry for entry in tree.entries}, None, []))
    data = b"".join(stream.pack(frames, deflate=False))
    place = files_of(box, tree).parent.parent
    words = ("code", "receive", str(box.root), tree.ref.tree)
    child = subprocess.Popen([sys.executable, "-I", "-S", str(MAIN), *words], stdin=subprocess.PIPE)
    with child:
        assert child.stdin is not None
        child.stdin.write(data[:800_000])
        child.stdin.flush()
        wait_until(lambda: sum(path.stat().st_size for path in place.rglob("*.bin")) > 600_000, what="it is at work")
        child.send_signal(signal.SIGKILL)
    assert not files_of(box, tree).exists()
    (rest,) = os.listdir(place)

    box.sent = 0
    push_tree(box, tree)  # type: ignore[arg-type]
    assert box.sent < 900_000
    assert store.is_whole(str(box.root), tree.ref.tree)
    assert rest in os.listdir(place)
    os.utime(place / rest, (1, 1))
    push_tree(box, read(write(tmp_path / "other", {"a": "1"})))  # type: ignore[arg-type]
    assert rest not in os.listdir(place)


def test_a_file_that_takes_hours_to_arrive_is_not_swept_meanwhile(box: EntryBox) -> None:
    """Each piece takes 40 minutes, and after each another push sweeps what nobody touched for an hour."""
    content = os.urandom(5 * stream.PIECE)
    tree, data = _stream([_entry("large.bin", content)], [content])
    arriving = io.BytesIO(data)

    def receive_slowly(size: int) -> bytes:
        for path in (box.root / CODE).iterdir():
            os.utime(path, (0, path.stat().st_mtime - 2400))
        assert sweep_store(str(box.root)) == 0
        return arriving.read(size)

    receive_tree(str(box.root), tree, receive_slowly)
    assert store.is_whole(str(box.root), tree)


def _stream(entries: list[CodeEntry], contents: list[bytes], manifest: bytes | None = None) -> tuple[str, bytes]:
    made = build_manifest(entries)
    data = made.data if manifest is None else manifest
    frames = [stream.head_manifest(len(data)) + data]
    frames += [stream.head_file(sha256_hex(content), len(content)) + content for content in contents]
    name = made.tree if manifest is None else sha256_hex(manifest)[:16]
    return name, b"".join(stream.pack([*frames, stream.END], deflate=False))


def _entry(path: str, content: bytes, kind: str = "f") -> CodeEntry:
    return CodeEntry(path, kind, sha256_hex(content), len(content))


def _hostile() -> Iterator[tuple[str, str, bytes]]:
    yield "absolute", *_stream([_entry("/tmp/x", b"1")], [b"1"])
    yield "dots", *_stream([_entry("../x", b"1")], [b"1"])
    yield "link up", *_stream([_entry("a", b"../..", "l")], [b"../.."])
    yield "link absolute", *_stream([_entry("a", b"/etc", "l")], [b"/etc"])
    yield "through a link", *_stream([_entry("a", b".", "l"), _entry("a/b", b"1")], [b".", b"1"])
    yield "device", *_stream([], [], FORMAT + b"c " + b"a" * 64 + b" 1\tx\0")
    yield "not asked for", *_stream([_entry("a", b"1")], [b"1", b"2"])
    yield "twice", *_stream([_entry("a", b"1")], [b"1", b"1"])
    yield "another manifest", "0" * 16, _stream([_entry("a", b"1")], [b"1"])[1]
    name, data = _stream([_entry("a", b"1234")], [b"1234"])
    yield "another content", name, data.replace(b"1234", b"1235")
    yield "no stream", name, b"rubbish\n"


@pytest.mark.parametrize(("what", "tree", "data"), [pytest.param(*case, id=case[0]) for case in _hostile()])
def test_a_hostile_stream_is_refused_and_leaves_nothing(box: EntryBox, what: str, tree: str, data: bytes) -> None:
    with pytest.raises(UsageError, match="refused as code"):
        box.entry("code", ("receive", str(box.root), tree), stdin=data, limit_s=LONG_S)
    assert os.listdir(box.root / CODE) == []


def test_a_content_that_is_nowhere_is_named(box: EntryBox) -> None:
    tree, data = _stream([_entry("a", b"1"), _entry("b", b"2")], [b"1"])
    with pytest.raises(StorageError, match="b was not sent"):
        box.entry("code", ("receive", str(box.root), tree), stdin=data, limit_s=LONG_S)
    assert os.listdir(box.root / CODE) == []


@pytest.mark.parametrize("words", [(), ("has",), ("has", "/x", "../../etc"), ("look", "/x", "0" * 16)])
def test_words_that_mean_nothing_are_refused(box: EntryBox, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        box.entry("code", words or ("",), limit_s=LONG_S)


@pytest.mark.parametrize("kind", ["bytes", "inodes"])
def test_a_full_disk_is_told_and_nothing_is_left(tmp_path: Path, kind: str) -> None:
    with mount_small_disk(tmp_path / "disk", 4 << 20) as disk:
        (disk / "runs").mkdir(mode=0o700)
        box = EntryBox(disk / "runs")
        if kind == "bytes":
            ballast = fill(disk, leave_bytes=100_000)
            files: dict[str, bytes | str] = {f"{n}": os.urandom(50_000) for n in range(10)}
        else:
            ballast = disk / "none"
            files = {f"{n}": str(n) for n in range(100)}
        tree = read(write(tmp_path / "r", files))
        with pytest.raises(StorageError) as caught:
            push_tree(box, tree)  # type: ignore[arg-type]
        assert ("No space left" if kind == "bytes" else "no inodes are left") in str(caught.value)
        assert os.listdir(box.root / CODE) == []
        if kind == "bytes":
            ballast.unlink()
            push_tree(box, tree)  # type: ignore[arg-type]
            assert store.is_whole(str(box.root), tree.ref.tree)


@pytest.mark.slow
def test_a_directory_of_trees_that_others_can_write_is_not_used(box: EntryBox, top: Path) -> None:
    tree = read(top)
    push_tree(box, tree)  # type: ignore[arg-type]
    place = files_of(box, tree).parent.parent
    place.chmod(0o777)
    assert not _is_present(box, tree)
    place.chmod(0o700)
    os.chown(place, 4242, 4242)
    try:
        assert not _is_present(box, tree)
    finally:
        os.chown(place, os.geteuid(), os.getegid())
    place.rename(place.parent / "aside")
    place.symlink_to(place.parent / "aside")
    assert not _is_present(box, tree)


def _is_present(box: EntryBox, tree: CodeTree) -> Any:
    try:
        return box.entry("code", ("has", str(box.root), tree.ref.tree), limit_s=LONG_S)["present"]
    except NotPermitted:
        return False
