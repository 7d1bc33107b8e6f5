"""The slice that is measured, and the loader settings that fit into it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.training.box.environment import Slice, advise_loader, measure_slice
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024**3
V2 = "0::/job/run\n"
V1 = "7:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/x\n"


@pytest.mark.gotcha("U24")
@pytest.mark.pure
@pytest.mark.requirement("LIB-14")
@each(
    ("cores", "memory", "gpus", "ranks", "workers"),
    [
        (1, 64 * GIB, 1, 1, 0),
        (2, 64 * GIB, 1, 1, 1),
        (8, 64 * GIB, 1, 1, 7),
        (64, 256 * GIB, 1, 1, 8),
        (64, 256 * GIB, 8, 8, 7),
        (8, 4 * GIB, 1, 1, 2),
        (8, 2 * GIB, 1, 1, 1),
        (8, 1 * GIB, 1, 1, 0),
        (8, 16 * GIB, 4, 4, 1),
        (8, None, 1, 1, 2),
        (1.5, None, 0, 1, 0),
        (0.5, 8 * GIB, 0, 1, 0),
        (4, 64 * GIB, 0, 0, 3),
    ],
)
def test_LIB_14_the_advice_fits_the_slice(
    cores: float, memory: int | None, gpus: int, ranks: int, workers: int
) -> None:
    advice = advise_loader(cores, memory, gpus, ranks)
    assert advice.num_workers == workers
    assert advice.persistent_workers == (workers > 0)
    assert advice.prefetch_factor == (2 if workers else None)
    assert advice.pin_memory == (gpus > 0)
    assert advice.why.startswith(f"{workers} workers: ")


@pytest.mark.pure
def test_LIB_14_the_supervisor_s_bound_holds() -> None:
    advice = advise_loader(64, 256 * GIB, bound=3)
    assert advice.num_workers == 3
    assert "supervisor" in advice.why


@pytest.mark.files
def test_LIB_14_torch_takes_the_advice() -> None:
    torch = pytest.importorskip("torch")
    for cores in (1, min(4, len(os.sched_getaffinity(0)))):
        advice = advise_loader(cores, 64 * GIB, gpus=0)
        loader = torch.utils.data.DataLoader(
            list(range(8)),
            num_workers=advice.num_workers,
            persistent_workers=advice.persistent_workers,
            pin_memory=advice.pin_memory,
            prefetch_factor=advice.prefetch_factor,
        )
        assert len(loader) == 8


class Box:
    """A /proc and a /sys/fs/cgroup of our own making."""

    def __init__(self, root: Path, membership: str, total_kib: int = 64 * 1024**2) -> None:
        self.proc, self.groups = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.groups.mkdir()
        (self.proc / "self" / "cgroup").write_text(membership)
        (self.proc / "meminfo").write_text(f"MemTotal:  {total_kib} kB\nMemFree: 1 kB\n")

    def put(self, path: str, text: str) -> None:
        place = self.groups / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")

    def measure(self) -> Slice:
        return measure_slice(proc=str(self.proc), groups=str(self.groups))


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


@pytest.mark.files
def test_the_lowest_limit_above_us_counts(tmp_path: Path, many_cores: None) -> None:
    box = Box(tmp_path, V2)
    box.put("memory.max", "max")
    box.put("job/memory.max", str(8 * GIB))
    box.put("job/run/memory.max", str(32 * GIB))
    box.put("job/cpu.max", "250000 100000")
    box.put("job/run/cpu.max", "max 100000")
    assert box.measure() == Slice(2.5, 8 * GIB)


@pytest.mark.files
def test_the_limits_of_the_first_version_count_too(tmp_path: Path, many_cores: None) -> None:
    box = Box(tmp_path, V1)
    box.put("memory/memory.limit_in_bytes", str(0x7FFFFFFFFFFFF000))
    box.put("memory/job/memory.limit_in_bytes", str(4 * GIB))
    box.put("cpu/job/cpu.cfs_quota_us", "150000")
    box.put("cpu/job/cpu.cfs_period_us", "100000")
    box.put("cpu/cpu.cfs_quota_us", "-1")
    box.put("cpu/cpu.cfs_period_us", "100000")
    assert box.measure() == Slice(1.5, 4 * GIB)


@pytest.mark.files
def test_a_container_s_own_group_is_the_top(tmp_path: Path, many_cores: None) -> None:
    box = Box(tmp_path, "0::/../../docker/abc\n")
    box.put("memory.max", str(2 * GIB))
    assert box.measure() == Slice(16, 2 * GIB)


@pytest.mark.files
def test_without_limits_the_machine_counts(tmp_path: Path, many_cores: None) -> None:
    assert Box(tmp_path, V2).measure() == Slice(16, 64 * GIB)


@pytest.mark.files
def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path, many_cores: None) -> None:
    assert measure_slice(proc=str(tmp_path / "no"), groups=str(tmp_path / "no")) == Slice(16, None)


@pytest.mark.files
@pytest.mark.parametrize("text", ["", "lots", "-5", "0", "1e9", "12 34 x"])
def test_a_limit_that_is_no_number_is_no_limit(tmp_path: Path, many_cores: None, text: str) -> None:
    box = Box(tmp_path, V2)
    box.put("job/memory.max", text)
    box.put("job/cpu.max", text)
    assert box.measure() == Slice(16, 64 * GIB)


@pytest.mark.files
def test_this_machine_can_be_measured() -> None:
    measured = measure_slice()
    assert 0 < measured.cores <= len(os.sched_getaffinity(0))
    assert measured.memory_bytes is not None
    assert measured.memory_bytes > 2**20
