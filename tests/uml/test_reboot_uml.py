"""A power cut under a running job and a queue, for real: one cut, and what another kernel finds afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.faults.table import find_fault
from holdfast.model.ids import name_of
from tests.uml.machine import PACKAGE, REPOSITORY, Guest, Machine, find_kernel
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.uml, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the box says of its runs and its queue when it is back; `run`, `diagnosed` and `queue`."""
    if find_kernel() is None:
        pytest.skip(f"the package {PACKAGE} (program linux.uml) is not installed; `make test` installs it")
    directory: Path = tmp_path_factory.mktemp("machine")
    with Machine(directory, disk_mib=96) as machine:
        disk = str(machine.disk)
        guest = Guest(
            env={
                "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOLDFAST_MACHINE_ID": "the-guest",
                "HOLDFAST_RUNS": f"{disk}/runs",
                "HOLDFAST_QUEUE": f"{disk}/queue",
                "HOLDFAST_LEASE_DIR": f"{disk}/leases",
                "HOLDFAST_SIMULATED_GPUS": "3",
                "XDG_STATE_HOME": f"{disk}/state",
                "WORK": f"{disk}/work",
                "HOME": "/root",
            },
            # After the cut, several runs are settled at once.
            mem_mib=1024,
        )
        make = 'cd "$0"; mkdir runs leases work state queue; chmod 700 runs queue; chmod 1777 leases; sync'
        made = machine.run(["sh", "-c", make, disk])
        assert made.code == 0, made.stderr
        boot = machine.start(["python", "power_cut.py", "before"], guest)
        boot.wait_for_output("under way", timeout_s=LONG_S)
        boot.power_cut()
        second = machine.run(["python", "power_cut.py", "after"], guest)
        assert second.code == 0, second.stderr
        facts: dict[str, Any] = json.loads(second.stdout)
        return facts


@pytest.mark.gotcha("GEN6")
@pytest.mark.requirement("PROC-15", "LEASE-02", "B-08", "DIAG-02")
def test_after_a_power_cut_the_run_is_lost_and_its_card_is_free(found: dict[str, Any]) -> None:
    run = found["run"]
    runs = {name: (condition, code) for name, condition, code in run["runs"]}
    assert runs["cut"] == ("lost", 71), run
    code, said, condition, settled = run["waited"]
    assert (code, condition, settled) == (71, "lost", False), said
    assert "holdfast reconcile" in said
    assert "the box was restarted" in run["evidence"]
    failure = run["failure"]
    assert (failure["kind"], failure["confidence"], failure["detector"]) == ("reboot", "certain", "V7"), failure
    # Not of the run that was cut off; one of the queue may have it by now, whose worker `reconcile` starts again.
    assert len(run["cards"]) == 3
    for holder, available, why in run["cards"]:
        assert holder is None or name_of(holder) in ("long1", "long2", "later1", "later2"), run["cards"]
        assert available or holder is not None, why
    assert run["next"] == 0, run["next_said"]
    assert not run["started_twice"]


@pytest.mark.requirement("DIAG-02")
def test_the_verdict_is_one_that_the_fault_expects(found: dict[str, Any]) -> None:
    """`reboot`, which a box cannot do to itself."""
    verdict = found["diagnosed"]
    assert verdict["kind"] in [kind.value for kind in find_fault("reboot").expects], verdict
    assert verdict["confidence"] == "certain"


@pytest.mark.requirement("QUEUE-01", "QUEUE-05", "PROC-15")
def test_the_queue_is_whole_and_what_was_running_is_resumed(found: dict[str, Any]) -> None:
    queue = found["queue"]
    assert queue["code"] == 0, queue
    lines = queue["lines"]
    for name in ("short1", "short2"):
        assert lines[name] == ["begin 1 start", "end 1 start"], queue
    for name in ("long1", "long2"):
        assert lines[name] == ["begin 1 start", "begin 2 requeue", "end 2 requeue"], queue
    for name in ("later1", "later2"):
        # One of them stood in line for a card already, so its first attempt never began.
        assert [line.split()[0] for line in lines[name]] == ["begin", "end"], queue
