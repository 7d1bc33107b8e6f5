"""A directory of checkpoints under bad luck and bad intent: what is wrong is never loaded, what is right never lost."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from holdfast.training.errors import CannotResume, NoValidCheckpoint
from holdfast.training.storage import checkpoints, layout
from holdfast.training.storage.checkpoints import CheckpointEntry, Retention
from holdfast.training.storage.layout import CommitRecord, LayoutError
from tests.budget import examples
from tests.each import each
from tests.training.faults import support

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.files


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two good checkpoints: steps 1 and 2."""
    directory = tmp_path / "c"
    for step in (1, 2):
        assert support.save(directory, step).ok
    return directory


# ------------------------------------------------------------------------------------------------------ damaged files


def corruptions(draw: random.Random) -> dict[str, Any]:
    """Ways in which a file of a checkpoint goes wrong."""

    def overwrite(path: str) -> None:
        size = os.path.getsize(path)
        at = draw.randrange(size)
        length = min(1 << 16, size - at)
        with open(path, "r+b") as file:
            file.seek(at)
            old = file.read(length)
            file.seek(at)
            file.write(bytes(length) if any(old) else b"\1" * length)

    def append(path: str) -> None:
        with open(path, "ab") as file:
            file.write(b"\0")

    def truncate(path: str) -> None:
        os.truncate(path, draw.randrange(os.path.getsize(path)))

    def replace(path: str, make: Any) -> None:
        os.unlink(path)
        make(path)

    def empty(path: str) -> None:
        os.truncate(path, 0)

    return {
        "bit": lambda path: support.flip_bit(path, draw),
        "zeroed": overwrite,
        "appended": append,
        "truncated": truncate,
        "emptied": empty,
        "deleted": os.unlink,
        "directory": lambda path: replace(path, os.mkdir),
        "pipe": lambda path: replace(path, os.mkfifo),
    }


def says_the_same(path: str, before: bytes) -> bool:
    """White space in a record is no part of what it says."""
    if not os.path.isfile(path):
        return False
    try:
        return layout.record_from_bytes(Path(path).read_bytes(), "x") == layout.record_from_bytes(before, "x")
    except LayoutError:
        return False


@pytest.mark.requirement("CKPT-04")
@pytest.mark.parametrize("kind", sorted(corruptions(random.Random(0))))
@pytest.mark.parametrize("name", ["checkpoint.json", "state.json", "model.safetensors", "optimizer.safetensors"])
def test_a_damaged_newest_is_named_and_the_one_before_it_is_used(two: Path, kind: str, name: str) -> None:
    for seed in range(10):
        path = str(two / "step-2" / name)
        before = Path(path).read_bytes()
        corruptions(random.Random(seed))[kind](path)
        if name == "checkpoint.json" and says_the_same(path, before):
            assert support.newest(two) == 2
        else:
            verdict = checkpoints.verify(str(two / "step-2"))
            assert not verdict.ok
            assert name in verdict.problems[0]
            search = checkpoints.find_newest(str(two))
            assert search.found is not None
            assert search.found.record.step == 1
            assert support.whose(search.found) == {1}
            assert [item.step for item in search.passed_over] == [2]
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.path.lexists(path):
            os.unlink(path)
        Path(path).write_bytes(before)


