"""The declared smoke test before a job: once for each state of the code, on the CPU, bounded (PRE-12)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from holdfast.model import wire
from holdfast.model.job import Timeouts
from tests.agent.ordering import OrderBox, make_order
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.requirement("PRE-12")]


def read_smoke(run_dir: str) -> dict[str, str]:
    """The finding of the smoke test of a run."""
    found = json.loads(Path(run_dir, "attempts/1", wire.PREFLIGHT).read_text())["findings"]
    return next(one for one in found if one["id"] == "smoke")


def test_a_failing_smoke_test_refuses_the_order_with_its_last_words(order_box: OrderBox, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    smoke = ("sh", "-c", "echo one batch; echo 'shapes do not match' >&2; exit 3")
    order_box.submit(make_order("touch", str(ran), job={"smoke": smoke}))
    assert order_box.ended() == 78
    found = read_smoke(order_box.run_dir())
    assert found["level"] == "fail"
    assert "ended with exit code 3 after" in found["evidence"]
    assert found["evidence"].endswith("it said last: one batch | shapes do not match")
    assert not ran.exists()


def test_it_sees_no_card_and_the_setup_and_counts_a_traceback(order_box: OrderBox) -> None:
    script = 'echo "$CUDA_VISIBLE_DEVICES,$WANDB_MODE,$GREETING"; echo "Traceback (most recent call last):"'
    job = {"smoke": ("sh", "-c", script), "setup": ("export GREETING=hello",)}
    order_box.submit(make_order("true", job=job))
    assert order_box.ended() == 78
    found = read_smoke(order_box.run_dir())
    assert "ended with 0 and a traceback; it said last: -1,disabled,hello" in found["evidence"]
    assert found["subject"] == " ".join(job["smoke"])  # without the lines of setup around it


@pytest.mark.slow
def test_one_that_hangs_is_ended_with_all_that_it_began(order_box: OrderBox, tmp_path: Path) -> None:
    job = {
        "smoke": ("sh", "-c", f"echo waiting; setsid sleep 600 & echo $! > {tmp_path}/pid; wait"),
        "timeouts": Timeouts(5.0),
    }
    order_box.submit(make_order("true", job=job))
    assert order_box.ended() == 78
    assert re.search("did not end within [34] s; it said last: waiting", read_smoke(order_box.run_dir())["evidence"])
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="the end of what the smoke test began")
