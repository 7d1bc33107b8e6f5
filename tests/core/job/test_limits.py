"""Thread caps, worker bounds and fair shares, as arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.job.limits import (
    GIB,
    MOST_THREADS,
    BoxShare,
    bound_workers,
    cap_threads,
    count_cores,
    judge_share,
)
from holdfast.model.job import Limits
from tests.each import each

pytestmark = pytest.mark.pure


@pytest.mark.requirement("RAIL-06", "LIM-08")
@each(
    ("cpus", "processes", "expected"),
    [(12, 1, 8), (64, 1, 8), (2, 1, 2), (4, 1, 4), (12, 4, 3), (0.5, 1, 1), (2, 8, 1), (1.5, 1, 1), (8, 0, 8)],
)
def test_RAIL_06_threads_come_from_the_quota(cpus: float, processes: int, expected: int) -> None:
    assert cap_threads(cpus, processes=processes) == expected


@given(st.floats(0.01, 1024), st.integers(1, 64))
def test_RAIL_06_threads_never_exceed_the_slice(cpus: float, processes: int) -> None:
    threads = cap_threads(cpus, processes=processes)
    assert 1 <= threads <= MOST_THREADS
    assert threads == 1 or threads * processes <= cpus


def test_RAIL_17_workers_are_bound_by_memory() -> None:
    assert bound_workers(16, 8 * GIB, dataset_bytes=GIB) == 6


@pytest.mark.requirement("B-29")
@pytest.mark.gotcha("U9")
@pytest.mark.parametrize(
    ("cpus", "memory", "dataset", "processes", "expected"),
    [
        (4, 8 * GIB, GIB, 1, 3),
        (4, None, None, 1, 3),
        (1, None, None, 1, 0),
        (0.5, 64 * GIB, GIB, 1, 0),
        (64, 2 * GIB, GIB, 1, 0),
        (64, 64 * GIB, GIB, 8, 6),
        (16, 8 * GIB, None, 1, 6),
    ],
)
def test_RAIL_17_workers_are_bound_by_cpu_and_memory(
    cpus: float, memory: int | None, dataset: int | None, processes: int, expected: int
) -> None:
    assert bound_workers(cpus, memory, dataset_bytes=dataset, processes=processes) == expected


@given(st.floats(0.1, 256), st.integers(GIB // 2, 512 * GIB), st.integers(1, 64 * GIB), st.integers(1, 8))
def test_RAIL_17_main_process_and_workers_fit(cpus: float, memory: int, dataset: int, processes: int) -> None:
    workers = bound_workers(cpus, memory, dataset_bytes=dataset, processes=processes)
    assert workers >= 0
    assert workers == 0 or (workers + 1) * processes <= cpus
    assert workers == 0 or (workers + 1) * dataset * processes <= memory


def test_ETIQ_07_sixty_four_threads_on_two_cores_warn() -> None:
    (warning,) = judge_share(BoxShare(cpus=2), threads=64, cpus=None, memory_bytes=None)
    assert "64 threads asked for" in warning
    assert "2 of 2 cores" in warning


def test_ETIQ_07_a_fair_request_is_silent() -> None:
    share = BoxShare(cpus=16, memory_bytes=64 * GIB, free_memory_bytes=40 * GIB, cards=4, cards_asked=1)
    assert judge_share(share, threads=4, cpus=4, memory_bytes=16 * GIB) == ()


def test_ETIQ_07_cards_decide_the_share() -> None:
    share = BoxShare(cpus=16, memory_bytes=64 * GIB, free_memory_bytes=10 * GIB, cards=4, cards_asked=1)
    cores, memory, free = judge_share(share, threads=None, cpus=8, memory_bytes=32 * GIB)
    assert "8 cores asked for, the fair share is 4 of 16 cores for 1 of 4 cards" in cores
    assert "the fair share is 16 GiB of 64 GiB for 1 of 4 cards" in memory
    assert "10 GiB are free now" in free


@pytest.mark.requirement("LIM-08", "RAIL-06")
@each(
    ("limits", "cores", "expected"),
    [
        (Limits(), 8.0, 8.0),
        (Limits(affinity=(0, 1)), 8.0, 2.0),
        (Limits(affinity=(0, 99)), 8.0, 1.0),
        (Limits(affinity=(98, 99)), 8.0, 8.0),
        (Limits(affinity=(0, 1)), 1.5, 1.5),
        (Limits(affinity=(0, 1), cpus=0.5), 8.0, 0.5),
        (Limits(cpus=64.0), 8.0, 8.0),
    ],
)
def test_LIM_08_the_least_of_quota_and_affinity_counts(limits: Limits, cores: float, expected: float) -> None:
    assert count_cores(limits, cores, range(8)) == expected
