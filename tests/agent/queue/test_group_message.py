"""A worker that is killed between the end of a group and its message: seen by a patrol, told by the next worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.patrol.reconcile import ReconcileReport
from holdfast.agent.queue.change.work import add_queue
from holdfast.agent.queue.view.untold import list_untold
from holdfast.host.process import processes
from holdfast.model.job import Notify
from holdfast.model.queue import JobState
from tests.agent.messages.endpoints import make_program
from tests.agent.queue.working import payload
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.queue.working import Work

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.requirement("MON-17")]

NOTHING = ReconcileReport((), dry_run=False, runs=0, sentinels=0, unread=(), exit_code=0)
KILL_WORKER = """cat > {0}/last
if [ ! -e {0}/killed ]; then
  touch {0}/killed
  kill -9 $(sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p' {1}/worker.lock)
  exit 1
fi
mv {0}/last {0}/heard"""


@pytest.fixture(autouse=True)
def this_queue(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process are about the queue of the test."""
    for name in ("HOLDFAST_QUEUE", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, work.environ[name])


def test_the_end_of_a_group_whose_worker_is_killed_is_told(work: Work, tmp_path: Path) -> None:
    hook = make_program(tmp_path / "hook", KILL_WORKER.format(tmp_path, work.directory))
    work.submit({"a": payload(tmp_path / "ran", 0)}, notify=Notify(command=(hook,), on=("group",)))
    wait_until((tmp_path / "killed").exists, what=f"the message is on its way; {work.log()}")
    wait_until(lambda: not any(map(processes.is_alive, work.workers)), what="the worker is dead")
    assert work.states() == {"a": JobState.DONE}
    os.utime(f"{work.directory}/worker.log", (0, 0))
    assert list_untold() == {"group g": "group g: nothing goes on: 1 done; nobody was told"}
    assert add_queue(NOTHING, dry_run=True).exit_code == 1
    assert not (tmp_path / "heard").exists()
    repaired = add_queue(NOTHING, dry_run=False)
    assert [(one.kind.value, one.done) for one in repaired.repairs] == [("queue", True)]
    wait_until((tmp_path / "heard").exists, what=f"it is told; {work.log()}")
    work.wait_left()
    assert list_untold() == {}
    assert add_queue(NOTHING, dry_run=False) == NOTHING


def test_jobs_whose_worker_is_gone_are_seen_and_get_another(work: Work, tmp_path: Path) -> None:
    (job_id,) = work.submit({"a": payload(tmp_path / "ran", 0)}, start=False)
    assert list_untold() == {}, "it waits, as of a queue that nobody works"
    with work.open() as queue:
        queue.move_on(job_id, JobState.CLAIMED, run_id="20261120-104501-t-3fa2", runs_root=work.runs, attempts=0)
    assert list_untold() == {
        "queue": "1 job of the queue had not ended when its worker did; `holdfast reconcile` starts one"
    }
    assert add_queue(NOTHING, dry_run=False).exit_code == 0
    work.wait_state("a", JobState.DONE)
    work.wait_left()
