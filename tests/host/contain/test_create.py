"""Groups on this machine's own cgroup tree: made, limited, joined, counted, killed, removed."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.host.contain.create import create_group, open_group
from holdfast.host.contain.group import ControlGroup, is_populated, remove_tree
from holdfast.host.contain.tree import Hierarchies, find_cgroups, read_effective
from holdfast.model.job import IsolationLevel, Limits
from tests.host.families import become, make_group
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups of this machine belong to root; UML tests the others"),
]
MIB = 1024**2
BOTH = [IsolationLevel.CGROUP_V2, IsolationLevel.CGROUP_V1]


def fresh_name() -> str:
    return f"test-{os.getpid()}-{os.urandom(4).hex()}"


@pytest.fixture
def holder() -> Iterator[list[ControlGroup]]:
    """Groups to be emptied and removed when the test is over."""
    groups: list[ControlGroup] = []
    yield groups
    for group in groups:
        group.kill()
        wait_until(group.remove, what=f"{group.name} is empty")


def make(holder: list[ControlGroup], limits: Limits | None = None) -> ControlGroup:
    group = create_group(fresh_name(), limits)
    assert group is not None
    holder.append(group)
    return group


def stay_in(group: ControlGroup, *, fork: bool = False) -> int:
    """A child in the group (two with `fork`), there when this returns."""
    reader, writer = os.pipe()

    def stay() -> None:
        group.add()
        if fork:
            os.fork()
        os.write(writer, b".")
        signal.pause()

    child = become(stay)
    for _ in range(1 + fork):
        assert os.read(reader, 1) == b"."
    os.close(reader)
    os.close(writer)
    return child


@pytest.mark.requirement("LIM-01", "LIM-02", "B-44")
def test_LIM_01_a_memory_limit_kills_the_hog_and_is_counted(holder: list[ControlGroup]) -> None:
    group = make(holder, Limits(memory_bytes=96 * MIB))
    assert group.enforced["memory"] in ("cgroup_v1", "cgroup_v2")

    def hog() -> None:
        group.add()
        data = bytearray(200 * MIB)
        data[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(data[:: os.sysconf("SC_PAGE_SIZE")])

    assert os.waitpid(become(hog), 0)[1] == signal.SIGKILL
    usage = group.usage()
    assert usage.oom_kills == 1
    assert usage.memory_limit_bytes == 96 * MIB
    assert usage.memory_peak_bytes is not None
    assert 90 * MIB < usage.memory_peak_bytes <= 96 * MIB


@pytest.mark.slow
@pytest.mark.requirement("LIM-04", "B-48")
def test_LIM_04_the_whole_tree_is_counted(holder: list[ControlGroup]) -> None:
    group = make(holder, Limits(memory_bytes=600 * MIB))
    reader, writer = os.pipe()

    def worker() -> None:
        group.add()
        data = bytearray(50 * MIB)
        data[::4096] = b"x" * len(data[::4096])
        os.write(writer, b".")
        signal.pause()

    children = [become(worker) for _ in range(4)]
    for _ in children:
        os.read(reader, 1)
    usage = group.usage()
    assert usage.memory_bytes is not None
    assert usage.memory_anon_bytes is not None
    assert 200 * MIB <= usage.memory_bytes < 300 * MIB
    assert 200 * MIB <= usage.memory_anon_bytes < 300 * MIB
    assert usage.tasks == 4
    assert usage.cpu_s is not None
    assert usage.cpu_s > 0
    assert group.pids() == sorted(children)
    group.kill()
    for child in children:
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    os.close(reader)
    os.close(writer)


@pytest.mark.requirement("LIM-05", "B-49", "B-44")
@pytest.mark.parametrize(("cpus", "quota"), [(0.5, 0.5), (2, 2), (1.25, 1.25), (0.001, 0.01)])
def test_LIM_05_cpus_are_cores(cpus: float, quota: float, holder: list[ControlGroup]) -> None:
    group = make(holder, Limits(cpus=cpus))
    assert "cpus" in group.enforced
    child = stay_in(group)
    assert read_effective(child).cpu_quota == quota
    if "cpu" in group.v1:
        with open(f"{group.v1['cpu']}/cpu.cfs_period_us") as file:
            assert file.read() == "100000\n"
    group.kill()
    os.waitpid(child, 0)


@pytest.mark.requirement("LIM-10")
def test_LIM_10_limits_are_read_back_as_the_process_meets_them(holder: list[ControlGroup]) -> None:
    group = make(holder, Limits(memory_bytes=128 * MIB, tasks=20, cpu_weight=50))
    assert set(group.enforced) == {"memory", "tasks", "cpu_weight"}
    child = stay_in(group)
    limits = read_effective(child)
    assert (limits.memory_bytes, limits.tasks) == (128 * MIB, 20)
    if "cpu" in group.v1:
        with open(f"{group.v1['cpu']}/cpu.shares") as file:
            assert file.read() == "512\n"
    group.kill()
    os.waitpid(child, 0)


def test_a_task_limit_stops_forks(holder: list[ControlGroup]) -> None:
    group = make(holder, Limits(tasks=3))

    def fork_on() -> None:
        group.add()
        for _ in range(2):
            if os.fork() == 0:
                signal.pause()
        with pytest.raises(BlockingIOError):
            os.fork()

    assert os.waitpid(become(fork_on), 0)[1] == 0


@pytest.mark.requirement("LIM-01")
def test_LIM_01_a_limit_the_kernel_refuses_is_named(holder: list[ControlGroup]) -> None:
    group = make(holder, Limits(cpu_weight=0, tasks=5, memory_bytes=128 * MIB))
    assert set(group.enforced) | set(group.refused) == {"cpu_weight", "tasks", "memory"}
    places = find_cgroups()
    if places.v1_place("memory") is not None:
        high = make(holder, Limits(memory_high_bytes=64 * MIB))
        assert "memory_high" in high.refused


@pytest.mark.parametrize("level", BOTH)
def test_kill_empties_the_group_and_then_it_can_be_removed(level: IsolationLevel) -> None:
    group = make_group(level)
    assert group.is_populated() is False
    assert group.pids() == []
    child = stay_in(group, fork=True)
    assert group.is_populated() is True
    assert len(group.pids() or ()) == 2
    assert group.remove() is False
    assert group.kill() is True
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    wait_until(lambda: group.is_populated() is False)
    assert group.remove() is True
    # A directory that is gone is empty, as long as the tree it was in can be seen.
    assert group.is_populated() is False
    assert group.pids() == []
    assert open_group(group.name, group.unified, group.v1) is None


@pytest.mark.parametrize("level", BOTH)
def test_frozen_processes_are_killed_too(level: IsolationLevel) -> None:
    group = make_group(level)
    child = stay_in(group)
    assert group.freeze() is True
    wait_until(group.is_frozen)
    group.kill()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    wait_until(group.remove)


@pytest.mark.parametrize("level", BOTH)
def test_groups_that_the_job_made_below_are_counted_killed_and_removed(level: IsolationLevel) -> None:
    group = make_group(level)
    reader, writer = os.pipe()

    def go_deeper() -> None:
        group.add()
        for directory in group.directories():
            os.mkdir(f"{directory}/deeper")
            with open(f"{directory}/deeper/cgroup.procs", "w") as file:
                file.write("0")
        os.write(writer, b".")
        signal.pause()

    child = become(go_deeper)
    os.read(reader, 1)
    assert group.pids() == [child]
    assert group.is_populated() is True
    group.kill()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    wait_until(group.remove)
    os.close(reader)
    os.close(writer)


def test_adoption_opens_the_group_that_was_written_down(holder: list[ControlGroup]) -> None:
    group = make(holder)
    child = stay_in(group)
    opened = open_group(group.name, group.unified, group.v1, group.controllers)
    assert opened is not None
    assert opened.pids() == [child]
    assert opened.kill()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_the_end_is_an_event_of_the_v2_group() -> None:
    group = make_group(IsolationLevel.CGROUP_V2)
    child = stay_in(group)
    events = os.open(f"{group.unified}/cgroup.events", os.O_RDONLY)
    poll = select.poll()
    poll.register(events, select.POLLPRI)
    os.read(events, 4096)
    group.kill()
    assert poll.poll(LIMIT_S * 1000)
    os.close(events)
    os.waitpid(child, 0)
    wait_until(group.remove)


def test_a_name_is_taken_while_it_has_processes_and_reused_after(holder: list[ControlGroup]) -> None:
    group = make(holder)
    child = stay_in(group)
    with pytest.raises(FileExistsError):
        create_group(group.name)
    assert group.is_populated() is True
    group.kill()
    os.waitpid(child, 0)
    wait_until(lambda: group.is_populated() is False)
    again = create_group(group.name)
    assert again is not None
    assert again.directories() == group.directories()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a\nb"])
def test_a_name_must_be_one_directory(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a control group"):
        create_group(name)


def test_where_nothing_can_be_made_there_is_no_group(tmp_path: Path) -> None:
    assert create_group(fresh_name(), hierarchies=Hierarchies(None, ())) is None

    def as_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)
        assert create_group(fresh_name()) is None

    assert os.waitpid(become(as_nobody), 0)[1] == 0


def test_what_cannot_be_seen_is_not_empty(tmp_path: Path) -> None:
    # No cgroup tree around it: "gone" could mean "not mounted here".
    assert is_populated(str(tmp_path / "holdfast" / "x.1")) is None
    assert ControlGroup("x.1", str(tmp_path / "holdfast" / "x.1")).is_populated() is None
    assert ControlGroup("x.1", str(tmp_path / "holdfast" / "x.1")).pids() is None
    assert ControlGroup("x.1").witness is None


def test_joining_what_is_gone_fails_with_its_path(holder: list[ControlGroup]) -> None:
    group = make(holder)
    gone = ControlGroup("gone", f"{group.witness}/gone")
    with pytest.raises(FileNotFoundError) as caught:
        gone.add()
    assert caught.value.filename == f"{group.witness}/gone/cgroup.procs"
    assert remove_tree(f"{group.witness}/gone") is True


def test_the_top_directory_goes_with_its_last_group(tmp_path: Path) -> None:
    first, second = make_group(IsolationLevel.CGROUP_V2), make_group(IsolationLevel.CGROUP_V2)
    assert first.unified is not None
    top = os.path.dirname(first.unified)
    assert os.path.basename(top) == "holdfast"
    assert first.remove()
    assert os.path.isdir(top)
    assert second.remove()