@pytest.mark.requirement("CKPT-04")
def test_files_swapped_between_two_checkpoints_are_seen(two: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors", "checkpoint.json"):
        a, b, aside = two / "step-1" / name, two / "step-2" / name, two / "aside"
        a.rename(aside), b.rename(a), aside.rename(b)
        with pytest.raises(NoValidCheckpoint):
            checkpoints.find_newest(str(two))
        a.rename(aside), b.rename(a), aside.rename(b)
        assert support.newest(two) == 2


@pytest.mark.requirement("CKPT-04")
def test_checkpoints_with_swapped_names_are_seen(two: Path) -> None:
    (two / "step-2").rename(two / "step-3")
    search = checkpoints.find_newest(str(two))
    assert search.found is not None
    assert search.found.record.step == 1
    assert "directories were swapped" in search.passed_over[0].problems[0]


def test_a_wrong_one_is_set_aside_and_nothing_of_it_is_deleted(two: Path) -> None:
    content = {path: Path(path).read_bytes() for path in support.data_files(two / "step-2")}
    del content[str(two / "step-2" / "state.json")]
    (two / "step-2" / "state.json").unlink()
    checkpoints.find_newest(str(two), aside=True)
    assert sorted(os.listdir(two)) == ["step-1", "step-2.bad-1"]
    for path, data in content.items():
        assert Path(path.replace("step-2", "step-2.bad-1")).read_bytes() == data


@pytest.mark.requirement("CKPT-04")
def test_while_none_is_valid_all_keep_their_names_so_that_no_later_start_begins_from_scratch(two: Path) -> None:
    for step in (1, 2):
        (two / f"step-{step}" / "state.json").write_bytes(b"{}")
    for _ in range(2):
        with pytest.raises(NoValidCheckpoint, match=r"none of the 2 checkpoints") as caught:
            checkpoints.find_newest(str(two), aside=True)
        assert "step-1: " in str(caught.value)
        assert "step-2: " in str(caught.value)
        assert support.steps(two) == [1, 2]


def test_what_cannot_be_read_keeps_its_name(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def broken(descriptor: int, buffers: Any, offset: int) -> int:
        if "step-2" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(5, "Input/output error")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", broken)
    search = checkpoints.find_newest(str(two), aside=True)
    assert search.found is not None
    assert search.found.record.step == 1
    assert search.passed_over[0].unreadable
    assert support.steps(two) == [1, 2]


@pytest.mark.requirement("CKPT-13")
def test_a_missing_file_of_any_rank_makes_the_whole_checkpoint_invalid(two: Path) -> None:
    path = str(two / "step-2")
    os.mkdir(f"{path}/rank-1")
    shutil.copy(f"{path}/state.json", f"{path}/rank-1/state.json")

    def add(body: dict[str, Any]) -> None:
        entry = next(item for item in body["files"] if item["path"] == "state.json")
        body["world"], body["files"] = 2, [*body["files"], {**entry, "path": "rank-1/state.json"}]

    support.rewrite_record(path, add)
    assert support.newest(two) == 2
    os.unlink(f"{path}/rank-1/state.json")
    assert support.newest(two) == 1


# --------------------------------------------------------------------------------------------------- hostile content


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.requirement("CKPT-11", "B-74")
@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("signed", [False, True])
def test_a_pickle_bomb_in_any_file_never_runs(
    two: Path, name: str, signed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    data = pickle.dumps(Bomb())
    if signed and name != "checkpoint.json":
        support.rewrite_file(str(two / "step-2"), name, data)
    else:
        (two / "step-2" / name).write_bytes(data)
    (two / "bomb.pkl").write_bytes(data)
    (two / "step-2" / "extra.pt").write_bytes(data)
    assert support.newest(two) == 1
    assert not (tmp_path / "exploded").exists()
    pickle.loads(data)
    assert (tmp_path / "exploded").exists(), "the bomb is none: nothing was tried"


@pytest.mark.parametrize(
    "path",
    [
        *("../../secret", "../secret", "/etc/passwd", "a/b/c", "./state.json", "rank-1/../x", "", "a//b"),
        *("..", ".", "a/.", ".hidden", "a\0b"),
    ],
)
def test_a_record_cannot_send_the_reader_out_of_its_directory(two: Path, path: str) -> None:
    (two / "secret").write_bytes(b"x")
    (two.parent / "secret").write_bytes(b"x")

    def point(body: dict[str, Any]) -> None:
        body["files"].append({"path": path, "bytes": 1, "chunks": [2363233923], "digest": "crc32", "chunk": 16 << 20})

    support.rewrite_record(str(two / "step-2"), point)
    verdict = checkpoints.verify(str(two / "step-2"))
    assert any("makes no sense" in problem for problem in verdict.problems)


def test_files_that_are_links_are_not_followed(two: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "checkpoint.json"):
        path = two / "step-2" / name
        kept = tmp_path / name
        path.rename(kept)
        path.symlink_to(kept)
        assert not checkpoints.verify(str(two / "step-2")).ok
        assert support.newest(two) == 1
        path.unlink()
        kept.rename(path)


def test_links_planted_as_checkpoints_are_neither_used_nor_followed_by_pruning(two: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert support.save(elsewhere, 7).ok
    (two / "step-9").symlink_to(elsewhere / "step-7")
    (two / "step-8").symlink_to("/nowhere")
    (two / ".step-3.abcd").symlink_to(elsewhere)
    assert support.newest(two) == 2
    checkpoints.remove_leftovers(str(two))
    checkpoints.prune(str(two), Retention(last=1))
    assert (elsewhere / "step-7" / "checkpoint.json").exists()
    assert support.newest(two) == 2


@pytest.mark.parametrize("make", ["file", "pipe", "empty directory", "dangling link"])
def test_something_foreign_with_the_name_of_a_checkpoint_is_passed_over(two: Path, make: str) -> None:
    path = two / "step-5"
    if make == "file":
        path.write_bytes(b"notes")
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "dangling link":
        path.symlink_to(two / "nowhere")
    else:
        path.mkdir()
    assert support.newest(two) == 2
    result = support.save(two, 5)
    # An empty directory is a checkpoint that was never completed; what is no directory is the user's.
    assert result.ok == (make == "empty directory"), result
    if not result.ok:
        assert "is no checkpoint; move it" in result.message
    assert support.newest(two) == (5 if result.ok else 2)
    assert support.leftovers(two) == []


def test_foreign_names_are_left_alone(two: Path) -> None:
    foreign = [".git", "notes.txt", "step-1.tmp", "step-01", ".step-x", "step-2.bad-1", "checkpoint-500"]
    for name in foreign:
        (two / name).mkdir()
    checkpoints.remove_leftovers(str(two))
    checkpoints.prune(str(two), Retention(last=1))
    assert support.save(two, 3).ok
    assert set(foreign) < set(os.listdir(two))
    assert support.newest(two) == 3


HEADERS = [
    (2**63 - 1).to_bytes(8, "little") + b"{}",
    (101 << 20).to_bytes(8, "little") + bytes(64),
    b"\x02\0\0\0\0\0\0\0{}",
    b"",
]
STATES = [
    b"[]", b"null", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"model": ' * 3000,
    b'{"model": {"$": "array", "key": "none", "library": "numpy"}}',
    b'{"model": {"$": "array"}}',
    b'{"model": {"$": "state_dict", "items": [], "metadata": 0}}',
    b'{"model": {"$": "generator", "library": "python", "state": [3, [1], null]}}',
    b'{"model": {"$": "dict", "items": [[[], 1]]}}',
    b'{"model": {"$": "range", "value": [1, 2, 0]}}',
    b'{"model": ' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HEADERS) + len(STATES)))
def test_signed_nonsense_in_a_file_is_a_damaged_checkpoint(two: Path, number: int) -> None:
    name, data = [*(("model.safetensors", item) for item in HEADERS), *(("state.json", item) for item in STATES)][
        number
    ]
    support.rewrite_file(str(two / "step-2"), name, data)
    search = checkpoints.find_newest(str(two))
    assert search.found is not None
    assert search.found.record.step == 1


def test_a_record_that_announces_more_than_memory_holds_takes_none(two: Path) -> None:
    def boast(body: dict[str, Any]) -> None:
        body["files"][0].update(bytes=1 << 60, chunk=1 << 30, chunks=[0] * (1 << 10))

    support.rewrite_record(str(two / "step-2"), boast)
    assert not checkpoints.verify(str(two / "step-2")).ok
    assert support.newest(two) == 1


@pytest.mark.parametrize("call", ["newest", "latest", "verify", "load"])
def test_a_newer_format_is_refused_with_what_to_do(two: Path, call: str) -> None:
    from holdfast.training import api

    support.rewrite_record(str(two / "step-2"), lambda body: body.update(version=2))
    path = str(two / "step-2")
    calls: dict[str, Callable[[], object]] = {
        "newest": lambda: checkpoints.find_newest(str(two), aside=True),
        "latest": lambda: api.latest(two),
        "verify": lambda: checkpoints.verify(path),
        "load": lambda: api.load(path),
    }
    with pytest.raises(CannotResume, match=r"format version 2.*use the holdfast that wrote it, or a newer one"):
        calls[call]()
    assert support.steps(two) == [1, 2]
    result = support.save(two, 2)
    assert not result.ok
    assert "format version 2" in result.message


def test_a_directory_that_does_not_exist_has_no_checkpoint(tmp_path: Path) -> None:
    assert support.newest(tmp_path / "none") is None


# ---------------------------------------------------------------------------------------------------------- retention


def entry(step: int, loss: float | None = None, *, healthy: bool = True, sound: bool = True) -> CheckpointEntry:
    record = CommitRecord(step, (), 0.0, metrics={} if loss is None else {"loss": loss}, healthy=healthy)
    return CheckpointEntry(f"/c/step-{step}", step, record if sound else None)


@pytest.mark.requirement("CKPT-07")
@each(
    ("entries", "keep", "gone"),
    [
        ([entry(1), entry(2), entry(3)], Retention(2), [1]),
        ([entry(1), entry(2), entry(3)], Retention(1), [1, 2]),
        ([entry(1)], Retention(1), []),
        ([entry(1, 0.1), entry(2, 0.5), entry(3, 0.4)], Retention(1, 1), [2]),
        ([entry(1, 0.1), entry(2, 0.5), entry(3, 0.4)], Retention(1, 1, "loss", "max"), [1]),
        ([entry(1, 0.1), entry(2, 0.1), entry(3)], Retention(1, 1), [2]),
        ([entry(1), entry(2, healthy=False), entry(3, healthy=False)], Retention(1), [2]),
        ([entry(1), entry(2), entry(3, healthy=False)], Retention(2), [1]),
        ([entry(1, sound=False), entry(2), entry(3, sound=False)], Retention(1), []),
        ([entry(1), entry(2, sound=False), entry(3)], Retention(1), [1]),
    ],
)
def test_what_may_go(entries: list[CheckpointEntry], keep: Retention, gone: list[int]) -> None:
    assert [item.step for item in checkpoints.choose_victims(entries, keep)] == gone


@pytest.mark.requirement("CKPT-07")
def test_one_that_is_newer_than_what_was_proven_replaces_nothing(two: Path) -> None:
    (two / "step-2" / "model.safetensors").write_bytes(b"")
    assert checkpoints.prune(str(two), Retention(last=1)) == []
    assert support.steps(two) == [1, 2]
    # Training went on from step 1, past the one that could not be read.
    assert support.save(two, 3, keep=Retention(last=1)).ok
    assert support.newest(two) == 3


@pytest.mark.requirement("CKPT-07")
def test_a_save_below_an_unreadable_newer_one_keeps_itself(two: Path) -> None:
    (two / "step-2").rename(two / "step-9")
    support.rewrite_record(str(two / "step-9"), lambda body: body.update(step=9))
    (two / "step-9" / "model.safetensors").write_bytes(b"")
    assert support.save(two, 3, keep=Retention(last=1)).ok
    assert support.newest(two) == 3


class Campaign(RuleBasedStateMachine):
    """Saves, prunings, corruptions, restarts in any order: as long as one was valid, one is, and it is the newest."""

    damaged = Bundle("damaged")

    @initialize(last=st.integers(1, 3), best=st.integers(0, 2))
    def begin(self, last: int, best: int) -> None:
        self.directory = f"/dev/shm/holdfast-test-{os.getpid()}-{time.monotonic_ns()}"
        self.keep = Retention(last, best)
        self.step = 0
        self.good: set[int] = set()

    @rule(more=st.integers(1, 3), loss=st.none() | st.floats(0, 1), healthy=st.booleans())
    def save(self, more: int, loss: float | None, healthy: bool) -> None:
        self.step += more
        metrics = {} if loss is None else {"loss": loss}
        result = support.save(self.directory, self.step, keep=self.keep, metrics=metrics, healthy=healthy)
        assert result.ok, result
        self.good = {*self.good, self.step} & set(support.steps(self.directory))
        assert self.step in self.good

    @rule(last=st.integers(1, 2))
    def prune(self, last: int) -> None:
        if self.good:
            checkpoints.prune(self.directory, Retention(last))
            left = set(support.steps(self.directory))
            assert max(self.good) in left
            self.good &= left

    @rule(pick=st.randoms(use_true_random=False))
    def corrupt(self, pick: random.Random) -> None:
        # Never the last valid one: from then on there is nothing to keep.
        if len(self.good) > 1:
            step = pick.choice(sorted(self.good))
            path = pick.choice(support.data_files(f"{self.directory}/step-{step}"))
            if path.endswith("checkpoint.json"):
                os.truncate(path, os.path.getsize(path) // 2)
            else:
                corruptions(pick)[pick.choice(("bit", "truncated", "deleted", "appended"))](path)
            self.good.discard(step)

    @rule()
    def restart(self) -> None:
        if self.good:
            found = checkpoints.find_newest(self.directory, aside=True).found
            assert found is not None
            self.step = found.record.step
            assert self.step == max(self.good)

    @rule(step=st.integers(0, 30))
    def killed_in_a_save(self, step: int) -> None:
        os.makedirs(f"{self.directory}/{layout.building_name(step, 'abcd')}", exist_ok=True)

    @invariant()
    def the_newest_valid_one_is_found_and_whole(self) -> None:
        if getattr(self, "good", None):
            found = checkpoints.find_newest(self.directory).found
            assert found is not None
            assert found.record.step == max(self.good)
            assert support.whose(found) == {found.record.step}

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "directory", "/nonexistent"), ignore_errors=True)


@pytest.mark.requirement("CKPT-07")
@pytest.mark.timeout(120)
def test_after_any_sequence_of_saves_prunings_and_corruptions_a_loadable_one_remains() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Campaign, settings=settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
    )


def test_the_state_document_is_plain_json_for_anybody(two: Path) -> None:
    body = json.loads((two / "step-2" / "state.json").read_text())
    assert body["model"]["step"] == 2
    assert body["model"]["w"] == {"$": "array", "key": "w", "library": "python"}
