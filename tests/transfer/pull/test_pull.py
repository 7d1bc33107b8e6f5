"""A run comes home whole: over links that are cut, go silent or damage it, from files that are written meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.core.pull import stream
from holdfast.core.pull.stream import PULLING, UNKNOWN, Wish, unpack_manifest
from holdfast.host.formats.copy_mark import read_mark
from holdfast.model.errors import CutOff, NotPermitted, ResourceBusy, StorageError, UsageError
from holdfast.transfer.pull import arrive
from holdfast.transfer.pull.arrive import Arrival, Damaged
from holdfast.transfer.pull.copy import Copy
from holdfast.transfer.pull.pull import PullResult, ask_roster, take_run
from tests.host.small_disk import mount_small_disk
from tests.rundirs import ended, make_run, running
from tests.transfer.code.repositories import list_tree
from tests.transfer.pull.streams import PullBox
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.process
RUN = "20261120-100000-digits-0a1b"
OTHER = "20261120-100000-other-0a1b"
MIB = 1 << 20
RUN_FILE = b"\trun.json\0"


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> Path:
    """A run of this machine that has ended."""
    top = Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))
    for number in range(20):
        (top / "artifacts" / f"{number}.bin").write_bytes(os.urandom(1000))
    return top


@pytest.fixture
def box() -> PullBox:
    return PullBox()


def pull(box: PullBox, target: Path, *, run: str = RUN, **options: object) -> PullResult:
    copy = Copy(str(target), "gpu1", run, os.environ)
    copy.check()
    with copy.held():
        wish = Wish(run, *(options.pop(name, ()) for name in ("only", "without")))  # type: ignore[arg-type]
        return take_run(box.as_box(), wish, copy, **{"pauses_s": (0.0,), **options})  # type: ignore[arg-type]


class Killed(Exception):
    """The end of a desk."""


def die_at(size: int) -> Callable[[bytes, int], bytes]:
    """The desk ends when so many bytes have arrived."""

    def spoil(data: bytes, at: int) -> bytes:
        if at >= size:
            raise Killed
        return data

    return spoil


def here_of(target: Path) -> dict[str, object]:
    """What of the run is in a copy."""
    found = list_tree(target)
    return {path: data for path, data in found.items() if path != "copy.json" and not path.startswith(PULLING)}


@pytest.mark.requirement("XPORT-02", "XPORT-03", "MON-12", "B-31", "B-81", "VRFY-02", "VRFY-13")
def test_all_of_a_run_comes_once_and_only_what_changed_comes_again(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    (run_dir / "best").symlink_to("artifacts/1.bin")
    (run_dir / "artifacts" / "new\nline").write_bytes(b"x")
    (run_dir / "artifacts" / "run.sh").write_text("#!/bin/sh\n")
    (run_dir / "artifacts" / "run.sh").chmod(0o755)
    first = pull(box, target)
    assert here_of(target) == list_tree(run_dir)
    assert os.access(target / "artifacts" / "run.sh", os.X_OK)
    assert (target / "run.json").stat().st_mtime_ns == (run_dir / "run.json").stat().st_mtime_ns
    assert (first.again, first.about.live, first.about.files) == (0, False, len(list_tree(run_dir)))
    # What holds no file's content is left out, with why.
    (run_dir / "out").symlink_to("/etc/passwd")
    (run_dir / "up").symlink_to("../../x")
    os.mkfifo(run_dir / "pipe")
    again = pull(box, target)
    assert (again.received, again.sent) == (0, 0)
    why = {one.path: one.why for one in again.about.left_out}
    assert "leads out" in why["out"]
    assert "leads out" in why["up"]
    assert "neither a file nor a link" in why["pipe"]
    # The same size and time, and other bytes: noticed on either side.
    for top, path in ((run_dir, "artifacts/3.bin"), (target, "artifacts/4.bin")):
        seen = (top / path).stat()
        (top / path).write_bytes(os.urandom(1000))
        os.utime(top / path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    (target / "notes.txt").write_text("my own\n")
    mended = pull(box, target)
    assert (mended.received, mended.sent) == (2, 2000)
    assert (target / "artifacts/3.bin").read_bytes() == (run_dir / "artifacts/3.bin").read_bytes()
    assert (target / "artifacts/4.bin").read_bytes() == (run_dir / "artifacts/4.bin").read_bytes()
    assert (target / "notes.txt").read_text() == "my own\n"


@pytest.mark.requirement("XPORT-02")
@pytest.mark.gotcha("U12")
@pytest.mark.slow
def test_XPORT_02_five_cuts_cost_little_more_than_the_bytes(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    size = 16 * MIB
    (run_dir / "artifacts" / "weights.bin").write_bytes(os.urandom(size))
    cuts = iter([2, 3, 1, 4, 2])
    left = [next(cuts) * MIB]

    def spoil(data: bytes, at: int) -> bytes | None:
        if at > left[0]:
            left[0] = next(cuts, 1 << 20) * MIB
            return None
        return data

    box.spoil = spoil
    said: list[str] = []
    taken = pull(box, tmp_path / "copy", say=said.append)
    assert here_of(tmp_path / "copy") == list_tree(run_dir)
    assert (taken.again, len(said)) == (5, 5)
    assert box.carried <= 1.3 * size
    assert not [name for name in os.listdir(tmp_path / "copy" / PULLING) if name != "new"]


@pytest.mark.slow
def test_a_pull_that_was_killed_is_gone_on_with_behind_what_arrived(
    box: PullBox, run_dir: Path, tmp_path: Path
) -> None:
    (run_dir / "artifacts" / "weights.bin").write_bytes(os.urandom(4 * MIB))
    box.spoil = die_at(3 * MIB)
    with pytest.raises(Killed):
        pull(box, tmp_path / "copy")
    assert read_mark(str(tmp_path / "copy")) is not None
    (tmp_path / "copy" / PULLING / "stray").write_bytes(b"nobody knows of what")
    again = PullBox()
    taken = pull(again, tmp_path / "copy")
    assert again.carried < 2 * MIB
    assert here_of(tmp_path / "copy") == list_tree(run_dir)
    assert taken.again == 0
    # A beginning that is not the file's is not gone on with.
    (tmp_path / "copy" / "artifacts" / "weights.bin").unlink()
    with pytest.raises(Killed):
        pull(box, tmp_path / "copy")
    (part,) = (path for path in (tmp_path / "copy" / PULLING).iterdir() if path.stat().st_size > MIB)
    with part.open("r+b") as file:
        file.write(b"other")
    pull(again, tmp_path / "copy")
    assert here_of(tmp_path / "copy") == list_tree(run_dir)


def test_a_file_that_grew_is_gone_on_with(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    log = run_dir / "artifacts" / "big.log"
    log.write_bytes(os.urandom(3 * MIB))
    pull(box, tmp_path / "copy")
    with log.open("ab") as file:
        file.write(b"more\n")
    taken = pull(box, tmp_path / "copy")
    assert (taken.received, taken.sent) == (1, 5)
    assert here_of(tmp_path / "copy") == list_tree(run_dir)


def test_what_the_run_has_no_more_is_kept_and_named(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "artifacts" / "old.bin").write_bytes(b"old")
    said: list[str] = []
    pull(box, tmp_path / "copy", say=said.append)
    assert said == []
    (run_dir / "artifacts" / "old.bin").unlink()
    pull(box, tmp_path / "copy", say=said.append)
    assert said == ["not in the run any more, and kept here, unproven: artifacts/old.bin"]
    assert (tmp_path / "copy" / "artifacts" / "old.bin").read_bytes() == b"old"


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 500, 5_000, 20_000, -200, -1])
def test_what_arrives_damaged_is_asked_for_again(box: PullBox, run_dir: Path, tmp_path: Path, at: int) -> None:
    total = sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file())
    wanted = at if at >= 0 else total + at

    def spoil(data: bytes, begun: int) -> bytes:
        if box.streams == 1 and begun <= wanted < begun + len(data):
            index = wanted - begun
            return data[:index] + bytes([data[index] ^ 0x20]) + data[index + 1 :]
        return data

    box.spoil = spoil
    taken = pull(box, tmp_path / "copy")
    assert here_of(tmp_path / "copy") == list_tree(run_dir)
    assert taken.again == 1


def test_a_link_that_damages_everything_is_given_up(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    assert run_dir.is_dir()
    box.spoil = lambda data, _at: data[:100] + b"#" + data[101:]
    with pytest.raises(StorageError, match="not what was sent"):
        pull(box, tmp_path / "copy")
    assert box.streams == 2


class Silent(PullBox):
    """Its first streams say something (or not even that) and then nothing, with the link up."""

    def __init__(self, silent: int, word: bytes = b"wait\n") -> None:
        super().__init__()
        self.left, self.word = silent, word

    def follow(self, argv: Sequence[str], **options: Any) -> int:
        if not self.left:
            return super().follow(argv, **options)
        self.left -= 1
        if self.word:
            options["out"](self.word)
        select.select([options["wake_fd"]], [], [], LIMIT_S)
        assert options["woken"]()
        return -1


@pytest.mark.requirement("XPORT-05")
def test_XPORT_05_a_silent_stream_is_ended_and_gone_on_with(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    taken = pull(Silent(1), tmp_path / "copy", stall_s=0.1, say=said.append)
    assert "silent for 0.1 s" in said[0]
    assert taken.again == 1
    assert here_of(tmp_path / "copy") == list_tree(run_dir)
    said.clear()
    monkeypatch.setattr("holdfast.transfer.pull.pull.FIRST_S", 0.2)
    assert pull(Silent(1, b""), tmp_path / "copy", stall_s=60.0, say=said.append).again == 1
    assert "silent for 0.2 s" in said[0], "a box that hangs before its first word"
    box = Silent(10)
    with pytest.raises(CutOff, match="silent") as caught:
        pull(box, tmp_path / "copy", stall_s=0.1)
    assert "the same command goes on" in caught.value.hint
    assert box.left == 8  # as many tries as there are pauses, and the first


@pytest.mark.slow
def test_a_file_that_is_written_while_it_is_pulled_is_pulled_again(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    file = run_dir / "artifacts" / "0.bin"
    (run_dir / "artifacts" / "last.bin").write_bytes(os.urandom(3 * MIB))

    def spoil(data: bytes, at: int) -> bytes:
        if at >= MIB and box.streams <= times[0]:
            seen = file.stat()
            with open(file, "r+b") as opened:  # in one step: half a file would be left out as one that is written now
                opened.write(os.urandom(1000))
            os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
            if times[0] > 1:  # so that the next stream is as long
                (run_dir / "artifacts" / f"more-{box.streams}.bin").write_bytes(os.urandom(3 * MIB))
        return data

    box.spoil = spoil
    times = [1]
    said: list[str] = []
    pull(box, tmp_path / "copy", say=said.append)
    assert said == ["1 file was written while it was pulled: once more"]
    assert here_of(tmp_path / "copy") == list_tree(run_dir)
    times = [100]
    (run_dir / "artifacts" / "more.bin").write_bytes(os.urandom(3 * MIB))
    with pytest.raises(StorageError, match=r"is written still: artifacts/0\.bin") as caught:
        pull(box, tmp_path / "copy")
    assert "see what writes there" in caught.value.hint


def test_a_live_run_gives_a_copy_of_a_moment(
    box: PullBox, isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    run_dir = Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, running()))
    log = run_dir / "artifacts" / "train.log"
    log.write_bytes(b"a\n")
    (run_dir / "artifacts" / "zz.bin").write_bytes(os.urandom(3 * MIB))

    def spoil(data: bytes, at: int) -> bytes:
        if at >= MIB and log.stat().st_size == 2:
            with log.open("ab") as file:  # once, in one step: half a file would be left out as one that is written now
                file.write(b"more\n")
        return data

    box.spoil = spoil
    taken = pull(box, tmp_path / "copy")
    assert (taken.about.live, taken.growing) == (True, ("artifacts/train.log",))
    (entry,) = (entry for entry in taken.here if entry.path == "artifacts/train.log")
    assert entry.size == (tmp_path / "copy/artifacts/train.log").stat().st_size == 2


def test_options_leave_files_out_and_records_come_always(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    assert (run_dir / "artifacts" / "1.bin").is_file()
    taken = pull(box, tmp_path / "copy", only=("1*.bin",), without=("artifacts/12.bin",))
    names = {path for path in here_of(tmp_path / "copy") if path.startswith("artifacts/")}
    assert names == {f"artifacts/{n}.bin" for n in (1, 10, 11, 13, 14, 15, 16, 17, 18, 19)}
    assert (tmp_path / "copy" / "run.json").is_file()
    assert taken.about.not_wanted["--without artifacts/12.bin"] == (1, 1000)
    with pytest.raises(UsageError, match="leaves no file"):
        pull(box, tmp_path / "none", only=("*.nothing",))


@pytest.mark.slow
def test_a_run_may_be_deeper_than_the_stack_of_python(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    deep = "artifacts/" + "d/" * 1200
    subprocess.run(["mkdir", "-p", run_dir / deep], check=True)
    (run_dir / deep / "a.txt").write_text("a")
    pull(box, tmp_path / "copy")
    came = (tmp_path / "copy" / deep / "a.txt").read_text()
    again = pull(box, tmp_path / "copy")
    subprocess.run(["rm", "-r", tmp_path / "copy", run_dir / "artifacts"], check=True)  # pytest cannot
    assert (came, again.received) == ("a", 0)


@pytest.mark.requirement("VRFY-08")
@pytest.mark.gotcha("U33")
def test_targets_that_cannot_be_are_refused_with_everything_kept(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Copy(str(other), "gpu1", OTHER, os.environ)
    with Copy(str(other), "gpu1", OTHER, os.environ).held():
        with pytest.raises(UsageError, match=f"holds a copy of gpu1:{OTHER}, another run") as caught:
            pull(box, other)
        assert f"holdfast pull gpu1:{RUN} DIR" in caught.value.hint
        with pytest.raises(ResourceBusy, match="another pull"):
            pull(box, other, run=OTHER)
    with pytest.raises(UsageError, match="holds a run"):
        pull(box, run_dir)
    (tmp_path / "full of it").mkdir()
    (tmp_path / "full of it" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="holds 1 entry of something else"):
        pull(box, tmp_path / "full of it")
    with pytest.raises(UsageError, match="is a file"):
        pull(box, tmp_path / "full of it" / "thesis.tex")
    with mount_small_disk(tmp_path / "small", MIB // 4) as small:
        (run_dir / "artifacts" / "weights.bin").write_bytes(os.urandom(MIB))
        with pytest.raises(StorageError, match="are missing") as lack:
            pull(box, small / "copy")
        assert "make room there" in lack.value.hint
    (run_dir / "artifacts" / "weights.bin").unlink()
    for number in range(80):
        (run_dir / "artifacts" / f"small-{number}").write_bytes(b"x")
    with (
        mount_small_disk(tmp_path / "few", 16 * MIB) as few,
        pytest.raises(StorageError, match="inodes free, for"),
    ):
        pull(box, few / "copy")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / PULLING).symlink_to(tmp_path)
    with pytest.raises((NotPermitted, UsageError)):
        pull(box, foreign)


def test_a_disk_that_fills_meanwhile_keeps_what_arrived(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "small", MIB) as small:
        (run_dir / "artifacts" / "weights.bin").write_bytes(os.urandom(MIB // 2))

        def spoil(data: bytes, at: int) -> bytes:
            if at >= MIB // 8 and not (small / "ballast").exists():
                with suppress(OSError), (small / "ballast").open("wb", buffering=0) as ballast:
                    while ballast.write(bytes(4096)):
                        pass
            return data

        box.spoil = spoil
        with pytest.raises(StorageError, match="No space left"):
            pull(box, small / "copy")
        (small / "ballast").unlink()
        box.spoil = lambda data, _at: data
        pull(box, small / "copy")
        assert here_of(small / "copy") == list_tree(run_dir)


def test_no_path_of_a_stranger_leads_out(run_dir: Path, tmp_path: Path) -> None:
    """The other side is believed in nothing: what it sends stays below the copy."""
    (run_dir / "artifacts" / "sub").mkdir()
    (run_dir / "artifacts" / "sub" / "file").write_bytes(b"x")
    target = tmp_path / "copy"
    target.mkdir()
    copy = Copy(str(target), "gpu1", RUN, os.environ)
    with copy.held():
        (tmp_path / "outside").mkdir()
        (target / "artifacts").symlink_to(tmp_path / "outside")
        with pytest.raises(StorageError, match="is no directory here"):
            take_run(PullBox().as_box(), Wish(RUN), copy, pauses_s=())
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.requirement("VRFY-02")
def test_nothing_is_written_through_a_link_in_the_place_of_a_directory(
    tmp_path: Path, isolated_environment: dict[str, str]
) -> None:
    """Seen: a directory, then a link that leads out by another one, then a file below it: any file of the account."""
    (tmp_path / "home").mkdir()
    copy = Copy(str(tmp_path / "home" / "copy"), "gpu1", RUN, isolated_environment)
    with copy.held():
        copy.place_directory("a/b")
        copy.place_link("a/b/up", "../..", "")
        copy.place_directory("l")
        copy.place_link("l", "a/b/up/..", "")  # refused once all is there (`reread`)
        assert os.path.realpath(tmp_path / "home" / "copy" / "l") == str(tmp_path / "home")
        descriptor, part, _ = copy.open_part("l/authorized_keys", 0, 1, 0o600)
        try:
            with pytest.raises(StorageError, match="is no directory here"):
                copy.place_file("l/authorized_keys", descriptor, part, "", 0)
        finally:
            os.close(descriptor)
    assert not list((tmp_path / "home").rglob("authorized_keys"))


@pytest.mark.parametrize("line", [b"same 5\n", b"gone\n", b"file\n"])
def test_a_head_without_its_numbers_is_damage(
    tmp_path: Path, isolated_environment: dict[str, str], line: bytes
) -> None:
    copy = Copy(str(tmp_path / "copy"), "gpu1", RUN, isolated_environment)
    with copy.held(), pytest.raises(Damaged):
        Arrival(copy, {}, lambda _done, _total: None).feed(line)


def test_a_place_that_sends_far_more_than_it_announced_does_not_fill_the_disk(
    tmp_path: Path, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrive, "MOST_GROWN", 1 << 20)
    copy = Copy(str(tmp_path / "copy"), "gpu1", RUN, isolated_environment)
    begin = stream.line_about(stream.BEGIN, {"run_id": RUN, "files": 1, "rest": 1000, "bytes": 1000})
    head = stream.head_path(stream.FILE, "artifacts/huge", 0, 1 << 40, 0o600, 0)
    with copy.held(), closing(Arrival(copy, {}, lambda _done, _total: None)) as arrival:
        arrival.feed(begin + head)
        for _ in range(17):
            arrival.feed(bytes(1 << 16))
        with pytest.raises(StorageError, match=r"announced 1000 B, and has sent 1.06 MiB"):
            arrival.feed(bytes(1 << 16))


@pytest.mark.requirement("B-26")
def test_B_26_a_good_copy_is_replaced_in_one_step_or_not_at_all(box: PullBox, run_dir: Path, tmp_path: Path) -> None:
    weights, old = run_dir / "artifacts" / "weights.bin", os.urandom(2 * MIB)
    weights.write_bytes(old)
    pull(box, tmp_path / "copy")
    weights.write_bytes(os.urandom(2 * MIB))
    box.spoil = die_at(MIB)
    with pytest.raises(Killed):
        pull(box, tmp_path / "copy")
    assert (tmp_path / "copy" / "artifacts" / "weights.bin").read_bytes() == old
    box.spoil = lambda data, _at: data
    pull(box, tmp_path / "copy")
    assert here_of(tmp_path / "copy") == list_tree(run_dir)


@pytest.mark.requirement("VRFY-05")
def test_VRFY_05_a_late_writer_is_seen(box: PullBox, run_dir: Path) -> None:
    old = (run_dir / "run.json").stat().st_mtime - 100
    for path in run_dir.rglob("*"):
        os.utime(path, (old, old))
    about, _ = ask_roster(box.as_box(), RUN, "sum")
    assert about.files == len(list_tree(run_dir))
    assert (about.run_id, about.live, about.attempt) == (RUN, False, 1)
    (run_dir / "late").write_bytes(b"x")
    late, _ = ask_roster(box.as_box(), RUN, "sum")
    assert late.sha256 != about.sha256


@pytest.mark.slow
@pytest.mark.requirement("VRFY-11")
def test_VRFY_11_what_nobody_touched_is_not_read_again(box: PullBox, run_dir: Path) -> None:
    assert run_dir.is_dir()

    def knows_all() -> bool:
        ask_roster(box.as_box(), RUN, "sum")
        quick = unpack_manifest(ask_roster(box.as_box(), RUN, "quick")[1])  # which reads no file
        return UNKNOWN.encode() not in quick and RUN_FILE in quick

    wait_until(knows_all, what="the clock to go on behind the last write")
    (run_dir / "artifacts" / "1.bin").write_bytes(bytes(1000))
    assert unpack_manifest(ask_roster(box.as_box(), RUN, "quick")[1]).count(UNKNOWN.encode()) == 1


def test_one_pull_at_a_time(run_dir: Path, tmp_path: Path) -> None:
    assert run_dir.is_dir()
    target = tmp_path / "copy"
    with Copy(str(target), "gpu1", RUN, os.environ).held():
        descriptor = os.open(target / PULLING, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    assert json.loads((target / "copy.json").read_text())["live"] is True
