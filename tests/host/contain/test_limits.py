"""Every limit asked for has a named mechanism, and the job's process really carries it."""

from __future__ import annotations

import math
import os
import resource
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.core.job.limits import Mechanism
from holdfast.host.contain.group import ControlGroup
from holdfast.host.contain.limits import LimitPlan, apply_in_child, plan_limits, read_tree_memory
from holdfast.host.process import libc
from holdfast.model.job import Limits, Priority
from tests.host.families import become
from tests.kernel_calls import get_io_priority

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process
MIB = 1024**2
CPUS = tuple(sorted(os.sched_getaffinity(0)))


def run_in_child(attempt: Callable[[], object]) -> None:
    assert os.waitpid(become(attempt), 0)[1] == 0


@pytest.mark.requirement("LIM-01")
def test_LIM_01_every_limit_names_its_mechanism_without_a_group() -> None:
    asked = Limits(
        memory_bytes=MIB, memory_high_bytes=MIB, cpus=0.5, cpu_weight=50, affinity=CPUS[:1], tasks=5, open_files=64
    )
    plan = plan_limits(asked, None)
    assert {limit.name: limit.mechanism for limit in plan.limits} == {
        "memory": Mechanism.WATCHDOG,
        "memory_high": Mechanism.WATCHDOG,
        "cpus": Mechanism.AFFINITY,
        "cpu_weight": Mechanism.NONE,
        "affinity": Mechanism.AFFINITY,
        "tasks": Mechanism.WATCHDOG,
        "open_files": Mechanism.RLIMIT,
    }
    assert plan.watched == ("memory", "memory_high", "tasks")
    (weight,) = plan.unenforceable
    assert weight.name == "cpu_weight"
    assert "no control group" in weight.detail


@pytest.mark.requirement("LIM-01")
def test_LIM_01_the_group_says_what_it_holds_and_why_not() -> None:
    group = ControlGroup(
        "x.1", "/nowhere", enforced={"memory": "cgroup_v2", "cpus": "systemd_scope"}, refused={"tasks": "no pids here"}
    )
    plan = plan_limits(Limits(memory_bytes=MIB, cpus=1.5, tasks=9), group)
    assert plan.mechanism_of("memory") is Mechanism.CGROUP_V2
    assert plan.mechanism_of("cpus") is Mechanism.SYSTEMD_SCOPE
    assert plan.mechanism_of("tasks") is Mechanism.WATCHDOG
    assert plan.mechanism_of("memory_high") is None
    assert next(limit for limit in plan.limits if limit.name == "tasks").detail.startswith("no pids here")
    # The quota holds: no CPU is taken away on top of it.
    assert plan.cpus == ()


def test_nothing_asked_is_nothing_in_force() -> None:
    plan = plan_limits(Limits(), None, priority=Priority.NORMAL)
    assert plan == LimitPlan()
    assert plan.unenforceable == ()


@pytest.mark.requirement("LIM-06")
@pytest.mark.parametrize("cpus", [0.5, 1, 1.5, 64])
def test_LIM_06_without_a_quota_whole_cpus_are_given(cpus: float) -> None:
    plan = plan_limits(Limits(cpus=cpus), None, spread="run-a")
    assert len(plan.cpus) == min(len(CPUS), math.ceil(cpus))
    assert set(plan.cpus) <= set(CPUS)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_runs_bound_to_few_cpus_do_not_pile_up_on_the_first() -> None:
    chosen = {plan_limits(Limits(cpus=1), None, spread=f"run-{number}").cpus for number in range(64)}
    assert chosen == {(cpu,) for cpu in CPUS}


def test_cpus_stay_inside_the_affinity_asked_for() -> None:
    plan = plan_limits(Limits(cpus=1, affinity=CPUS[-1:]), None, spread="x")
    assert plan.cpus == CPUS[-1:]


def test_affinity_to_a_cpu_that_is_not_there_is_unenforceable() -> None:
    plan = plan_limits(Limits(affinity=(CPUS[0], 4095)), None)
    (limit,) = plan.unenforceable
    assert limit.detail == "not available here: CPU 4095"
    assert plan.cpus == CPUS[:1]
    assert plan_limits(Limits(affinity=(4095,)), None).cpus == ()


