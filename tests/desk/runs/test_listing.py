"""One list over many places: who is asked, what a silent one changes (nothing), and what it costs (its deadline)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from holdfast.agent.place.poll import Question, answer_question
from holdfast.desk.runs import listing, registry
from holdfast.desk.runs.answer import read_answer
from holdfast.desk.runs.listing import NOT_ASKED, PlacedRuns, Wanted
from holdfast.desk.runs.poll import poll_places
from holdfast.desk.runs.registry import ABSENT
from holdfast.host.clock import epoch_s, format_utc
from holdfast.model.errors import CutOff, InternalError, Refused, Unreachable
from holdfast.model.place import Place
from holdfast.model.run import Outcome
from holdfast.model.sighting import Poll
from holdfast.transport.base import Transport
from tests.desk.runs.sightings import answer, over, place, row, run_id
from tests.rundirs import ended, make_run
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.files
LONG_S = LIMIT_S
"""A deadline that no test waits for."""
SHORT_S = 0.3


class Boxes:
    """Places that answer what a test says, raise it, or never answer; remembers what was asked."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.asked: dict[str, list[tuple[str, ...]]] = {}
        self.released = threading.Event()

    def open(self, asked: Place) -> FakeBox:
        return FakeBox(self, asked.name)


class FakeBox:
    is_met = True
    transport: Transport

    def __init__(self, boxes: Boxes, name: str) -> None:
        self.boxes, self.name = boxes, name

    def entry(self, name: str, words: Sequence[str] = (), *, limit_s: float) -> dict[str, Any]:
        assert name == "poll"
        assert limit_s > 0
        self.boxes.asked.setdefault(self.name, []).append(tuple(words))
        said = self.boxes.answers[self.name]
        if said is None:  # a black hole, which outlasts every limit
            self.boxes.released.wait()
            raise Unreachable("released")
        if isinstance(said, BaseException):
            raise said
        made = said() if callable(said) else said
        assert isinstance(made, dict)
        return made


@pytest.fixture
def boxes() -> Iterator[Callable[..., Boxes]]:
    made: list[Boxes] = []

    def make(**answers: Any) -> Boxes:
        made.append(Boxes(answers))
        return made[-1]

    yield make
    for each in made:
        each.released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("poll "):
            thread.join(LIMIT_S)


def look(boxes: Boxes, *, deadline_s: float = LONG_S, here: Any = None, **wanted: Any) -> PlacedRuns:
    return listing.list_runs(
        [place(name) for name in boxes.answers],
        Wanted(**wanted),
        open_box=boxes.open,
        look_here=here,
        deadline_s=deadline_s,
    )


def shown(found: PlacedRuns) -> list[tuple[str, str, str, bool, str]]:
    return [(run.place, run.run_id, run.condition, run.fresh, run.reach) for run in found.runs]


def states(found: PlacedRuns) -> dict[str, tuple[str, str]]:
    return {state.place: (state.reach, state.why) for state in found.places}


def saw(name: str, *rows: Any, at: str = "2026-11-22T09:00:00.000Z", **fields: Any) -> None:
    registry.record_poll(read_answer(name, answer(*rows, **fields), at=at))


def test_runs_here_and_elsewhere_in_one_list_newest_first(
    boxes: Callable[..., Boxes], isolated_environment: dict[str, str]
) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], run_id(2), ended())
    found = look(
        boxes(gpu1=answer(row(3), over(1)), gpu2=answer(row(4))), here=lambda most: answer_question(Question((), most))
    )
    assert shown(found) == [
        ("gpu2", run_id(4), "running", True, "here"),
        ("gpu1", run_id(3), "running", True, "here"),
        ("local", run_id(2), "succeeded", True, "here"),
        ("gpu1", run_id(1), "succeeded", True, "here"),
    ]
    assert (found.total, found.known) == (4, 4)


