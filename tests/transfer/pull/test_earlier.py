"""A copy that was proven before: what went bad in it is mended and named, and what is good in it is not replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.code.manifest import FILE, ROSTER, RUN_FORMAT, build_manifest
from holdfast.core.digest import sha256_hex
from holdfast.core.pull.stream import Wish
from holdfast.core.run.recorded_results import Change
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.receipt import RECEIPT, Receipt
from holdfast.model.run import Outcome, State
from holdfast.transfer.pull.copy import Copy
from holdfast.transfer.pull.earlier import Earlier, read_earlier
from holdfast.transfer.pull.pull import PullResult, take_run
from tests.rundirs import ended, living_process, make_run, running
from tests.transfer.pull.streams import PullBox

pytestmark = pytest.mark.process
RUN = "20261120-100000-digits-0a1b"
GOOD, BAD = b"good" * 100, b"bad!" * 100
TOUCHED = Change.TOUCHED
SPOILED, BEFORE, AFTER = 1.8e9, "2027-01-15T07:59:00.000Z", "2027-01-15T08:01:00.000Z"


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> Path:
    """A run that succeeded, whose end recorded a result."""
    top = Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))
    (top / "artifacts" / "big.bin").write_bytes(GOOD)
    record_end(top)
    return top


def record_end(top: Path, attempt: int = 1, outcome: str = "succeeded") -> None:
    """The exit record, with what is among the results now."""
    path = top / "attempts" / str(attempt) / "exit.json"
    facts = [(file.name, file.stat()) for file in sorted((top / "artifacts").iterdir())]
    told = [{"name": name, "bytes": one.st_size, "modified": round(one.st_mtime, 3)} for name, one in facts]
    path.write_text(json.dumps({**json.loads(path.read_text()), "outcome": outcome, "artifacts": told}))


def pull(target: Path, *, accept: tuple[str, ...] = (), say: Callable[[str], None] = lambda _words: None) -> PullResult:
    """A pull with the receipt and the roster that the desk writes."""
    copy = Copy(str(target), "gpu1", RUN, os.environ)
    with copy.held():
        copy.earlier = read_earlier(copy.directory, accept)
        taken = take_run(PullBox().as_box(), Wish(RUN), copy, say=say, pauses_s=(0.0,))
        beside, about = build_manifest(taken.here, RUN_FORMAT), taken.about
        numbers = (about.attempt, about.sha256, about.files, about.bytes, about.made_at, about.made_at)
        receipt = Receipt("gpu1", RUN, *numbers, str(target), about.live, copied=sha256_hex(beside.data))
        files.commit(f"{target}/{ROSTER}", beside.data)
        files.commit(f"{target}/{RECEIPT}", wire.to_bytes(receipt))
    return taken


def spoil(file: Path) -> None:
    """The file is damaged, after its end."""
    file.write_bytes(BAD)
    os.utime(file, (SPOILED, SPOILED))


@pytest.mark.requirement("VRFY-04", "XPORT-02")
def test_a_good_result_is_kept_and_named_until_the_other_is_wanted(run_dir: Path, tmp_path: Path) -> None:
    home, name = tmp_path / "home", "artifacts/big.bin"
    assert pull(home).changed == {}
    spoil(run_dir / name)
    for _ in range(2):  # what is told of it is not lost with the receipt of the first
        again = pull(home)
        assert (again.changed, again.kept, again.received) == ({name: TOUCHED}, (name,), 0)
        assert (home / name).read_bytes() == GOOD
        assert {one.path: one.sha256 for one in again.here}[name] == sha256_hex(GOOD)
    first = pull(tmp_path / "other")
    assert (first.changed, first.kept) == ({name: TOUCHED}, ())
    wanted = pull(home, accept=("*.bin",))
    assert (wanted.changed, wanted.kept, wanted.received) == ({name: TOUCHED}, (), 1)
    assert (home / name).read_bytes() == BAD


def test_other_bytes_with_the_size_and_time_of_the_end_replace_no_good_ones(run_dir: Path, tmp_path: Path) -> None:
    home, name = tmp_path / "home", "artifacts/big.bin"
    pull(home)
    seen = (run_dir / name).stat()
    (run_dir / name).write_bytes(BAD)
    os.utime(run_dir / name, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    again = pull(home)
    assert (again.changed, again.kept) == ({}, (name,))
    assert (home / name).read_bytes() == GOOD
    assert pull(tmp_path / "other").changed == {}, "nobody can tell"


def test_a_result_that_is_the_same_with_another_time_is_no_damage(run_dir: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    pull(home)
    os.utime(run_dir / "artifacts" / "big.bin", (1.8e9, 1.8e9))
    assert pull(home).changed == {}
    assert pull(tmp_path / "other").changed == {"artifacts/big.bin": TOUCHED}
    (run_dir / "artifacts" / "big.bin").write_bytes(BAD + b"more")
    assert pull(tmp_path / "third").changed == {"artifacts/big.bin": Change.WRITTEN}


@pytest.mark.parametrize("why", ["edited here", "a time of its own here", "no roster here", "another attempt"])
def test_what_is_not_surely_the_good_one_is_replaced(run_dir: Path, tmp_path: Path, why: str) -> None:
    home, name = tmp_path / "home", "artifacts/big.bin"
    pull(home)
    if why == "edited here":
        seen = (home / name).stat()
        (home / name).write_bytes(b"mine" * 100)
        os.utime(home / name, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    elif why == "a time of its own here":
        os.utime(home / name, (1.7e9, 1.7e9))
    elif why == "no roster here":
        (home / ROSTER).unlink()
    spoil(run_dir / name)
    if why == "another attempt":
        make_run(run_dir.parent, RUN, ended(), attempt=2)
        record_end(run_dir, 2)
    again = pull(home)
    assert (home / name).read_bytes() == BAD
    assert again.kept == ()
    assert again.changed == ({} if why == "another attempt" else {name: TOUCHED})


STOPPED = ended(Outcome.STOPPED, 3)


@pytest.mark.requirement("VRFY-04")
@pytest.mark.parametrize("state", [STOPPED, running()], ids=["stopped", "running"])
def test_a_later_attempt_does_not_excuse_what_was_written_before_it(
    run_dir: Path, tmp_path: Path, state: State
) -> None:
    home, name = tmp_path / "home", "artifacts/big.bin"
    pull(home)
    spoil(run_dir / name)
    assert pull(home).kept == (name,)
    make_run(run_dir.parent, RUN, STOPPED, attempt=2, created_at=AFTER)
    make_run(run_dir.parent, RUN, state, attempt=3, created_at=AFTER, supervisor=living_process(os.getpid()))
    for _ in range(2):
        again = pull(home)
        assert (again.changed, again.kept) == ({name: TOUCHED}, (name,))
        assert again.about.live is (state is not STOPPED)
        assert (home / name).read_bytes() == GOOD
    assert pull(tmp_path / "other").changed == {name: TOUCHED}


@pytest.mark.parametrize("created_at", [BEFORE, "nobody knows"])
def test_what_a_later_attempt_wrote_or_may_have_is_no_damage(run_dir: Path, tmp_path: Path, created_at: str) -> None:
    home, name = tmp_path / "home", "artifacts/big.bin"
    pull(home)
    spoil(run_dir / name)
    make_run(run_dir.parent, RUN, STOPPED, attempt=2, created_at=created_at)
    said: list[str] = []
    again = pull(home, say=said.append)
    assert (again.changed, again.kept, again.growing) == ({}, (), ())
    assert (home / name).read_bytes() == BAD
    words = "replaced here, what attempt 1 had proven, by what a later attempt wrote, which has not succeeded"
    assert said == [f"{words}: {name}"]
    pull(home, say=said.append)
    assert len(said) == 1
    (run_dir / name).unlink()
    assert pull(home).changed == {}, "the later attempt may have removed it"


@pytest.mark.requirement("VRFY-04")
def test_a_result_that_is_gone_from_the_run_is_named_and_stays_proven_here(run_dir: Path, tmp_path: Path) -> None:
    home, name = tmp_path / "home", "artifacts/big.bin"
    pull(home)
    (run_dir / name).unlink()  # an empty directory is left behind
    for accept in ((), (), ("big.bin",), ()):  # what is here is lost by no later pull
        again = pull(home, accept=accept)
        assert (again.changed, again.kept) == ({name: Change.GONE}, (name,))
        assert {one.path: one.sha256 for one in again.here}[name] == sha256_hex(GOOD)
    first = pull(tmp_path / "other")
    assert (first.changed, first.kept) == ({name: Change.GONE}, ())
    for put in (lambda path: path.symlink_to("../run.json"), Path.mkdir):
        put(run_dir / name)
        again = pull(home)
        assert (again.changed, again.kept) == ({name: Change.GONE}, (name,))
        assert (home / name).read_bytes() == GOOD
        assert {one.path: one.kind for one in again.here}[name] == FILE
        (run_dir / name).unlink() if (run_dir / name).is_symlink() else (run_dir / name).rmdir()


@pytest.mark.parametrize("why", ["copied", "scratch", "no record that can be read", "temporary"])
def test_a_result_that_may_be_gone_on_purpose_is_no_damage(run_dir: Path, tmp_path: Path, why: str) -> None:
    name, told = "artifacts/big.bin", run_dir / "attempts" / "1" / "results.json"
    if why == "copied":
        told.write_text(json.dumps({"state": "copied", "files": [{"path": name}]}))
    elif why == "scratch":
        made = json.loads((run_dir / "run.json").read_text())
        made["job"]["disk"] = {**made["job"].get("disk", {}), "scratch": ["artifacts/*.bin"]}
        (run_dir / "run.json").write_text(json.dumps(made))
    elif why == "temporary":
        name = "artifacts/.x.1.0a1b2c3d.tmp"
        (run_dir / name).write_bytes(GOOD)
        record_end(run_dir)
    else:
        told.write_text("{")
    (run_dir / name).unlink()
    assert pull(tmp_path / "home").changed == {}


def test_of_a_run_that_did_not_succeed_nothing_was_proven(run_dir: Path, tmp_path: Path) -> None:
    record_end(run_dir, outcome="failed")
    path = run_dir / "attempts" / "1" / "state.json"
    path.write_text(path.read_text().replace('"succeeded"', '"failed"'))
    spoil(run_dir / "artifacts" / "big.bin")
    assert pull(tmp_path / "home").changed == {}


def test_what_went_bad_here_comes_again_and_is_named(run_dir: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (run_dir / "artifacts" / "log.txt").write_text("1\n")
    assert pull(home).mended == ()
    (home / "artifacts" / "big.bin").write_bytes(BAD)
    (home / "run.json").unlink()
    with (run_dir / "artifacts" / "log.txt").open("a") as file:
        file.write("2\n")
    again = pull(home)
    assert (again.received, again.mended) == (3, ("artifacts/big.bin", "run.json")), "one is another one now"
    assert pull(home).mended == ()


def test_nothing_is_told_by_what_cannot_be_read(tmp_path: Path) -> None:
    assert read_earlier(str(tmp_path)) == Earlier(0, {})
    (tmp_path / RECEIPT).write_text("{")
    assert read_earlier(str(tmp_path)) == Earlier(0, {})
