"""Where a process sits and what really limits it: fixtures of every tree, and this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.contain.tree import (
    Hierarchies,
    find_cgroups,
    parse_limit,
    parse_membership,
    parse_mounts,
    parse_quota,
    read_effective,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
MIB = 1024**2


class Box:
    """A made-up box: a mount table, a membership, and files with limits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc" / "self").mkdir(parents=True)
        self.mounts: list[str] = []

    def mount(self, name: str, *, kind: str = "cgroup2", options: str = "rw", inside: str = "/") -> None:
        point = self.root / name
        point.mkdir(parents=True, exist_ok=True)
        self.mounts.append(f"31 23 0:28 {inside} {point} rw,nosuid shared:9 - {kind} {kind} {options}")
        (self.root / "proc/self/mountinfo").write_text(
            "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + "\n".join(self.mounts) + "\n"
        )

    def put(self, path: str, content: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content + "\n")

    def join(self, *lines: str) -> None:
        (self.root / "proc/self/cgroup").write_text("\n".join(lines) + "\n")

    @property
    def proc(self) -> str:
        return str(self.root / "proc")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "box")


@pytest.mark.requirement("PRE-08", "B-22", "B-23")
def test_PRE_08_v2_nested_limit_in_a_parent_wins_and_max_is_none(box: Box) -> None:
    box.mount("cg")
    box.join("0::/a/b/c")
    box.put("cg/a/b/c/memory.max", "max")
    box.put("cg/a/b/memory.max", str(512 * MIB))
    box.put("cg/a/memory.max", str(800 * MIB))
    box.put("cg/a/memory.high", str(700 * MIB))
    box.put("cg/a/b/c/cpu.max", "max 100000")
    box.put("cg/a/cpu.max", "150000 100000")
    box.put("cg/a/pids.max", "77")
    limits = read_effective(proc=box.proc)
    assert limits.memory_bytes == 512 * MIB
    assert limits.memory_high_bytes == 700 * MIB
    assert limits.cpu_quota == 1.5
    assert limits.tasks == 77
    assert limits.sources["memory"].endswith("/cg/a/b/memory.max")
    assert limits.unreadable == ()
    assert limits.cpus == min(1.5, len(os.sched_getaffinity(0)))


@pytest.mark.requirement("PRE-08")
def test_PRE_08_v2_without_any_limit_is_none_and_not_the_hosts_total(box: Box) -> None:
    box.mount("cg")
    box.join("0::/a")
    box.put("cg/a/memory.max", "max")
    limits = read_effective(proc=box.proc)
    assert limits.memory_bytes is None
    assert limits.cpu_quota is None
    assert limits.cpus == len(os.sched_getaffinity(0))


@pytest.mark.requirement("PRE-08", "B-22", "B-23")
def test_PRE_08_v1_huge_numbers_are_none_and_the_smallest_ancestor_wins(box: Box) -> None:
    box.mount("memory", kind="cgroup", options="rw,memory")
    box.mount("cpu,cpuacct", kind="cgroup", options="rw,cpu,cpuacct")
    box.mount("pids", kind="cgroup", options="rw,pids")
    box.join("4:memory:/user/x", "3:cpu,cpuacct:/user", "2:pids:/user", "1:name=systemd:/elsewhere")
    box.put("memory/user/x/memory.limit_in_bytes", "9223372036854771712")
    box.put("memory/user/memory.limit_in_bytes", str(256 * MIB))
    box.put("cpu,cpuacct/user/cpu.cfs_quota_us", "50000")
    box.put("cpu,cpuacct/user/cpu.cfs_period_us", "100000")
    box.put("cpu,cpuacct/cpu.cfs_quota_us", "-1")
    box.put("pids/user/pids.max", "max")
    limits = read_effective(proc=box.proc)
    assert limits.memory_bytes == 256 * MIB
    assert limits.cpu_quota == 0.5
    assert limits.tasks is None
    assert find_cgroups(proc=box.proc).describe() == "cgroup v1"