@pytest.mark.requirement("XPORT-09")
@pytest.mark.gotcha("GEN8")
def test_XPORT_09_each_class_of_silence_is_said_and_bends_no_run(boxes: Callable[..., Boxes]) -> None:
    for number, name in enumerate(("a", "b", "c", "d", "e")):
        saw(name, row(number), over(10 + number))
    errors = {
        "a": Unreachable("no such host", details={"why": "dns"}),
        "b": CutOff("the link ended"),
        "c": Refused("the key", details={"why": "auth"}),
        "d": InternalError("no answer that can be read"),
        "e": OSError("no ssh"),
    }
    found = look(boxes(**errors))
    reach = {"a": "dns", "b": "cut_off", "c": "auth", "d": "malformed", "e": "storage"}
    assert states(found) == {name: ("unreachable", why) for name, why in reach.items()}
    assert {(run.condition, run.ended, run.fresh, run.reach, run.seen_at) for run in found.runs} == {
        ("running", False, False, "unreachable", "2026-11-22T09:00:00.000Z"),
        ("succeeded", True, False, "unreachable", "2026-11-22T09:00:00.000Z"),
    }


@pytest.mark.gotcha("U17")
@pytest.mark.gotcha("U18")
def test_black_holes_delay_nobody(boxes: Callable[..., Boxes]) -> None:
    answers = {f"gpu{number}": None if number % 7 == 3 else answer(row(number)) for number in range(20)}
    holes = {name for name, said in answers.items() if said is None}
    for name in holes:
        saw(name, row(50))
    found = look(boxes(**answers), deadline_s=SHORT_S)
    assert len(holes) == 3
    assert {state.place for state in found.places if state.reach == "unreachable"} == holes
    assert sum(run.fresh for run in found.runs) == 17
    assert {run.place for run in found.runs if not run.fresh} == holes
    assert all("no answer within" in state.reason for state in found.places if state.place in holes)


def test_asked_is_who_has_unfinished_runs_or_is_not_known(boxes: Callable[..., Boxes]) -> None:
    saw("busy", row(1), over(2))
    saw("idle", over(3))
    made = boxes(busy=answer(row(1), over(2)), idle=answer(over(3)), new=answer())
    found = look(made)
    assert made.asked == {"busy": [("--limit", "30", run_id(1))], "new": [("--limit", "30")]}
    assert states(found)["idle"] == (NOT_ASKED, "")
    assert [(run.fresh, run.reach) for run in found.runs if run.place == "idle"] == [(False, NOT_ASKED)]
    look(made, everything=True)
    assert len(made.asked["idle"]) == 1


def test_a_place_that_failed_a_moment_ago_is_not_asked_unless_it_is_named(boxes: Callable[..., Boxes]) -> None:
    saw("gpu1", row(1))
    made = boxes(gpu1=Unreachable("no route", details={"why": "timed out"}))
    look(made)
    again = look(made)
    assert len(made.asked["gpu1"]) == 1
    assert states(again) == {"gpu1": ("unreachable", "timed out")}
    (state,) = again.places
    assert (state.reason, state.last_contact) == ("no route", "2026-11-22T09:00:00.000Z")
    look(made, named=True)
    assert len(made.asked["gpu1"]) == 2
    registry.record_poll(Poll("gpu1", format_utc(epoch_s() - 400), unreachable="x"))
    look(made)
    assert len(made.asked["gpu1"]) == 3


def test_of_the_ended_the_newest_of_all_places(boxes: Callable[..., Boxes]) -> None:
    made = boxes(a=answer(*(over(n) for n in (1, 3, 5))), b=answer(row(0), *(over(n) for n in (2, 4, 6))))
    found = look(made, limit=2)
    assert [run.run_id for run in found.runs] == [run_id(6), run_id(5), run_id(0)]
    assert (found.total, found.known) == (7, 7)
    assert [run.run_id for run in look(made, limit=None).runs[-1:]] == [run_id(0)]


OLDEST = ended(Outcome.FAILED, 3)


