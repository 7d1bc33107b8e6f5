"""``run --on a,b``: which of several places gets a job."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.desk.orders import choose_place as module
from holdfast.desk.orders.build import Draft
from holdfast.desk.orders.choose_place import choose_place
from holdfast.model.errors import PlaceError, PreflightFailed, ResourceBusy, Unreachable
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import JobSpec
from holdfast.model.place import Place
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.pure

JOB = JobSpec(name="train", command=("true",), workdir="/", gpus=GpuRequest(count=2))
DRAFT = Draft(JOB, "0" * 64, None)
FREE, BUSY, UNREAD = ({"free": free, "total": 4, "reason": why} for free, why in ((3, ""), (1, ""), (0, "no driver")))


class Box:
    def __init__(self, answer: Mapping[str, Any] | None) -> None:
        self.answer = answer

    def entry(self, name: str, *, limit_s: float) -> Mapping[str, Any]:
        assert (name, limit_s > 0) == ("cards", True)
        if self.answer is None:
            raise Unreachable("it does not answer")
        return self.answer


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Mapping[str, Any] | None]:
    """What each place says of its cards; `lab` is one of Slurm."""
    said: dict[str, Mapping[str, Any] | None] = {}
    kinds = {"lab": "slurm"}
    monkeypatch.setattr(module, "find_place", lambda name: Place(name, host=name, kind=kinds.get(name, "ssh")))
    monkeypatch.setattr(module, "open_box", lambda place: Box(said[place.name]))
    monkeypatch.setattr(module, "is_begun", lambda *_: False)
    return said


def choose(names: str, told: list[str] | None = None, *, waits: bool = False, draft: Draft = DRAFT) -> str:
    return choose_place(names, draft, waits=waits, tell=(told if told is not None else []).append).name


def test_the_first_with_enough_cards_gets_it_and_the_others_are_told(answers: dict[str, Any]) -> None:
    answers.update(a=None, b=BUSY, c=UNREAD, d=FREE, e=FREE)
    told: list[str] = []
    assert choose("a,b,c,d,e", told) == "d"
    assert [words.split()[0] for words in told] == ["a", "b", "c"]
    assert "1 of 4" in told[1]
    assert choose("b,lab,d") == "lab"
    assert choose("b", draft=replace(DRAFT, job=replace(JOB, gpus=GpuRequest()))) == "b"


def test_without_room_it_is_refused_or_waits_where_somebody_answers(answers: dict[str, Any]) -> None:
    answers.update(a=None, b=BUSY)
    with pytest.raises(ResourceBusy, match="b"):
        choose("a,b")
    assert choose("a,b", waits=True) == "b"
    with pytest.raises(PlaceError, match="no place answers"):
        choose("a", waits=True)


def test_a_place_that_never_has_the_cards_is_not_stood_in_line_at(answers: dict[str, Any]) -> None:
    answers.update(a=None, small={"free": 1, "total": 1, "reason": ""}, b=BUSY)
    with pytest.raises(PreflightFailed, match="of the places that answer none has 2 cards: small") as caught:
        choose("a,small", waits=True)
    assert "--gpus" in caught.value.hint
    assert choose("small,b", waits=True) == "b"
    with pytest.raises(ResourceBusy, match=r"no place has the cards now: b$"):
        choose("small,b")


def test_places_that_give_no_answer_are_waited_for_at_once(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answers once all are asked; the one behind the choice after the choice."""
    together, chosen = threading.Barrier(3), threading.Event()

    class SlowBox(Box):
        def entry(self, name: str, *, limit_s: float) -> Mapping[str, Any]:
            if self.answer is answers["d"]:
                chosen.wait(10)
            else:
                together.wait(10)
            return super().entry(name, limit_s=limit_s)

    answers.update(a=None, b=None, c=FREE, d={**FREE})
    monkeypatch.setattr(module, "open_box", lambda place: SlowBox(answers[place.name]))
    told: list[str] = []
    before = set(threading.enumerate())
    assert choose("a,b,c,d", told) == "c"
    assert [words.split()[0] for words in told] == ["a", "b"]
    (left,) = set(threading.enumerate()) - before
    chosen.set()
    left.join()


def test_what_was_begun_somewhere_goes_on_there(answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    answers.update(a=FREE, b=None)
    monkeypatch.setattr(module, "is_begun", lambda _draft, place: place.name == "b")
    assert choose("a,b") == "b"