@pytest.mark.requirement("ETIQ-01", "LIM-06")
def test_ETIQ_01_low_priority_is_nice_10_and_best_effort_7() -> None:
    def attempt() -> None:
        assert apply_in_child(plan_limits(Limits(), None)) == ()
        assert os.getpriority(os.PRIO_PROCESS, 0) == 10
        assert get_io_priority() == (libc.IOPRIO_BEST_EFFORT, 7)

    run_in_child(attempt)


@pytest.mark.requirement("ETIQ-01")
def test_ETIQ_01_normal_priority_changes_nothing_and_nobody_gets_less_nice() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)

    def attempt() -> None:
        apply_in_child(plan_limits(Limits(), None, priority=Priority.NORMAL))
        assert os.getpriority(os.PRIO_PROCESS, 0) == ours
        nicer = max(ours, 15)
        os.setpriority(os.PRIO_PROCESS, 0, nicer)
        apply_in_child(plan_limits(Limits(), None))
        assert os.getpriority(os.PRIO_PROCESS, 0) == nicer

    run_in_child(attempt)


@pytest.mark.requirement("LIM-06", "LIM-07", "B-44")
def test_LIM_07_the_child_carries_affinity_and_files_and_no_address_space_limit() -> None:
    plan = plan_limits(Limits(affinity=CPUS[:1], open_files=100, memory_bytes=MIB, cpus=1), None)
    before = [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)]

    def attempt() -> None:
        apply_in_child(plan)
        assert os.sched_getaffinity(0) == set(CPUS[:1])
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (100, 100)
        after = [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)]
        assert after == before
        opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(80)]
        assert max(opened) < 100
        with pytest.raises(OSError, match="Too many open files"):
            opened.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(80))

    run_in_child(attempt)


def test_open_files_above_the_hard_limit_need_an_administrator() -> None:
    def attempt() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (50, 100))
        if os.geteuid() == 0:
            plan = plan_limits(Limits(open_files=200), None)
            assert plan.unenforceable == ()
            os.setgid(65534)
            os.setuid(65534)
        plan = plan_limits(Limits(open_files=200), None)
        (limit,) = plan.unenforceable
        assert "the hard limit here is 100" in limit.detail
        apply_in_child(plan)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (100, 100)

    run_in_child(attempt)


def test_an_impossible_limit_of_open_files_is_unenforceable() -> None:
    (limit,) = plan_limits(Limits(open_files=1 << 40), None).unenforceable
    assert limit.name == "open_files"


@pytest.mark.slow
@pytest.mark.requirement("LIM-04", "B-48")
def test_LIM_04_tree_memory_counts_workers_and_shared_pages_once() -> None:
    reader, writer = os.pipe()
    shared = bytearray(64 * MIB)
    shared[::4096] = b"x" * len(shared[::4096])

    def worker() -> None:
        own = bytearray(32 * MIB)
        own[::4096] = b"y" * len(own[::4096])
        os.write(writer, b".")
        signal.pause()

    children = [become(worker) for _ in range(3)]
    for _ in children:
        os.read(reader, 1)
    exact = read_tree_memory([*children, os.getpid()])
    rough = read_tree_memory([*children, os.getpid()], limit_bytes=1 << 50)
    over = read_tree_memory([*children, os.getpid()], limit_bytes=MIB)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    assert exact.exact
    assert over.exact
    assert not rough.exact
    assert exact.memory_bytes >= (3 * 32 + 64) * MIB
    assert rough.memory_bytes >= exact.memory_bytes + 2 * 64 * MIB
    # Who has ended counts nothing and is no mystery.
    gone = read_tree_memory(children)
    assert (gone.memory_bytes, gone.unreadable) == (0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account")
def test_processes_that_may_not_be_read_exactly_count_by_their_resident_size() -> None:
    parent = os.getpid()

    def attempt() -> None:
        os.setgid(65534)
        os.setuid(65534)
        found = read_tree_memory([parent])
        assert not found.exact
        assert found.memory_bytes > MIB
        assert found.unreadable == 0

    run_in_child(attempt)
