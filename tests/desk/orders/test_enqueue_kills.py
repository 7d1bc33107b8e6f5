"""The desk is killed, or its link is cut, at every point of handing jobs in: none or all of them, and each once."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.orders.journal import Step, list_orders, read_journal
from holdfast.store.queue.queue import Queue
from tests.agent.killing import FRONT_NAME, build_library
from tests.budget import examples
from tests.desk.orders.ordering import PLACE, Desk
from tests.proxy import Proxy
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import Sshd

pytestmark = pytest.mark.process

FEW = 4


class QueueDesk(Desk):
    """A desk whose place, without a link in between, has a queue that nobody works at."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, f"{tmp_path}/box")
        self.queue = f"{tmp_path}/queue"
        self.quiet = {"HOLDFAST_QUEUE": self.queue, "HOLDFAST_RUN_ID": "a job of holdfast starts no worker"}

    def count(self) -> int:
        """How many jobs are in the queue."""
        if not os.path.isdir(self.queue):
            return 0
        with Queue(self.queue) as queue:
            return len(queue.jobs())


WORDS = ("submit", "--on", PLACE, "--group", FRONT_NAME, "--", "python3", "train.py")
"""Nothing names the job: said again after an answer it is another one, `train-2`."""


def _kill(desk: QueueDesk, library: str, at: int) -> str:
    """What is wrong after the desk was killed at a step; empty when nothing is."""
    before, known = desk.count(), set(list_orders(read_journal(PLACE)))
    desk.say(*WORDS, environ={**desk.quiet, "LD_PRELOAD": library, "KILL_WHO": "front", "KILL_AT": str(at)})
    orders = list_orders(read_journal(PLACE))
    if not any(entry.step is Step.TAKEN for order_id, entry in orders.items() if order_id not in known):
        done = desk.say(*WORDS, environ=desk.quiet)
        if done.returncode != 0:
            return f"the same command ended with {done.returncode}: {done.stderr}"
    unanswered = [entry for entry in list_orders(read_journal(PLACE)).values() if entry.step is not Step.TAKEN]
    new = desk.count() - before
    return "" if (new, unanswered) == (1, []) else f"{new} jobs; {unanswered}"


def _check(desk: QueueDesk, tmp_path: Path, most: int) -> None:
    library, counted = build_library(tmp_path), tmp_path / "count"
    assert desk.say(*WORDS, environ=desk.quiet).returncode == 0
    told = {"LD_PRELOAD": library, "KILL_WHO": "front", "KILL_AT": "0", "KILL_COUNT": str(counted)}
    assert desk.say(*WORDS, environ={**desk.quiet, **told}).returncode == 0
    total = counted.stat().st_size
    assert total > FEW, "the library is not in the process"
    step = max(1, total // most)
    problems = {at: _kill(desk, library, at) for at in range(1, total + 1, step)}
    wrong = [f"step {at} of {total}: {problem}" for at, problem in problems.items() if problem]
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def near(tmp_path: Path, isolated_environment: dict[str, str]) -> QueueDesk:
    assert isolated_environment
    return QueueDesk(tmp_path)


@pytest.mark.slow
@pytest.mark.requirement("XPORT-07")
@pytest.mark.timeout(240)
def test_a_desk_that_is_killed_leaves_no_job_or_all(near: QueueDesk, tmp_path: Path) -> None:
    _check(near, tmp_path, examples(FEW))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_desk_that_is_killed_at_any_step_of_handing_in(near: QueueDesk, tmp_path: Path) -> None:
    _check(near, tmp_path, 100_000)


@pytest.mark.slow
@pytest.mark.requirement("XPORT-07")
@pytest.mark.timeout(240)
def test_a_link_that_is_cut_brings_jobs_once_and_they_run_while_nobody_is_connected(
    ssh_desk: Sshd, tmp_path: Path
) -> None:
    with Proxy(ssh_desk.port) as link:
        root = f"{ssh_desk.home('box')}/{os.path.basename(tmp_path)}"
        desk = Desk(tmp_path, root, host=ssh_desk.alias("box", via=link.port))
        words = ("submit", "--on", PLACE, "--group", os.path.basename(tmp_path))
        assert desk.say(*words, "--paused", "--", "python3", "train.py").returncode == 0
        for number, count in enumerate((1, 600)):
            # The connection is there already: the next bytes are answers.
            link.cut_after(count)
            done = desk.say(*words, "--", "python3", "train.py", "--json")
            assert done.returncode == 0, done.stderr
            listed = desk.say("queue", "ls", words[-1], "--on", PLACE, "--json")
            assert len(json.loads(listed.stdout)["jobs"]) == number + 2, (listed.stdout, done.stderr)
        resumed = desk.say("queue", "resume", words[-1], "--on", PLACE)
        assert resumed.returncode == 0, resumed.stderr
        link.freeze()
        # The account's own files say what became of them: no call goes through.
        wait_until(lambda: len(desk.list_runs()) == 3, what="all three run")
        assert [desk.ended(run_id) for run_id in desk.list_runs()] == [0, 0, 0]
        link.thaw()
        waited = desk.say("wait", f"{PLACE}:{words[-1]}/")
        assert waited.returncode == 0, waited.stdout + waited.stderr
