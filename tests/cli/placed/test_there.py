"""What a desk makes of a command that it has a place carry out, with a place that answers what it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.placed import there
from holdfast.desk.orders.journal import Step, claim_order, list_orders, note_step, read_journal
from holdfast.desk.route.follow import FOLLOWED
from holdfast.desk.runs import registry
from holdfast.desk.runs.answer import read_answer
from holdfast.host.clock import utc_now
from holdfast.model.errors import CutOff
from holdfast.model.place import Place
from tests.desk.runs.sightings import answer, over, row, run_id

pytestmark = pytest.mark.cli
PLACE = Place("gpu1", host="gpu1")


class _Box:
    """Says in its turn what is there."""

    is_met = True
    place = PLACE

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)

    def entry(self, _name: str, _words: object = (), *, limit_s: float) -> dict[str, Any]:
        assert limit_s > 0
        return self.answers.pop(0)


def _remove(box: _Box, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, str]:
    """Type `rm`; the conditions that are known afterwards."""
    monkeypatch.setattr(there, "find_place", lambda _: PLACE)
    monkeypatch.setattr(there, "open_box", lambda _: box)
    monkeypatch.setattr(there, "send", lambda *_, **__: 0)
    assert there.send_to("gpu1", ("rm", "--yes", *words)) == 0
    return {seen.run_id: seen.condition for seen in registry.read_sightings("gpu1")}


@pytest.fixture
def taken(isolated_environment: dict[str, str]) -> str:
    """A run that the place took and that has ended there, beside another one."""
    with claim_order("gpu1", "digits", "0" * 64, "") as claim:
        note_step("gpu1", Step.TAKEN, claim.run_id)
    registry.record_poll(read_answer("gpu1", answer(over(run_id=claim.run_id), over(1)), at=utc_now()))
    return claim.run_id


@pytest.mark.parametrize("words", [("--older", "0s"), ("digits",)], ids=["by age", "by name"])
@pytest.mark.parametrize("roots", [[], ["/runs"]], ids=["empty", "unreadable"])
def test_what_was_gone_before_rm_was_typed_is_not_taken_for_removed(
    monkeypatch: pytest.MonkeyPatch, taken: str, words: tuple[str, ...], roots: list[str]
) -> None:
    """Their disk is not mounted: what `rm` does not find there may be all that there is, and teardown asks for it."""
    gone = answer(absent=[taken, run_id(1)], missing_roots=roots)
    known = _remove(_Box(gone, gone), monkeypatch, *words)
    assert sorted(known) == sorted([taken, run_id(1)])
    assert list_orders(read_journal("gpu1"))[taken].step is Step.TAKEN


@pytest.mark.parametrize("roots", [[], ["/runs"]], ids=["removed", "lost meanwhile"])
@pytest.mark.parametrize("word", ["", "digit*"], ids=["by id", "by pattern"])
def test_what_was_there_before_rm_and_is_not_afterwards_was_removed(
    monkeypatch: pytest.MonkeyPatch, taken: str, roots: list[str], word: str
) -> None:
    before, after = answer(over(run_id=taken), over(1)), answer(over(1), absent=[taken], missing_roots=roots)
    known = _remove(_Box(before, after), monkeypatch, word or taken)
    assert (taken in known) == bool(roots)
    assert list_orders(read_journal("gpu1"))[taken].step is (Step.TAKEN if roots else Step.REMOVED)


def cut(monkeypatch: pytest.MonkeyPatch, box: _Box, *words: str, **details: object) -> str:
    """What is said of a command whose answer is cut off."""

    def send(*_: object, **__: object) -> int:
        raise CutOff("gpu1: cut off", hint="attach", details=details)

    monkeypatch.setattr(there, "find_place", lambda _: PLACE)
    monkeypatch.setattr(there, "open_box", lambda _: box)
    monkeypatch.setattr(there, "send", send)
    with pytest.raises(CutOff) as caught:
        there.send_to("gpu1", words)
    return f"{caught.value}; {caught.value.hint}"


@pytest.mark.requirement("XPORT-07")
@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_XPORT_07_after_a_cut_the_run_that_was_to_be_stopped_is_looked_at(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    assert isolated_environment
    live, old = run_id(2), run_id(1)
    asked = _Box(answer())
    assert "whether it had an effect there is not known" in cut(monkeypatch, asked, verb, "digits")
    assert asked.answers, "which run is meant is not known here: the place is not asked for all it has"
    registry.record_poll(read_answer("gpu1", answer(row(2), over(1)), at=utc_now()))
    looked = answer({**row(2), "condition": "stopping"})
    assert cut(monkeypatch, _Box(looked), verb, "digits") == (
        f"gpu1: cut off; looked at again: {live} is stopping (attempt 1); see what becomes of it: "
        "holdfast show gpu1:digits"
    )
    # A run of that name which had ended was not meant, unless there is no other.
    registry.record_poll(read_answer("gpu1", answer(over(2), over(1)), at=utc_now()))
    assert f"looked at again: {live} has succeeded" in (said := cut(monkeypatch, _Box(answer(over(2))), verb, "digits"))
    assert old not in said
    assert "whether it had an effect there is not known" in cut(monkeypatch, _Box(answer()), verb, "digits")


def test_what_was_given_up_while_it_was_followed_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = cut(monkeypatch, _Box(), "restart", "-f", "digits", **{FOLLOWED: "gpu1:digits"})
    assert said == "gpu1: cut off; attach"
    assert cut(monkeypatch, _Box(), "queue", "pause") == "gpu1: cut off; attach"


def test_a_run_that_was_seen_under_two_names_of_one_box_is_one(isolated_environment: dict[str, str]) -> None:
    config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast"
    config.mkdir(mode=0o700)
    (config / "places.toml").write_text('[gpu1]\nhost = "box"\n[gpu2]\nhost = "other"\n')
    for place in ("gpu1", "box"):
        registry.record_poll(read_answer(place, answer(over(1)), at=utc_now()))
    assert there.find_runs(run_id(1)) == [("gpu1", run_id(1))]
    registry.record_poll(read_answer("gpu2", answer(over(1)), at=utc_now()))
    assert [place for place, _ in there.find_runs(run_id(1))] == ["gpu1", "gpu2"], "another box is another box"
    registry.record_poll(read_answer("box", answer(over(2)), at=utc_now()))
    assert there.find_runs(run_id(2)) == [("box", run_id(2))]
