"""The fault `reboot`, which a box cannot do to itself: the power of another kernel is cut under a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast.faults.table import find
from tests.uml.machine import REPOSITORY, Guest

if TYPE_CHECKING:
    from tests.uml.machine import Machine

pytestmark = [pytest.mark.process, pytest.mark.uml, pytest.mark.soak, pytest.mark.timeout(120)]


@pytest.mark.requirement("DIAG-02")
def test_after_a_power_cut_the_verdict_is_a_reboot(machine: Machine) -> None:
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
    asked = machine.run(["python", "-m", "holdfast", "diagnose", "--json", "cut"], guest)
    assert asked.code == 0, asked.stderr
    verdict = json.loads(asked.stdout)["verdict"]
    assert verdict["kind"] in [kind.value for kind in find("reboot").expects], verdict
    assert verdict["confidence"] == "certain"
