"""A power cut in the middle of a sweep of trainings, for real: it ends with every result, and nothing begins anew."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.uml.machine import Guest, Machine
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.uml, pytest.mark.soak, pytest.mark.timeout(300)]

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.timeout(1200)
@pytest.mark.requirement("QUEUE-01", "QUEUE-05", "QUEUE-15")
def test_the_example_sweep_is_killed_and_cut_off_in_the_middle_and_ends_twelve_of_twelve(
    machine: Machine,  # skips where the package is absent
    tmp_path: Path,
) -> None:
    # Twelve runs with their checkpoints do not fit on the fixture's disk.
    (tmp_path / "large").mkdir()
    with Machine(tmp_path / "large", disk_mib=400) as large:
        go_through_a_power_cut(large)


def go_through_a_power_cut(machine: Machine) -> None:
    disk = str(machine.disk)
    guest = Guest(
        env={
            "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
            "HOLDFAST_MACHINE_ID": "the-guest",
            "HOLDFAST_RUNS": f"{disk}/runs",
            "HOLDFAST_QUEUE": f"{disk}/queue",
            "HOLDFAST_LEASE_DIR": f"{disk}/leases",
            "HOLDFAST_SIMULATED_GPUS": "4",
            "XDG_STATE_HOME": f"{disk}/state",
            "SWEEP": f"{REPOSITORY}/examples/digits/sweep.yaml",
            "HOME": "/root",
        },
        mem_mib=1024,
    )
    make = 'cd "$0"; mkdir runs leases state queue; chmod 700 runs queue; chmod 1777 leases; sync'
    made = machine.run(["sh", "-c", make, disk])
    assert made.code == 0, made.stderr
    boot = machine.start(["python", "queue_sweep.py", "before"], guest)
    boot.wait_for_output("under way", timeout_s=500 * PATIENCE)
    boot.power_cut()
    second = machine.run(["python", "queue_sweep.py", "after"], guest, timeout_s=550 * PATIENCE)
    assert second.code == 0, second.stderr
    found = json.loads(second.stdout)
    assert found["code"] == 0, found
    assert [job["state"] for job in found["jobs"]] == ["done"] * 12, found
    assert len({job["metrics"]["accuracy"] for job in found["jobs"]}) > 1
    assert max(job["attempts"] for job in found["jobs"]) == 2, "what was running when the power went began again"
