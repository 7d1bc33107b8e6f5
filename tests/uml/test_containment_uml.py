"""The ladder and the limits on kernels that this machine is not: pure v2 (root, delegated user, plain user), pure v1,
none."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.uml.machine import REPOSITORY, Cgroups, Guest

if TYPE_CHECKING:
    from tests.uml.machine import Machine

pytestmark = [pytest.mark.uml, pytest.mark.process, pytest.mark.timeout(300)]
MIB = 1024**2
USER = 1000
ENV = {"PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}", "PYTHONDONTWRITEBYTECODE": "1"}


def climb(machine: Machine, *argv: str, **guest: Any) -> dict[str, Any]:
    result = machine.run(["python", "ladder.py", *argv], Guest(env=ENV, **guest))
    assert result.code == 0, (result.stdout, result.stderr, result.console)
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def check_families(found: dict[str, Any], rungs: set[str]) -> None:
    assert {rung for rung, refusal in found["levels"].items() if refusal is None} == rungs | {"process_group"}
    assert set(found["families"]) == rungs
    for rung, family in found["families"].items():
        assert family["before"] >= 8, rung
        assert family["empty"], rung
        assert family["gone"], rung


@pytest.mark.slow
@pytest.mark.requirement("LIM-01", "LIM-02", "LIM-05", "LIM-10", "PROC-02", "B-44")
@pytest.mark.parametrize("uid", [0, USER])
def test_LIM_02_pure_v2_for_root_and_for_a_delegated_user(machine: Machine, uid: int) -> None:
    found = climb(machine, "ladder", uid=uid, delegated=uid != 0)
    assert found["box"] == "cgroup v2"
    check_families(found, {"pid_namespace", "cgroup_v2", "subreaper"})
    assert found["group"]["controllers"] == ["memory", "cpu", "pids"]
    assert set(found["group"]["mechanisms"].values()) == {"cgroup_v2"}
    assert set(found["group"]["mechanisms"]) == {"memory", "memory_high", "cpus", "cpu_weight", "tasks"}
    assert found["group"]["refused"] == {}
    assert found["inside"] == {"memory": 24 * MIB, "quota": 0.5, "tasks": 50}
    assert found["hog"] == {"status": signal.SIGKILL, "oom_kills": 1, "limit": 24 * MIB, "cpu": True}
    # Beside our own place, under every limit above it: not at the top of the tree.
    assert os.path.dirname(os.path.dirname(found["group"]["unified"])) != "/sys/fs/cgroup"


@pytest.mark.slow
def test_a_user_without_delegation_gets_the_namespace_and_a_watchdog(machine: Machine) -> None:
    found = climb(machine, "ladder", uid=USER)
    check_families(found, {"pid_namespace", "subreaper"})
    assert "no group can be made" in found["levels"]["cgroup_v2"]
    assert found["chosen"] == "pid_namespace"
    assert found["group"] == {"made": False}


@pytest.mark.slow
@pytest.mark.requirement("LIM-02", "B-44")
def test_LIM_02_pure_v1(machine: Machine) -> None:
    found = climb(machine, "ladder", cgroups=Cgroups.V1)
    assert found["box"] == "cgroup v1"
    check_families(found, {"pid_namespace", "cgroup_v1", "subreaper"})
    assert found["group"]["mechanisms"] == {
        "memory": "cgroup_v1",
        "memory_high": "watchdog",
        "cpus": "cgroup_v1",
        "cpu_weight": "cgroup_v1",
        "tasks": "cgroup_v1",
    }
    assert found["inside"] == {"memory": 24 * MIB, "quota": 0.5, "tasks": 50}
    assert found["hog"]["status"] == signal.SIGKILL
    assert found["hog"]["oom_kills"] == 1


@pytest.mark.slow
@pytest.mark.requirement("LIM-01")
def test_LIM_01_alone_in_a_delegated_scope_we_step_down_and_limit_the_job(machine: Machine) -> None:
    found = climb(machine, "step_down", str(USER))
    assert found["own"] == "/sys/fs/cgroup/holdfast-run.1.scope/supervisor"
    assert found["group"]["unified"] == "/sys/fs/cgroup/holdfast-run.1.scope/holdfast/run.1"
    assert set(found["group"]["mechanisms"].values()) == {"systemd_scope"}
    assert found["inside"] == {"memory": 24 * MIB, "quota": 0.5, "tasks": 50}
    assert found["again"]