def test_PRE_08_v1_tells_of_limits_above_what_the_mount_shows(box: Box) -> None:
    box.mount("memory", kind="cgroup", options="rw,memory", inside="/docker/abc")
    box.join("4:memory:/docker/abc")
    box.put("memory/memory.limit_in_bytes", "9223372036854771712")
    box.put("memory/memory.stat", f"cache 0\nhierarchical_memory_limit {300 * MIB}\n")
    assert read_effective(proc=box.proc).memory_bytes == 300 * MIB


@pytest.mark.requirement("LIM-02", "B-23")
def test_LIM_02_hybrid_takes_each_limit_from_where_it_is(box: Box) -> None:
    box.mount("unified")
    box.mount("memory", kind="cgroup", options="rw,memory")
    box.join("4:memory:/m", "0::/u")
    box.put("unified/u/pids.max", "50")
    box.put("memory/m/memory.limit_in_bytes", str(64 * MIB))
    limits = read_effective(proc=box.proc)
    assert (limits.memory_bytes, limits.tasks) == (64 * MIB, 50)
    assert find_cgroups(proc=box.proc).describe() == "cgroup v1 and v2 (hybrid)"


@pytest.mark.parametrize(
    ("inside", "own", "expected", "exact"),
    [
        ("/", "/", "cg", True),
        ("/", "/a/b", "cg/a/b", True),
        ("/docker/abc", "/docker/abc", "cg", True),
        ("/docker/abc", "/docker/abc/init", "cg/init", True),
        ("/docker/abc", "/docker/abcdef", "cg", False),
        ("/", "/../other", "cg", False),
        ("/..", "/", "cg", False),
    ],
)
def test_a_container_sees_its_own_part(box: Box, inside: str, own: str, expected: str, exact: bool) -> None:
    box.mount("cg", inside=inside)
    box.join(f"0::{own}")
    place = find_cgroups(proc=box.proc).unified
    assert place is not None
    assert place.path == str(box.root / expected)
    assert place.exact is exact


def test_of_two_mounts_the_one_that_shows_our_place_is_taken(box: Box) -> None:
    box.mount("part", inside="/other")
    box.mount("whole")
    box.join("0::/a")
    place = find_cgroups(proc=box.proc).unified
    assert place is not None
    assert place.path == str(box.root / "whole/a")


def test_an_unreadable_limit_is_named_and_not_taken_for_none(box: Box) -> None:
    box.mount("cg")
    box.join("0::/a")
    # A directory in place of the file: reading it fails for every user.
    (box.root / "cg/a/memory.max").mkdir(parents=True)
    limits = read_effective(proc=box.proc)
    assert limits.memory_bytes is None
    assert limits.unreadable == (str(box.root / "cg/a/memory.max"),)


def test_no_cgroups_and_no_process_are_no_places(box: Box) -> None:
    assert find_cgroups(proc=box.proc) == Hierarchies(None, ())
    box.join("0::/")
    box.mount("tmp", kind="tmpfs")
    found = find_cgroups(proc=box.proc)
    assert found == Hierarchies(None, ())
    assert found.describe() == "no cgroups mounted"
    assert find_cgroups(4242, proc=box.proc) == Hierarchies(None, ())


def test_kernel_texts() -> None:
    assert parse_membership("0::/a (deleted)\n1:cpu,cpuacct:/b:c\nrubbish\n") == {
        "": "/a",
        "cpu": "/b:c",
        "cpuacct": "/b:c",
    }
    (mount,) = parse_mounts(
        "31 23 0:28 /r\\040s /m\\134t rw - cgroup cgroup rw,memory\nshort line\n1 2 3 4 5 6 - cgroup x\n"
    )
    assert (mount.root, mount.point, mount.controllers) == ("/r s", "/m\\t", ("memory",))
    assert [parse_limit(text) for text in ("max", "-1", None, "", "4096", str(2**63 - 4096))] == [None] * 4 + [
        4096,
        None,
    ]
    assert parse_quota("max", "100000") is None
    assert parse_quota("50000", "0") is None
    assert parse_quota("-1", "100000") is None


def test_this_machine_has_a_place_for_us() -> None:
    found = find_cgroups()
    assert found.unified is not None or found.v1
    for place in (*found.v1, *([found.unified] if found.unified else [])):
        assert os.path.exists(f"{place.path}/cgroup.procs")
    assert read_effective().cpus_allowed == len(os.sched_getaffinity(0))