def make_box(made: Boxes, name: str, *rows: Any) -> None:
    """Have a place answer as a box does: all that have not ended, of the ended the newest, and how many there are."""

    def say() -> dict[str, Any]:
        newest = sorted(rows, key=lambda item: str(item["run_id"]), reverse=True)
        ended_ones = [item for item in newest if item["ended"]][: int(made.asked[name][-1][1])]
        told = [item for item in newest if not item["ended"] or item in ended_ones]
        return answer(*told, total=len(rows), known=len(rows), complete=len(told) == len(rows))

    made.answers[name] = say


@pytest.mark.parametrize(("limits", "times"), [((1, 2, 5, 30), 3), ((30, 5, 2, 1), 1)])
def test_shown_hidden_and_known_add_up_whatever_the_limit(
    limits: tuple[int, ...], times: int, boxes: Callable[..., Boxes], isolated_environment: dict[str, str]
) -> None:
    for number in range(20, 24):
        make_run(isolated_environment["HOLDFAST_RUNS"], run_id(number), OLDEST if number == 20 else ended())
    made = boxes(busy=None, idle=None)
    make_box(made, "busy", row(1), *(over(n) for n in range(2, 8)))
    make_box(made, "idle", over(30), *(over(n, condition="failed", exit_code=1) for n in range(31, 35)))

    def count(limit: int, **wanted: Any) -> tuple[int, int, int]:
        here = None if wanted.get("named") else lambda most: answer_question(Question((), most))
        found = look(made, here=here, limit=limit, **wanted)
        return len(found.runs), found.total, found.known

    # The place whose runs have all ended is asked again only where a longer list may show more of it.
    assert [count(limit) for limit in limits] == [(1 + min(15, limit), 16, 16) for limit in limits]
    assert len(made.asked["idle"]) == times
    assert count(2, named=True) == (3, 12, 12)
    assert count(1, everything=True) == (2, 16, 16)
    assert count(1, everything=True, keep=lambda _, condition, **__: condition == "failed") == (1, 5, 16)
    made.answers["busy"] = Unreachable("no route")
    assert count(2) == (3, 16, 16)
    registry.forget("idle", [run_id(34)])
    assert count(2) == (3, 15, 15)
    make_box(made, "idle", *(over(n) for n in range(30, 34)))
    assert count(2, everything=True) == (3, 15, 15)


def test_a_run_that_is_not_there_any_more_hides_none_that_is(boxes: Callable[..., Boxes]) -> None:
    made = boxes(gpu1=None)
    make_box(made, "gpu1", *(over(n) for n in range(6)))
    look(made, named=True, limit=30)
    make_box(made, "gpu1", *(over(n) for n in range(1, 6)))
    assert [run.condition for run in look(made, named=True, limit=30).runs] == ["succeeded"] * 5 + [ABSENT]
    make_box(made, "gpu1", *(over(n) for n in range(1, 9)))
    found = look(made, named=True, limit=2)
    assert (len(found.runs), found.total, found.known) == (2, 9, 9)


def test_states_select_among_fresh_and_old(boxes: Callable[..., Boxes]) -> None:
    saw("idle", over(1), over(2, condition="failed", exit_code=1))
    made = boxes(idle=answer(), busy=answer(row(3), over(4)))
    found = look(
        made, keep=lambda _, condition, *, ended, failure, moments: condition == "failed" and ended and not failure
    )
    assert [(run.place, run.run_id) for run in found.runs] == [("idle", run_id(2))]
    assert (found.total, found.known) == (1, 4)


def test_names_and_times_select_at_every_place_whatever_the_limit(boxes: Callable[..., Boxes]) -> None:
    saw("idle", over(1), over(2))
    made = boxes(idle=answer(), busy=answer(row(3), over(4)))
    met = []

    def keep(run_id: str, _: str, *, moments: tuple[str | None, ...], **__: object) -> bool:
        met.append((run_id, any(moments)))
        return run_id.startswith("20261120-100002") or run_id == globals()["run_id"](4)

    found = look(made, keep=keep, limit=1)
    assert sorted(met) == [(run_id(number), True) for number in (1, 2, 3, 4)]
    assert (len(found.runs), found.total, found.known) == (1, 2, 4)


