"""The one copy of a save: whole when `fill` returns, reused, and made only where memory has room."""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.storage import layout, tree
from holdfast.training.storage.write import snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.contract


@pytest.fixture
def taken() -> Iterator[snapshot.StateSnapshot]:
    made = snapshot.StateSnapshot()
    yield made
    made.close()


def plan(state: dict[str, Any], text: bytes = b"{}") -> list[snapshot.PlannedFile]:
    return snapshot.plan_files("", {name: tree.flatten(value, name)[1] for name, value in state.items()}, text)


def bytes_of(taken: snapshot.StateSnapshot, file: snapshot.PlannedFile) -> bytes:
    return os.pread(taken.fd, file.nbytes, file.offset)


def test_files_begin_on_pages_and_hold_what_the_pieces_say(taken: snapshot.StateSnapshot) -> None:
    planned = plan(
        {"a": {"x": array("d", [1, 2])}, "none": {"n": 3}, "b": [array("b", [1] * 5000), array("f")]}, b"{text}"
    )
    taken.fill(planned)
    assert [file.path for file in planned] == ["a.safetensors", "b.safetensors", "state.json"]
    for file in planned:
        assert file.offset % layout.PAGE == 0
        assert bytes_of(taken, file) == b"".join(file.pieces())


@pytest.mark.requirement("CKPT-17")
def test_what_is_changed_after_the_copy_does_not_reach_it(taken: snapshot.StateSnapshot) -> None:
    numbers = array("d", [1.0] * 1000)
    planned = plan({"a": {"x": numbers}})
    taken.fill(planned)
    before = bytes_of(taken, planned[0])
    numbers[:] = array("d", [2.0] * 1000)
    assert bytes_of(taken, planned[0]) == before


def test_the_buffer_grows_for_a_larger_state_and_is_reused_for_a_smaller_one(taken: snapshot.StateSnapshot) -> None:
    for count in (10, 100_000, 50, 200_000):
        planned = plan({"a": {"x": array("d", [float(count)] * count)}})
        taken.fill(planned)
        assert bytes_of(taken, planned[0]) == b"".join(planned[0].pieces())
    size = taken.size
    taken.fill(plan({"a": {"x": array("d", [1.0])}}))
    assert taken.size == size


def test_pages_touched_ahead_are_there_when_the_copy_begins(taken: snapshot.StateSnapshot) -> None:
    planned = plan({"a": {"x": array("d", [1.0] * 300_000)}})
    taken.reserve(snapshot.bytes_needed(planned), ahead=True)
    taken.fill(planned)
    assert bytes_of(taken, planned[0]) == b"".join(planned[0].pieces())
    # Source: stat(2), blocks of 512 bytes that are in use.
    assert os.fstat(taken.fd).st_blocks * 512 >= planned[0].nbytes


MEMINFO = "MemTotal: 9 kB\nMemAvailable:    1000 kB\n"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"/proc/meminfo": MEMINFO}, 1_024_000),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/b/memory.max": "max\n",
                "/sys/fs/cgroup/a/b/memory.current": "5\n",
                "/sys/fs/cgroup/a/memory.max": "9000\n",
                "/sys/fs/cgroup/a/memory.current": "8000\n",
                "/sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 300\n",
            },
            1300,
        ),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "4:cpu,memory:/j\n3:pids:/\n",
                "/sys/fs/cgroup/memory/j/memory.limit_in_bytes": "500",
                "/sys/fs/cgroup/memory/j/memory.usage_in_bytes": "700",
            },
            0,
        ),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "10", "/sys/fs/cgroup/memory.current": "4"}, 6),
    ],
)
def test_the_memory_that_is_free_is_the_least_of_the_box_and_its_groups(
    files: dict[str, str], free: int | None
) -> None:
    assert snapshot.memory_free(files.get) == free


def test_a_save_without_memory_for_a_copy_is_written_in_place(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.training.storage import checkpoints
    from holdfast.training.storage.write.save import Saver
    from tests.training.faults import support

    monkeypatch.setattr(snapshot, "memory_free", lambda: 100)
    saver = Saver(str(tmp_path / "c"), checkpoints.Retention())
    saver.prepare(support.state_of(1))
    save = saver.save(1, support.state_of(1), {})
    assert save.outcome is not None
    assert save.outcome.ok
    assert "0 MB of memory are free" in saver.why_inline
    saver.close()
    assert support.newest(tmp_path / "c") == 1
