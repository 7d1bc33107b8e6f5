"""Holdfast's own containment and limits on a kernel of the test's choice; prints what held as JSON.

`ladder`: which levels work, a run's group with every limit, a memory hog in it, and a family of hard-to-end processes
under each level that works. `step_down`: a delegated scope in which we are alone.
"""

from __future__ import annotations

import json
import os
import sys

from holdfast.host.contain.containment import choose_level, probe_levels
from holdfast.host.contain.create import ControlGroup, create_group
from holdfast.host.contain.limits import plan_limits
from holdfast.host.contain.members import empty_tree, find_members
from holdfast.host.contain.tree import find_cgroups, read_effective
from holdfast.model.job import IsolationLevel, Limits
from tests.host.families import become, raised
from tests.waiting import wait_until

MIB = 1024**2
LIMITS = Limits(memory_bytes=24 * MIB, memory_high_bytes=23 * MIB, cpus=0.5, cpu_weight=50, tasks=50)
KINDS = ["setsid", "double_fork", "ignore_term", "stopped", "escapee", "forgetful", "vfork"]


def remove(group: ControlGroup) -> None:
    group.kill()
    wait_until(group.remove)


def try_hog(group: ControlGroup) -> dict[str, object]:
    def hog() -> None:
        group.add()
        data = bytearray(80 * MIB)
        data[::4096] = b"x" * len(data[::4096])

    status = os.waitpid(become(hog), 0)[1]
    usage = group.usage()
    return {
        "status": status,
        "oom_kills": usage.oom_kills,
        "limit": usage.memory_limit_bytes,
        "cpu": usage.cpu_s is not None,
    }


def read_inside(group: ControlGroup) -> dict[str, object]:
    reader, writer = os.pipe()

    def look() -> None:
        group.add()
        found = read_effective()
        os.write(writer, json.dumps([found.memory_bytes, found.cpu_quota, found.tasks]).encode())

    assert os.waitpid(become(look), 0)[1] == 0
    memory, quota, tasks = json.loads(os.read(reader, 4096))
    return {"memory": memory, "quota": quota, "tasks": tasks}


def describe(group: ControlGroup | None) -> dict[str, object]:
    if group is None:
        return {"made": False}
    plan = plan_limits(LIMITS, group)
    return {
        "made": True,
        "unified": group.unified,
        "v1": sorted(group.v1),
        "controllers": list(group.controllers),
        "mechanisms": {limit.name: limit.mechanism.value for limit in plan.limits},
        "refused": group.refused,
    }


def climb() -> dict[str, object]:
    levels = probe_levels(fresh=True)
    group = create_group("run.1", LIMITS)
    found: dict[str, object] = {
        "box": find_cgroups().describe(),
        "levels": {one.level.value: one.refusal for one in levels},
        "chosen": choose_level().describe(),
        "group": describe(group),
    }
    if group is not None:
        found["inside"] = read_inside(group)
        remove(group)
        small = create_group("run.2", Limits(memory_bytes=24 * MIB))
        assert small is not None
        found["hog"] = try_hog(small)
        remove(small)
    found["families"] = {
        one.level.value: end_family(one.level)
        for one in levels
        if one.works and one.level is not IsolationLevel.PROCESS_GROUP
    }
    return found


def end_family(level: IsolationLevel) -> dict[str, object]:
    with raised(level, KINDS, "/tmp") as family:
        before = len(find_members(family.tree))
        result = empty_tree(family.tree, deadline_s=10)
        return {"before": before, "empty": result.empty, "gone": family.is_gone()}


def step_down(uid: int) -> dict[str, object]:
    """As systemd-run with Delegate=yes leaves us: alone in a cgroup of our own, with nothing above it ours."""
    root = "/sys/fs/cgroup"
    with open(f"{root}/cgroup.subtree_control", "w") as file:
        file.write("+memory +cpu +pids")
    scope = f"{root}/holdfast-run.1.scope"
    os.mkdir(scope)
    for name in ("", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"):
        os.chown(scope + name, uid, uid)
    with open(f"{scope}/cgroup.procs", "w") as file:
        file.write("0")
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    group = create_group("run.1", LIMITS)
    found = {"group": describe(group), "own": find_cgroups().unified is not None and find_cgroups().unified.path}  # type: ignore[union-attr]
    if group is not None:
        found["inside"] = read_inside(group)
        again = create_group("run.2", LIMITS)
        found["again"] = again is not None and again.controllers == group.controllers
        for one in (group, again):
            if one is not None:
                remove(one)
    return found


if __name__ == "__main__":
    print(json.dumps(climb() if sys.argv[1] == "ladder" else step_down(int(sys.argv[2]))))
