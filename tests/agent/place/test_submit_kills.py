"""The entry ``submit`` is killed before each call that changes something: no run or one, and asking again finishes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.agent.killing import build_library, is_busy
from tests.agent.ordering import RUN_ID, OrderBox, count_job, make_order
from tests.budget import examples
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

FEW = 5


def _kill(box: OrderBox, library: str, tmp_path: Path, at: int) -> str:
    """What is wrong after a submit was killed at a step and asked again; empty when nothing is."""
    command, ran = count_job(tmp_path)
    ran.unlink(missing_ok=True)
    run_id = f"20261122-104501-job-{at:04x}"
    order = make_order(*command, run_id=run_id)
    box.submit(order, environ={"LD_PRELOAD": library, "KILL_WHO": "front", "KILL_AT": str(at)})
    there = [name for name in os.listdir(box.root) if name == run_id] if os.path.isdir(box.root) else []
    answer = box.submit(order)
    if answer["code"] != 0 or answer["problem"] is not None:
        return f"asked again it answered {answer}"
    if answer["run"]["fresh"] is bool(there):
        return f"{there} was there, and the answer was {answer['run']}"
    if (code := box.ended(run_id)) != 3:
        return f"it ended with {code}"
    times = ran.read_text().count("x")
    return "" if times == 1 else f"the job ran {times} times"


def _count_steps(box: OrderBox, library: str, tmp_path: Path) -> int:
    counted = tmp_path / "count"
    told = {"LD_PRELOAD": library, "KILL_WHO": "front", "KILL_AT": "0", "KILL_COUNT": str(counted)}
    box.submit(make_order("true"), environ=told)
    box.ended(RUN_ID)
    return counted.stat().st_size


def _check(box: OrderBox, tmp_path: Path, most: int) -> None:
    library = build_library(tmp_path)
    total = _count_steps(box, library, tmp_path)
    assert total > FEW, "the library is not in the process"
    step = max(1, total // most)
    problems = [f"step {at} of {total}: {_kill(box, library, tmp_path, at)}" for at in range(1, total + 1, step)]
    wrong = [problem for problem in problems if not problem.endswith(": ")]
    assert not wrong, "\n".join(wrong)
    wait_until(lambda: not any(map(is_busy, os.listdir(box.root))))


@pytest.mark.slow
@pytest.mark.requirement("XPORT-07")
@pytest.mark.timeout(180)
def test_a_submit_that_is_killed_leaves_no_run_or_one(order_box: OrderBox, tmp_path: Path) -> None:
    _check(order_box, tmp_path, examples(FEW))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_submit_that_is_killed_at_any_step(order_box: OrderBox, tmp_path: Path) -> None:
    _check(order_box, tmp_path, 10_000)
