"""Verdicts on pure cgroup v2, for root and for an account that may not read the kernel's log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.uml.machine import REPOSITORY, Guest

if TYPE_CHECKING:
    from tests.uml.machine import Machine

pytestmark = [pytest.mark.uml, pytest.mark.process, pytest.mark.timeout(300)]
USER = 1000


@pytest.mark.slow
@pytest.mark.requirement("DIAG-02", "FAIL-04", "FAIL-14")
@pytest.mark.parametrize("uid", [pytest.param(0, marks=pytest.mark.soak), USER])
def test_DIAG_02_an_oom_kill_is_told_from_another_by_the_groups_counter(machine: Machine, uid: int) -> None:
    disk = str(machine.disk)
    env = {
        "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOLDFAST_RUNS": f"{disk}/runs-{uid}",
        "XDG_STATE_HOME": f"{disk}/state-{uid}",
        "HOME": f"{disk}/home-{uid}",
    }
    places = " ".join(f"{name}-{uid}" for name in ("runs", "state", "home"))
    made = machine.run(["sh", "-c", f'cd "$0" && mkdir {places} && chown {uid} {places} && chmod 700 {places}', disk])
    assert made.code == 0, made.stderr
    result = machine.run(["python", "verdicts.py"], Guest(env=env, uid=uid, delegated=uid != 0))
    assert result.code == 0, (result.stdout, result.stderr, result.console)
    found = json.loads(result.stdout)
    oom, killed = found["oom"], found["killed"]
    assert (oom.get("kind"), oom.get("confidence"), oom.get("detector")) == ("out_of_memory", "certain", "V1"), oom
    assert (killed.get("kind"), killed.get("confidence")) == ("killed", "likely"), killed
    assert "not out_of_memory" in json.dumps(killed["evidence_against"])
