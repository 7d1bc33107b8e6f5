"""News of a patrol is told at least once: it counts as told when a channel has taken it, and no sooner."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.messages.tries import MOST_TRIES, find_pause_s
from holdfast.agent.patrol import memory, news
from holdfast.agent.patrol.memory import load_memory, say_untold_of
from holdfast.agent.patrol.news import recall, remember, tell_news
from holdfast.agent.patrol.report import patrol_runs
from holdfast.agent.patrol.tell import Told, Ways
from holdfast.agent.patrol.tick import ObservedRun, PatrolResult
from holdfast.core.patrol.evidence import RunStatus
from holdfast.core.patrol.patrol import PatrolRemark, RunJudgement
from holdfast.host import clock
from holdfast.host.clock import epoch_s, format_utc
from holdfast.model.job import Notify
from holdfast.model.run import Ended, Outcome
from tests.agent.messages.endpoints import make_program
from tests.rundirs import make_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("MON-02", "MON-17")]

FAILING = Ways(Notify(command=("false",)))
FAILED, GONE = PatrolRemark("failed", "failed (bug)", escalate=True), PatrolRemark("gone", "gone", escalate=True)


@pytest.fixture
def hook(tmp_path: Path) -> Ways:
    """A way that takes each message, a line each."""
    heard = tmp_path / "heard"
    return Ways(Notify(command=(make_program(tmp_path / "hook", f"cat >> {heard}; echo >> {heard}"),)))


def tick(**runs: PatrolRemark) -> PatrolResult:
    """A look at these dead runs."""
    seen = [ObservedRun(name, f"/runs/{name}", 1, RunJudgement(RunStatus.DEAD, why)) for name, why in runs.items()]
    return PatrolResult("2026-11-23T10:00:00.000Z", "here", ("/runs",), tuple(seen))


def tell(found: PatrolResult, ways: Ways, **besides: str) -> list[str]:
    look = recall(found, besides=besides)
    return tell_news([look], look.tick, ways)


def heard(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "heard"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_news_that_no_channel_took_is_news_still_and_is_told_once_one_does(
    hook: Ways, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (note,) = tell(tick(a=FAILED), FAILING)
    assert note.startswith("NOBODY WAS TOLD (tried once, again in 10m00s at the earliest): command: false ended with 1")
    assert recall(tick(a=FAILED)).runs
    assert say_untold_of("/runs/a").startswith("NOBODY WAS TOLD")
    assert say_untold_of("/runs/b") == ""
    # Before the pause is over nothing is sent; it is said all the same.
    assert [text.partition(" (")[0] for text in tell(tick(a=FAILED), hook)] == ["NOBODY WAS TOLD"]
    assert heard(tmp_path) == []
    later = epoch_s() + 601
    monkeypatch.setattr(clock, "epoch_s", lambda: later)
    assert tell(tick(a=FAILED), hook) == []
    assert [run["run_id"] for run in heard(tmp_path)[0]["runs"]] == ["a"]
    assert tell(tick(a=FAILED), hook) == []
    assert len(heard(tmp_path)) == 1
    assert load_memory().untold is None


@pytest.mark.parametrize(("module", "name"), [(news, "tell"), (memory, "save_memory")])
def test_a_patrol_that_is_killed_while_it_tells_loses_nothing(
    hook: Ways, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, name, killed)
        with pytest.raises(KeyboardInterrupt):
            tell(tick(a=FAILED), hook)
    assert tell(tick(a=FAILED), hook) == []
    assert {run["run_id"] for each in heard(tmp_path) for run in each["runs"]} == {"a"}


def test_a_channel_that_never_takes_anything_is_tried_so_often_and_again_with_other_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, tried = epoch_s(), []

    def refuse(*_: object) -> Told:
        tried.append(now)
        return Told(taken=False, problem="slack: HTTP 404")

    monkeypatch.setattr(clock, "epoch_s", lambda: now)
    monkeypatch.setattr(news, "tell", refuse)
    for _ in range(60):
        now += 1800
        notes = tell(tick(a=FAILED), FAILING)
    assert len(tried) == MOST_TRIES
    assert all(tried[n] - tried[n - 1] >= find_pause_s(n) for n in range(1, MOST_TRIES))
    assert "(tried 8 times, not again before there is other news): slack: HTTP 404" in notes[0]
    assert (load_memory().told, load_memory().untold.runs) == ({}, ("/runs/a",))  # type: ignore[union-attr]
    tell(tick(a=FAILED, b=GONE), FAILING)
    assert len(tried) == MOST_TRIES + 1


def test_news_comes_first_and_what_is_left_out_is_said(hook: Ways, tmp_path: Path) -> None:
    gone = {f"gone-{number}": GONE for number in range(7)}
    for found in (tick(**gone), tick(**gone, later=FAILED)):
        assert tell(found, hook) == []
    first, second = heard(tmp_path)
    assert second["runs"][0]["run_id"] == "later"
    assert "besides: 2 more runs need a person" in first["text"]


def test_what_cannot_be_looked_at_and_what_bills_is_told_once_until_it_is_over(hook: Ways, tmp_path: Path) -> None:
    blind = PatrolResult("now", "here", ("/gone",), (), ("/gone: it does not exist any more",))
    fine = PatrolResult("now", "here", ("/gone",), ())
    assert tell(blind, hook) == tell(blind, hook, finished="gpu1 bills") == tell(blind, hook, finished="gpu1") == []
    assert [(len(each["blind"]), each["besides"]) for each in heard(tmp_path)] == [(1, []), (1, ["gpu1 bills"])]
    assert heard(tmp_path)[1]["text"].splitlines()[1:3] == [
        "not seen: /gone: it does not exist any more", "also: gpu1 bills",
    ]  # fmt: skip
    assert tell(fine, hook) == tell(blind, hook) == []
    assert len(heard(tmp_path)) == 3


def test_where_nobody_is_told_it_is_old_news_only_when_it_was_shown(tmp_path: Path) -> None:
    fresh = Ended(format_utc(epoch_s()), Outcome.FAILED, 3, "the job ended with exit code 3")
    make_run(tmp_path / "runs", "20261120-100000-failed-0a1b", fresh)
    report, unshown = patrol_runs([str(tmp_path / "runs")], runs=None, since_last=True, ways=None)
    assert (report.exit_code, load_memory().told) == (1, {})
    assert unshown is not None
    assert remember(unshown) == []
    assert len(load_memory().told) == 1


def test_who_looks_by_hand_is_told_that_nobody_was(tmp_path: Path) -> None:
    tell(tick(a=FAILED), FAILING)
    (tmp_path / "runs").mkdir()
    report, _ = patrol_runs([str(tmp_path / "runs")], runs=None, since_last=False, ways=None)
    assert "NOBODY WAS TOLD" in report.notes[0]


def test_what_is_told_besides_the_runs_is_an_alarm_until_it_was_told(hook: Ways, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()

    def look() -> tuple[int, tuple[str, ...]]:
        besides = {"group lr": "group lr: nothing goes on: 2 done; nobody was told"}
        report, _ = patrol_runs([str(tmp_path / "runs")], runs=None, since_last=True, ways=hook, besides=besides)
        return report.exit_code, report.notes

    first, second = look(), look()
    assert [code for code, _ in (first, second)] == [1, 0]
    assert first[1] == second[1] == ("group lr: nothing goes on: 2 done; nobody was told",)
    assert [each["besides"] for each in heard(tmp_path)] == [list(first[1])]
