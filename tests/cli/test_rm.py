"""``holdfast rm``: what it shows, what it asks, what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process.processes import identify_self
from holdfast.model.run import Outcome
from tests.cli.live import live_run
from tests.cli.queues import say
from tests.rundirs import ended, make_run, running

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

FIRST, SECOND = "20261120-100000-digits-0a1b", "20261120-100001-other-0a1c"


@pytest.fixture
def runs(isolated_environment: dict[str, str]) -> str:
    root = isolated_environment["HOLDFAST_RUNS"]
    for run_id in (FIRST, SECOND):
        make_run(root, run_id, ended())
    return root


@pytest.mark.requirement("RAIL-16")
def test_without_a_terminal_yes_is_needed(holdfast: Command, runs: str) -> None:
    done = holdfast("rm", "digits")
    assert done.code == 64
    assert "--yes" in done.err
    assert sorted(os.listdir(runs)) == [FIRST, SECOND]


def test_a_dry_run_shows_sizes_and_removes_nothing(holdfast: Command, runs: str) -> None:
    done = holdfast("rm", "--dry-run", "digits", "other")
    assert done.code == 0
    assert "KiB" in done.out
    assert "would remove 2 runs" in done.err
    assert sorted(os.listdir(runs)) == [FIRST, SECOND]


def test_runs_are_removed_and_leave_the_list(holdfast: Command, runs: str) -> None:
    holdfast("ls")
    value = holdfast("rm", "--yes", "--json", "digits").json()
    assert value["removed"] is True
    assert [run["run_id"] for run in value["runs"]] == [FIRST]
    assert os.listdir(runs) == [SECOND]
    assert FIRST not in holdfast("ls").out
    assert holdfast("rm", "--yes", "digits").code == 66


def test_runs_are_removed_by_state_and_age(holdfast: Command, runs: str) -> None:
    failed, live = "20261120-100003-bad-0a1e", "20261120-100004-live-0a1f"
    make_run(runs, failed, ended(Outcome.FAILED, 1))
    make_run(runs, live, running(), supervisor=identify_self())
    shown = holdfast("rm", "--older", "0s", "--dry-run")
    assert (shown.code, "would remove 3 runs" in shown.err) == (0, True), shown
    none = holdfast("rm", "--yes", "--older", "999d")
    assert (none.code, none.err) == (0, "holdfast: no ended run matches; nothing was removed\n")
    assert holdfast("rm", "--yes", "--state", "failed", "--older", "0s").code == 0
    assert sorted(os.listdir(runs)) == [FIRST, SECOND, live]
    refused = each_refused(holdfast)
    assert [(code, word in err) for code, word, err in refused] == [(64, True)] * len(refused), refused
    assert sorted(os.listdir(runs)) == [FIRST, SECOND, live]


def each_refused(holdfast: Command) -> list[tuple[int, str, str]]:
    tries = {
        (): "no run to remove",
        ("--state", "running"): "runs that are running",
        ("--state", "fail"): "did you mean failed?",
        ("--older", "soon"): "--older: 'soon'",
        ("--older", "7"): "--older 7: of what",
    }
    ended = {words: holdfast("rm", "--yes", *words) for words in tries}
    return [(ended[words].code, said, ended[words].err) for words, said in tries.items()]


def test_names_patterns_and_conditions_go_together(runs: str) -> None:
    refused, live = "20261120-100003-digits-2-0a1e", "20261120-100004-digits-3-0a1f"
    exit_path = f"{make_run(runs, refused, ended(Outcome.FAILED, 78))}/attempts/1/exit.json"
    Path(exit_path).write_text(json.dumps({**json.loads(Path(exit_path).read_text()), "failure_class": "refused"}))
    make_run(runs, live, running(), supervisor=identify_self())

    def found(*words: str) -> list[str]:
        done = say("rm", "--dry-run", "--json", *words)
        assert done.code == 0, done
        return sorted(run["run_id"] for run in json.loads(done.out)["runs"])

    assert found("digits*") == [FIRST, refused]
    assert found("digits-*", "other") == [SECOND, refused]
    assert found("20261120-100001*") == [SECOND]
    assert found("nobody*", "--older", "0s") == []
    assert found("digits*", "--state", "failed") == [refused]
    assert found("digits*", "--older", "999d") == []
    assert found("digits", "--older", "0s") == [FIRST]
    shown = say("rm", "--dry-run", "--older", "0s")
    header, *rows = shown.out.splitlines()
    assert header.split() == ["RUN", "STATE", "ENDED", "FILES", "SIZE"]
    assert any("failed: refused" in row and " ago" in row for row in rows)
    unknown = say("rm", "--yes", "--older", "0s", "digit")
    assert (unknown.code, "did you mean digits?" in unknown.err) == (66, True)
    nothing = say("rm", "--dry-run", "digits*", "nobody*")
    assert (nothing.code, "no run matches 'nobody*'" in nothing.err) == (66, True), nothing
    lives = say("rm", "--dry-run", "digits-3*")
    assert (lives.code, f"none of what is named has ended: {live}" in lives.err) == (64, True), lives
    unasked = say("rm", "digits*")
    assert (unasked.code, "--yes" in unasked.err) == (64, True)
    assert sorted(os.listdir(runs)) == [FIRST, SECOND, refused, live]


def test_a_refused_dry_run_says_that_nothing_would_go(runs: str) -> None:
    make_run(runs, "20261120-100002-live-0a1d", running(), supervisor=identify_self())
    for names in (("live",), ("digits", "live")):
        done = say("rm", "--dry-run", *names)
        assert (done.code, "would remove" in done.err) == (64, False)
        said = done.err.splitlines()
        assert "has not ended: it is running" in said[0]
        assert "nothing would be removed" in said[1]


def test_one_refusal_leaves_all(holdfast: Command, runs: str) -> None:
    make_run(runs, "20261120-100002-live-0a1d", running(), supervisor=identify_self())
    done = holdfast("rm", "--yes", "digits", "live")
    assert done.code == 64
    assert "nothing was removed" in done.err
    assert len(os.listdir(runs)) == 3


@pytest.mark.slow
@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_a_run_outside_of_the_roots_or_a_link_out_is_refused(
    holdfast: Command, runs: str, tmp_path: Path
) -> None:
    outside = make_run(tmp_path / "project", "20261120-100003-far-0a1e", ended())
    done = holdfast("rm", "--yes", outside)
    assert done.code == 64
    assert "outside" in done.err
    os.symlink(outside, f"{runs}/20261120-100003-far-0a1e")
    for text in ("20261120-100003-far-0a1e", f"{runs}/20261120-100003-far-0a1e", "far"):
        assert holdfast("rm", "--yes", text).code in (66, 74)
    assert os.path.exists(f"{outside}/run.json")


@pytest.mark.slow
def test_a_live_run_is_refused_until_it_has_ended(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "busy") as run:
        done = holdfast("rm", "--yes", "busy")
        assert done.code == 64
        assert f"holdfast stop {run.run_id}" in done.err
        assert holdfast("stop", "--now", "busy").code == 0
        assert holdfast("rm", "--yes", "busy").code == 0
        assert not os.path.exists(run.run_dir)
