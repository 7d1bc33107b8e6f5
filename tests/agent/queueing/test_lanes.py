"""Lanes: several lean cells in one fork, each begun once or taken back, and none by a lane of an earlier worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queueing import lanes, lean
from holdfast.agent.queueing.lean import Phase, Plan
from holdfast.model.queue import CellState
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.queueing.working import Work

pytestmark = pytest.mark.process


def plan(directory: Path, name: str, script: str) -> Plan:
    return Plan(
        record_path=f"{directory}/{name}.json",
        log_path=f"{directory}/{name}.log",
        command=("/bin/sh", "-c", script),
        workdir=str(directory),
        environ={"PATH": os.environ["PATH"]},
        umask=0o022,
        nice=None,
        limit_s=None,
        grace_s=5.0,
        identity={"run_id": f"claim-{name}", "group": "g", "name": name},
    )


def test_what_is_taken_back_from_a_lane_is_not_begun(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    plans = [plan(tmp_path, "a", f"read line < {gate}"), *(plan(tmp_path, name, "echo >> ran") for name in "bc")]
    pid, tokens = lanes.fork(plans, lanes.Fence(str(tmp_path)))
    wait_until((tmp_path / "a.json").exists, what="the first is at work")
    back = lanes.take_back(tokens)
    gate.write_text("on\n")
    os.waitpid(pid, 0)
    assert (back, lanes.take_back(tokens)) == ([1, 2], [])
    os.close(tokens)
    assert '"exit_code": 0' in (tmp_path / "a.json").read_text()
    assert not (tmp_path / "ran").exists()


@pytest.mark.requirement("QUEUE-01")
def test_a_lane_of_an_earlier_worker_ends_its_cell_and_begins_no_other(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    plans = [plan(tmp_path, "a", f"read line < {gate}; exit 3"), plan(tmp_path, "b", "echo >> ran")]
    pid, tokens = lanes.fork(plans, lanes.Fence(str(tmp_path)))
    wait_until((tmp_path / "a.json").exists, what="the first is at work")
    lanes.Fence(str(tmp_path))
    gate.write_text("on\n")
    os.waitpid(pid, 0)
    os.close(tokens)
    assert '"exit_code": 3' in (tmp_path / "a.json").read_text()
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "b.json").exists()


def test_a_stop_ends_its_own_cell_and_not_the_next_of_the_lane(work: Work, tmp_path: Path) -> None:
    script = f"echo >> {tmp_path}/ran; test $HOLDFAST_CELL != c6 || exec sleep 60"
    work.submit({f"c{n}": ("/bin/sh", "-c", script) for n in range(12)}, lean=True, max_parallel=1)

    def look() -> bool:
        cell = work.cells()["c6"]
        return cell.run_id is not None and lean.look(cell).phase is Phase.LIVE

    wait_until(look, what="the long one is at work")
    assert lean.look(work.cells()["c6"]).lane
    assert lean.stop(work.cells()["c6"])
    work.wait_left()
    states = work.states()
    assert states.pop("c6") is CellState.CANCELLED
    assert set(states.values()) == {CellState.DONE}
    assert len((tmp_path / "ran").read_text().splitlines()) == 12
