"""A power cut under a running job, for real: another kernel finds the run lost, its lease void, and starts nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.uml.machine import Guest

if TYPE_CHECKING:
    from tests.uml.machine import Machine

pytestmark = [pytest.mark.process, pytest.mark.uml, pytest.mark.timeout(300)]

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.slow
@pytest.mark.requirement("PROC-15", "LEASE-02", "B-08", "DIAG-02")
def test_after_a_power_cut_the_run_is_lost_and_its_card_is_free(machine: Machine) -> None:
    disk = str(machine.disk)
    guest = Guest(
        env={
            "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOLDFAST_RUNS": f"{disk}/runs",
            "HOLDFAST_LEASE_DIR": f"{disk}/leases",
            "HOLDFAST_SIMULATED_GPUS": "1",
            "WORK": f"{disk}/work",
            "HOME": "/root",
        }
    )
    made = machine.run(["sh", "-c", 'cd "$0"; mkdir runs leases work; chmod 700 runs; chmod 1777 leases; sync', disk])
    assert made.code == 0, made.stderr
    boot = machine.start(["python", "reboot.py", "before"], guest)
    boot.wait_for_output("under way")
    boot.power_cut()
    second = machine.run(["python", "reboot.py", "after"], guest)
    assert second.code == 0, second.stderr
    found = json.loads(second.stdout)
    runs = {name: (condition, code) for name, condition, code in found["runs"]}
    assert runs["cut"] == ("lost", 71), found
    assert "the box was restarted" in found["evidence"]
    failure = found["failure"]
    assert (failure["kind"], failure["confidence"], failure["detector"]) == ("reboot", "certain", "V7"), failure
    assert found["available"] is True
    assert found["next"] == 0, found["next_said"]
    assert not found["started_twice"]
