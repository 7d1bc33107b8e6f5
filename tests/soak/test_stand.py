"""Campaigns behind ``make soak``: a supervisor in the foreground is signalled and killed at random instants.

``HOLDFAST_SOAK_STANDS`` sets how many (200), ``HOLDFAST_SOAK_SEED`` repeats a campaign; each failure names its seed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.observe import observe_run
from holdfast.host.process import processes
from holdfast.model import wire
from tests.agent.driving import job
from tests.agent.standing import AS_INIT, SAVES, STOPS, hears, read_exit
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.standing import Standing, Stands

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(7200)]

STANDS = int(os.environ.get("HOLDFAST_SOAK_STANDS", "200"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))
LATEST_S = 2.0
BUSY = 75
IN_INTERPRETER = 1
"""How Python 3.11 ends for a SIGINT while it starts, behind its handler: "Fatal Python error: init_sys_streams" and the
like, or "KeyboardInterrupt" alone; in no case with a frame of a file of ours."""
CODES = {signal.SIGUSR1: 143, signal.SIGUSR2: 143, signal.SIGTERM: 143}


@pytest.mark.parametrize("kind", ["process", "init"])
def test_no_signal_is_lost_at_any_instant(stands: Stands, kind: str) -> None:
    """Once there is a run it ends with a record; before, the interpreter may still end as any process does."""
    draw, early = random.Random(f"{SEED} {kind}"), 0
    for count in range(STANDS):
        number = draw.choice(STOPS)
        order = stands.order(*SAVES)
        standing = stands(order, "--term", "preemption", prefix=AS_INIT if kind == "init" else ())
        if kind == "init":
            # The kernel drops what process 1 has no handler for: that is before our first instruction.
            pid = standing.pid()
            wait_until(lambda pid=pid: hears(pid), what="our first instruction was reached")  # type: ignore[misc]
        time.sleep(draw.uniform(0.0, LATEST_S) ** 2 / LATEST_S)
        standing.signal(number)
        code = standing.end(60.0)
        said = standing.said()
        in_interpreter = number == signal.SIGINT and code == IN_INTERPRETER and "/holdfast/" not in said[1]
        told = f"seed {SEED}, {kind} {count}, {number}: {code} {said}"
        if kind == "process" and (code == -number or in_interpreter):
            early += 1
            assert not os.path.exists(f"{order[1].run_dir}/{wire.RUN}"), told
            continue
        assert code == CODES.get(number, 130), told
        assert read_exit(order[1])["exit_code"] == code, told
        order[1].assert_gone()
    print(f"{early} of {STANDS} came before the first instruction")


def test_twenty_that_start_at_once_are_one(stands: Stands) -> None:
    for count in range(max(1, STANDS // 20)):
        order = stands.order("sh", "-c", 'echo x >> "$HOLDFAST_ARTIFACT_DIR/ran"; echo ready; sleep 3')
        codes = [standing.end(120.0) for standing in [stands(order) for _ in range(20)]]
        assert set(codes) <= {0, BUSY}, (SEED, count, codes)
        assert 0 in codes
        assert Path(order[1].run_dir, wire.ARTIFACTS, "ran").read_text() == "x\n"
        assert observe_run(order[1].run_dir).attempts == (1,)


def test_a_kill_at_any_instant_is_followed_by_the_next(stands: Stands) -> None:
    """Killed, and at once begun again with --next: what was left is over before anything new begins."""
    draw = random.Random(f"{SEED} kill")
    for count in range(max(1, STANDS // 4)):
        order = stands.order(*(SAVES if draw.random() < 0.5 else job("ignore_term")), grace_s=0.2)
        first = stands(order, prefix=AS_INIT if draw.random() < 0.3 else ())
        time.sleep(draw.uniform(0.0, LATEST_S))
        os.kill(first.pid(), signal.SIGKILL)
        first.end()
        second = stands(order, "--next", "requeue")
        _wait_ready(second, f"seed {SEED}, kill {count}")
        second.signal(signal.SIGUSR1)
        assert second.end(60.0) == 143, (SEED, count, second.said())
        for attempt in observe_run(order[1].run_dir).attempts:
            order[1].attempt = attempt
            assert read_exit(order[1])["outcome"] in ("lost", "failed", "preempted"), (SEED, count)
        order[1].assert_gone()


def _wait_ready(standing: Standing, told: str) -> None:
    """Its own attempt, whichever that is, is at work, and nothing of another one."""
    run = standing.run

    def look() -> bool:
        attempts = observe_run(run.run_dir).attempts
        run.attempt = max(attempts, default=1)
        if standing.process.poll() is not None:
            raise AssertionError(f"{told}: {standing.said()}")
        return bool(attempts) and b"ready\n" in run.output() and run.supervisor().pid == standing.process.pid

    wait_until(look, what=told)
    others = [attempt for attempt in range(1, run.attempt) if processes.find_marked(run.run_id, attempt)]
    assert not others, f"{told}: attempts {others} are still at work"
