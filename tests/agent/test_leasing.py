"""A reading of the cards that never comes back: the run is refused in bounded time, and its child is gone."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.agent import leasing
from holdfast.agent.leasing import CardLease
from holdfast.agent.timers import Timers
from holdfast.core.events import LeaseFailed
from holdfast.core.rules import Rules
from holdfast.model.job import JobSpec
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent.context import Context

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.requirement("RAIL-15")
def test_RAIL_15_cards_that_never_answer_refuse_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "pid"

    def hang(*_: object) -> object:
        note.write_text(str(os.getpid()), encoding="ascii")
        signal.pause()
        return None

    monkeypatch.setattr(leasing, "_read_and_sample", hang)
    monkeypatch.setattr(leasing, "FIRST_READING_S", 0.3)
    monkeypatch.setattr(leasing, "READING_MARGIN_S", 0.2)
    timers, emitted, listened = Timers(), list[object](), dict[int, object]()
    loop = SimpleNamespace(timers=timers, add=listened.__setitem__, remove=lambda fd: listened.pop(fd, None))
    context = SimpleNamespace(spec=JobSpec("t", ("x",), "/"), rules=Rules(), environ={}, loop=loop, emit=emitted.append)
    lease = CardLease(cast("Context", context), lambda: None)
    lease.begin()
    wait_until(lambda: note.exists() and note.read_text(encoding="ascii") != "", what="the child to hang")
    assert listened
    assert timers.is_armed("reading")

    def turn() -> bool:
        timers.run_due()
        return bool(emitted)

    wait_until(turn, what="the limit")
    (event,) = emitted
    assert isinstance(event, LeaseFailed)
    assert (event.refusal.code, event.refusal.exit_code) == ("gpu_unreadable", 78)
    assert "did not answer within 0.5 s" in event.refusal.message
    assert not listened
    assert not lease.is_deciding
    wait_until(lambda: not os.path.exists(f"/proc/{note.read_text(encoding='ascii')}"), what="the child's end")
