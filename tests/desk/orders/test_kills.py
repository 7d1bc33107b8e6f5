"""The desk is killed, or its link is cut, at every point of a submission: no run or one, and the same command finishes.

The desk's process dies before each of its calls that changes something (`tests.agent.killing`); between two of these
nothing differs. Every step is taken by ``make soak``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.orders.journal import Step, list_orders, read_journal
from tests.agent.killing import FRONT_NAME, build_library
from tests.budget import examples
from tests.desk.orders.ordering import PLACE, Desk
from tests.desk.route.test_send import list_calls
from tests.proxy import Proxy
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sshd import Sshd

pytestmark = pytest.mark.process

FEW = 4
QUICK = ("-d", "--prove", "0", "--name", FRONT_NAME)


@pytest.fixture
def near(tmp_path: Path, isolated_environment: dict[str, str]) -> Iterator[Desk]:
    """A desk whose place has no link in between."""
    assert isolated_environment
    made = Desk(tmp_path, f"{tmp_path}/box")
    yield made
    made.clear()


def _job(tmp_path: Path) -> tuple[str, ...]:
    return (*QUICK, "--", "sh", "-c", f"echo x >> {tmp_path}/ran; exit 0")


def _count(tmp_path: Path) -> int:
    file = tmp_path / "ran"
    return file.read_text().count("x") if file.exists() else 0


def _kill(desk: Desk, library: str, tmp_path: Path, at: int) -> str:
    """What is wrong after the desk was killed at a step; empty when nothing is."""
    runs, ran = desk.list_runs(), _count(tmp_path)
    desk.run(*_job(tmp_path), environ={"LD_PRELOAD": library, "KILL_WHO": "front", "KILL_AT": str(at)})
    newest = list(list_orders(read_journal(PLACE)).values())[-1:]
    answered = bool(newest) and newest[0].step is Step.TAKEN and newest[0].run_id not in runs
    if not answered:
        done = desk.run(*_job(tmp_path))
        if done.returncode != 0:
            return f"the same command ended with {done.returncode}: {done.stderr}"
    new = desk.list_runs() - runs
    for run_id in new:
        desk.ended(run_id)
    times = _count(tmp_path) - ran
    return "" if (len(new), times) == (1, 1) else f"{len(new)} runs, and the job ran {times} times; {answered=}"


def _check(desk: Desk, tmp_path: Path, most: int) -> None:
    library, counted = build_library(tmp_path), tmp_path / "count"
    assert desk.run(*_job(tmp_path)).returncode == 0
    told = {"LD_PRELOAD": library, "KILL_WHO": "front", "KILL_AT": "0", "KILL_COUNT": str(counted)}
    assert desk.run(*_job(tmp_path), environ=told).returncode == 0
    desk.clear()
    total = counted.stat().st_size
    assert total > FEW, "the library is not in the process"
    step = max(1, total // most)
    problems = {at: _kill(desk, library, tmp_path, at) for at in range(1, total + 1, step)}
    wrong = [f"step {at} of {total}: {problem}" for at, problem in problems.items() if problem]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.requirement("XPORT-07")
@pytest.mark.timeout(240)
def test_a_desk_that_is_killed_leaves_no_run_or_one_and_the_same_command_finishes(near: Desk, tmp_path: Path) -> None:
    _check(near, tmp_path, examples(FEW))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_desk_that_is_killed_at_any_step(near: Desk, tmp_path: Path) -> None:
    _check(near, tmp_path, 100_000)


@pytest.mark.slow
@pytest.mark.requirement("XPORT-07")
@pytest.mark.timeout(240)
def test_a_link_that_is_cut_while_an_order_is_answered_leaves_one_run(ssh_desk: Sshd, tmp_path: Path) -> None:
    with Proxy(ssh_desk.port) as link:
        root = f"{ssh_desk.home('box')}/{os.path.basename(tmp_path)}"
        desk = Desk(tmp_path, root, host=ssh_desk.alias("box", via=link.port))
        command = (*QUICK, "--", "sh", "-c", "echo ran")
        assert desk.run(*command).returncode == 0
        for number, count in enumerate((1, 400, 1500)):
            # The connection is there already: the next bytes are answers.
            link.cut_after(count)
            done = desk.run(*command)
            assert done.returncode == 0, done.stderr
            print(count, done.stderr)
            assert len(desk.list_runs()) == number + 2, done.stderr
        desk.clear()
        outputs = {(desk.root / run_id / "attempts/1/output.log").read_text() for run_id in desk.list_runs()}
        assert outputs == {"ran\n"}


@pytest.mark.requirement("XPORT-07")
def test_a_desk_that_is_ended_while_it_waits_for_json_has_not_seen_the_end(near: Desk, tmp_path: Path) -> None:
    """Seen: the order counted as answered, and the same command began a second run."""
    job = f"echo x >> {tmp_path}/ran; until [ -e {tmp_path}/go ]; do sleep 0.1; done; exit 9"
    words = ("run", "--on", PLACE, "--json", "--", "sh", "-c", job)
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        cwd=near.tree,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as first:
        wait_until(lambda: _count(tmp_path), what="the job runs")
        (run_id,) = near.list_runs()
        wait_until(lambda: list_orders(read_journal(PLACE))[run_id].step is Step.FOLLOWED, what="it is followed")
        # Ended there, by whoever: it prints how the run stands, which is no end.
        calls = wait_until(lambda: list_calls(str(near.root)), what="it is followed there")
        for pid in calls:
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: set(list_calls(str(near.root))) - set(calls), what="it is followed again")
        assert first.poll() is None
        first.terminate()
        out, _ = first.communicate(timeout=LIMIT_S)
    assert (first.returncode, out) == (143, b"")
    (tmp_path / "go").touch()
    again = near.say(*words)
    assert (again.returncode, json.loads(again.stdout)["run_id"]) == (9, run_id), again.stderr
    assert (near.list_runs(), _count(tmp_path)) == ({run_id}, 1)
    # Now it was seen: the same command begins another one.
    assert json.loads(near.say(*words).stdout)["run_id"] != run_id
