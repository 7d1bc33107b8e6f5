"""A request for other limits, on the supervisor's side alone: what it may not believe, and what it must not begin."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.agent.requests import LIMITS_REFUSED
from holdfast.agent.supervise.limits_request import LimitsRequests
from holdfast.agent.supervise.recorder import Recorder
from holdfast.core.rules.rules import Rules
from holdfast.core.run.events import RunPlan
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.run import LimitsRequest, PlaceGone
from tests.rundirs import make_run, running

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.job import JobControl
    from holdfast.agent.supervise.lease.lease import Lease

pytestmark = pytest.mark.files


class Desk:
    """The files of a run, and a job that says whether its limits were touched."""

    def __init__(self, root: Path) -> None:
        self.run_dir = make_run(root, state=running())
        self.recorder = Recorder(self.run_dir, os.path.basename(self.run_dir), 1)
        self.touched = False
        spec = JobSpec(command=("true",), name="t", workdir="/")
        context = SimpleNamespace(recorder=self.recorder, spec=spec, rules=Rules(), run_dir=self.run_dir, attempt=1)
        job = SimpleNamespace(change_limits=self._touch, watch_limits=self._touch, containment=None)
        lease = SimpleNamespace(note_limits=lambda: None)
        self.requests = LimitsRequests(
            cast("SupervisorContext", context), cast("JobControl", job), cast("Lease", lease)
        )

    def _touch(self, *_: object, **__: object) -> None:
        self.touched = True

    def want(self) -> None:
        request = LimitsRequest("00000001", "anna", utc_now(), {"limits.memory_bytes": 1 << 30})
        files.commit(self.recorder.path(wire.LIMITS_WANTED), wire.to_bytes(request))

    def look(self) -> bool:
        return self.requests.look(running(), RunPlan(grace_s=5.0, created_epoch_s=0.0), 0.0) is not None

    def events(self) -> list[str]:
        lines = files.read_last_lines(self.recorder.path(wire.EVENTS))
        return [str(wire.parse_object(line, "")["event"]) for line in lines]


def test_what_is_asked_for_is_done_and_on_record(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.want()
    assert (desk.look(), desk.touched) == (True, True)
    assert b"limits.memory_bytes" in files.read_bytes(desk.recorder.path(wire.JOB))


def test_limits_are_not_touched_where_the_change_cannot_be_recorded(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    os.unlink(f"{desk.run_dir}/{wire.RUN}")
    desk.want()
    assert (desk.look(), desk.touched) == (False, False)
    assert desk.events()[-1] == LIMITS_REFUSED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_another_account_says_of_limits_or_of_a_place_is_not_believed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.want()
    state = desk.recorder.read_state()
    files.commit(desk.recorder.path(wire.GONE), wire.to_bytes(PlaceGone("anna", utc_now(), "gone", state.box)))
    assert desk.recorder.read_gone() is not None
    for name in (wire.LIMITS_WANTED, wire.GONE):
        os.chown(desk.recorder.path(name), 65534, 65534)
    assert (desk.look(), desk.touched, desk.recorder.read_gone()) == (False, False, None)
