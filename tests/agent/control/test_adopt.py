"""A run whose place is gone is ended on a person's word, and on nothing less."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.adopt import SILENT_S, adopt_run
from holdfast.agent.control.settle import settle_run
from holdfast.agent.view.observe import observe_run, read_events
from holdfast.agent.view.run_view import RunReach
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, ResourceBusy, UsageError
from holdfast.model.run import Created
from tests.rundirs import dead_process, ended, make_run, running

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model.run import State

pytestmark = pytest.mark.process

REASON = "the pod was deleted"


def leave_silent(run_dir: str, age_s: float = SILENT_S + 60) -> str:
    """As a pod leaves it that was deleted some time ago."""
    directory = wire.attempt_dir(run_dir, 1)
    for entry in os.scandir(directory):
        os.utime(entry.path, (time.time() - age_s,) * 2)
    return run_dir


@pytest.mark.parametrize("state", [running(), Created()], ids=["running", "created"])
def test_a_run_of_a_deleted_pod_is_lost_when_somebody_says_so(tmp_path: Path, state: State) -> None:
    """Seen: a new pod has a new host name, and the run of the old one stayed `running` for ever."""
    run_dir = leave_silent(make_run(tmp_path, state=state, supervisor=dead_process(), host="pod-abc12"))
    before = observe_run(run_dir)
    assert (before.reach, before.vanished) == (RunReach.ELSEWHERE, False)
    assert not settle_run(before)
    done = adopt_run(run_dir, environ=os.environ, gone=REASON)
    assert done.condition == ("lost" if not isinstance(state, Created) else done.condition)
    after = observe_run(run_dir)
    assert after.over
    assert after.reach is RunReach.HERE, "it is this box's now, and can be begun again here"
    assert after.end is not None
    assert REASON in (after.end.evidence + " ".join(after.end.warnings))
    (event,) = [one for one in read_events(run_dir, 1) if one["event"] == "place_gone"]
    assert event["data"]["reason"] == REASON
    assert event["data"]["box"]["host"] == "pod-abc12"
    assert os.path.exists(f"{after.attempt_dir}/{wire.GONE}")


def test_what_speaks_against_it_is_looked_at_first(tmp_path: Path) -> None:
    fresh = make_run(tmp_path, "20261120-100000-fresh-0001", running(), supervisor=dead_process(), host="pod-abc12")
    _refused(fresh, UsageError, "its place may live")
    held = make_run(tmp_path, "20261120-100000-held-0002", running(), supervisor=dead_process(), host="pod-abc12")
    with open(f"{leave_silent(held)}/{wire.SUPERVISOR_LOCK}", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _refused(held, ResourceBusy, "not gone")
    here = leave_silent(make_run(tmp_path, "20261120-100000-here-0003", running(), supervisor=dead_process()))
    _refused(here, UsageError, "can be judged from here")
    over = leave_silent(make_run(tmp_path, "20261120-100000-over-0004", ended(), host="pod-abc12"))
    _refused(over, UsageError, "has ended")
    _refused(leave_silent(fresh), UsageError, "wants a reason", reason=" \n")
    for run_dir in (fresh, held, here, over):
        assert not os.path.exists(f"{wire.attempt_dir(run_dir, 1)}/{wire.GONE}")


def _refused(run_dir: str, kind: type[HoldfastError], words: str, *, reason: str = REASON) -> None:
    with pytest.raises(kind, match=words):
        adopt_run(run_dir, environ=os.environ, gone=reason)
