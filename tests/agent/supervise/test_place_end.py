"""A place that ends its supervisor at another moment than it said: the job is told, beside what it was told before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.agent.supervise.recorder import Recorder
from holdfast.agent.supervise.timers import Timers
from holdfast.agent.supervise.watch import place_end
from holdfast.agent.supervise.watch.place_end import PlaceEndWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.context import SupervisorContext

pytestmark = pytest.mark.files


class Context:
    """What of a supervisor's context is needed here, and what became of it."""

    def __init__(self, directory: Path) -> None:
        """Nothing was written yet."""
        self.directory = directory
        self.loop, self.timers = self, Timers()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.recorder = Notes(directory, self.events)

    def run_child(
        self, work: Callable[[], float | None], then: Callable[[float | None], None], _: object, *, within_s: float
    ) -> None:
        assert within_s > 0
        then(work())

    def read(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads((self.directory / "deadline.json").read_text()))


class Notes(Recorder):
    """The records of an attempt in this directory, and its events."""

    def __init__(self, directory: Path, events: list[tuple[str, dict[str, Any]]]) -> None:
        """Nothing was written yet."""
        self.directory, self.events = str(directory), events

    def commit(self, name: str, data: bytes, *, durable: bool = True) -> None:
        assert not durable
        Path(self.directory, name).write_bytes(data)

    def event(self, event: str, **data: object) -> None:
        self.events.append((event, data))


class Place:
    """A place that was asked so often, and says these ends one after the other."""

    def __init__(self, *ends: float | None) -> None:
        """Nothing was said yet."""
        self.end_s: float | None = None
        self.ends = [*ends]

    def ask_end(self) -> float | None:
        return self.ends.pop(0)


@pytest.mark.requirement("LIB-03")
def test_a_moved_end_is_told_and_nothing_else_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_end, "EVERY_S", 0.0)
    place = Place(None, 2_000_000_000.0, 2_000_000_000.0, None)
    context = Context(tmp_path)
    shared = cast("SupervisorContext", context)
    PlaceEndWatch(shared, place).begin()
    assert len(place.ends) == 4, "whoever stands there has just asked"
    context.timers.run_due()
    assert not (tmp_path / "deadline.json").exists()
    context.recorder.note_deadlines(deadline=1.5)
    context.timers.run_due()
    assert context.read() == {"schema": 1, "deadline": 1.5, "place_end": 2_000_000_000.0}
    assert context.events == [("place_end", {"at": "2033-05-18T03:33:20.000Z"})]
    context.recorder.note_deadlines(deadline=None)
    assert context.read() == {"schema": 1, "deadline": None, "place_end": 2_000_000_000.0}
    context.timers.run_due()
    context.timers.run_due()
    assert len(context.events) == 1
    assert (place.end_s, place.ends) == (2_000_000_000.0, [])
    assert context.timers.is_armed("place_end")


def test_a_scheduler_that_does_not_answer_holds_the_supervisors_loop_up_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_end, "EVERY_S", 0.0)
    asked: list[object] = []
    context = Context(tmp_path)
    monkeypatch.setattr(context, "run_child", lambda work, *_, **__: asked.append(work))
    place = Place()
    PlaceEndWatch(cast("SupervisorContext", context), place).begin()
    context.timers.run_due()
    assert asked == [place.ask_end], "only a child asks"
    assert context.timers.is_armed("place_end")