def test_two_desks_see_the_same(boxes: Callable[..., Boxes], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    made = boxes(gpu1=answer(row(1), over(2)))
    first = look(made)
    (tmp_path / "other").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    second = look(made)
    assert shown(first) == shown(second)
    assert registry.find("digits")


@pytest.mark.requirement("BSSH-04")
def test_BSSH_04_a_link_that_is_cut_in_the_middle_of_a_look_changes_nothing(boxes: Callable[..., Boxes]) -> None:
    made = boxes(gpu1=answer(row(1)))
    look(made)
    before = registry.read_sightings("gpu1")
    made.answers["gpu1"] = CutOff("the link ended before the end of the answer")
    found = look(made, named=True)
    assert registry.read_sightings("gpu1") == before
    assert shown(found) == [("gpu1", run_id(1), "running", False, "unreachable")]


@pytest.mark.requirement("BSSH-05")
def test_BSSH_05_a_reboot_is_what_the_box_itself_says(boxes: Callable[..., Boxes]) -> None:
    made = boxes(gpu1=answer(row(1)))
    look(made)
    note = "the box was rebooted while it ran (its boot id is not today's)"
    made.answers["gpu1"] = answer(row(1, condition="lost", note=note, vanished=True))
    (run,) = look(made).runs
    assert (run.condition, run.ended, run.note, run.reach) == ("lost", False, note, "here")


def test_desired_last_sighting_and_reach_are_three_facts(boxes: Callable[..., Boxes]) -> None:
    made = boxes(gpu1=answer(row(1, desired="stop")))
    look(made)
    made.answers["gpu1"] = Unreachable("gone", details={"why": "refused"})
    (run,) = look(made).runs
    assert (run.desired, run.condition, run.reach) == ("stop", "running", "unreachable")


def test_a_cache_that_cannot_be_kept_hides_no_answer(
    boxes: Callable[..., Boxes], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert len(look(boxes(gpu1=answer(row(1), over(2)))).runs) == 2


def test_only_what_was_asked_for_comes_back_from_a_question_about_single_runs(boxes: Callable[..., Boxes]) -> None:
    made = boxes(gpu1=answer(row(1), row(2)))
    (poll,) = poll_places([place("gpu1")], deadline_s=LONG_S, open_box=made.open, limit=None, ids={"gpu1": [run_id(1)]})
    assert made.asked == {"gpu1": [(run_id(1),)]}
    assert (list(poll.sightings), poll.complete) == ([run_id(1)], False)


def test_a_fault_of_ours_is_not_silence(boxes: Callable[..., Boxes]) -> None:
    with pytest.raises(ZeroDivisionError):
        look(boxes(gpu1=ZeroDivisionError()))


def test_a_place_that_is_this_machine_shows_no_run_twice(
    boxes: Callable[..., Boxes], isolated_environment: dict[str, str]
) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], run_id(2), ended())
    asked = boxes(me=answer(row(1), over(2)))
    found = listing.list_runs(
        [Place("me", kind="local")],
        Wanted(everything=True),
        open_box=asked.open,
        look_here=lambda most: answer_question(Question((), most)),
        deadline_s=LONG_S,
    )
    assert [(run.place, run.run_id) for run in found.runs] == [("local", run_id(2)), ("me", run_id(1))]
    root = isolated_environment["HOLDFAST_RUNS"]
    owned = listing.list_runs(
        [Place("me", kind="local", root=root)],
        Wanted(everything=True),
        open_box=asked.open,
        look_here=lambda most: answer_question(Question((), most)),
        deadline_s=LONG_S,
    )
    assert [(run.place, run.fresh, run.reach) for run in owned.runs] == [("me", True, "here")] * 2
    named = listing.list_runs(
        [Place("me", kind="local")], Wanted(named=True), open_box=asked.open, look_here=None, deadline_s=LONG_S
    )
    assert [(run.place, run.run_id) for run in named.runs] == [("me", run_id(2)), ("me", run_id(1))]
