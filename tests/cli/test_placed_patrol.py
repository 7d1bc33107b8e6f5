"""``patrol`` of a desk: one look at the runs here and at places, and the clock of a place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.patrol.tick import ObservedRun, PatrolResult
from holdfast.core.patrol.evidence import RunStatus
from holdfast.core.patrol.patrol import PatrolRemark, RunJudgement
from holdfast.desk.runs import registry
from holdfast.desk.runs.patrol import read_report, tell_once
from holdfast.host.clock import epoch_s, format_utc
from holdfast.host.process.processes import identify_self
from holdfast.model.place import Place
from holdfast.model.run import Ended, Outcome
from holdfast.model.wire import WireError
from holdfast.transport.base import Done
from tests.cli.clocks import make_clocks, with_clocks
from tests.rundirs import dead_process, make_run, running
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = [pytest.mark.cli, pytest.mark.timeout(180)]
HERE, GONE, FAILED = (f"20261120-1000{number:02d}-digits-0a1b" for number in (1, 2, 3))


@pytest.mark.slow
@pytest.mark.requirement("MON-19")
def test_MON_19_one_patrol_of_all_places(
    places: Callable[..., Path],
    holdfast: Command,
    isolated_environment: dict[str, str],
    black_hole: str,
    tmp_path: Path,
) -> None:
    top = places(gpu7=black_hole)
    make_run(isolated_environment["HOLDFAST_RUNS"], HERE, running(), supervisor=identify_self())
    make_run(str(top / "gpu1"), GONE, running(), supervisor=dead_process())
    make_run(str(top / "gpu1"), FAILED, Ended(format_utc(epoch_s()), Outcome.FAILED, 3, "exit code 3"))
    registry.record_taken("gpu7", HERE)
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/heard\n")
    hook.chmod(0o755)
    words = ("patrol", "--since-last", "--notify-command", str(hook))
    first = holdfast(*words, timeout_s=LONG_S)
    assert first.code == 1
    assert first.out.splitlines()[0] == "3 runs: 1 running, 2 dead; gpu7 did not answer"
    assert f"dead  gpu1:{GONE}  every process of it is gone and no end was recorded" in first.out
    assert f"    -> holdfast restart gpu1:{GONE}" in first.out.splitlines()
    assert f"dead  gpu1:{FAILED}  failed" in first.out
    assert "gpu7 does not answer (no answer within 5 s); it answered last " in first.err
    assert "1 run of gpu7 had not ended when last seen; whether they need a person cannot be told" in first.err
    heard = json.loads((tmp_path / "heard").read_text())
    assert {run["run_id"]: run["action"] for run in heard["runs"]}[f"gpu1:{GONE}"] == f"holdfast restart gpu1:{GONE}"
    (silent,) = heard["besides"]
    assert silent.startswith("gpu7 does not answer; 1 run of gpu7 had not ended when last seen")
    # What was told is remembered at this desk: the place's own clock tells it still.
    again = holdfast("patrol", "--on", "gpu1", "--since-last", timeout_s=LONG_S)
    assert (again.code, f"gpu1:{FAILED}" in again.out) == (1, False)
    told = holdfast("patrol", "--on", "gpu1", "--json", timeout_s=LONG_S).json()
    assert {run["run_id"]: (run["place"], run["standing"]) for run in told["runs"]} == {
        GONE: ("gpu1", "dead"),
        FAILED: ("gpu1", "dead"),
    }
    assert holdfast("patrol", "--here").out == "1 run: 1 running\n"
    silent = holdfast("patrol", "--on", "gpu7", timeout_s=LONG_S)
    assert (silent.code, silent.out) == (69, "0 runs; gpu7 did not answer\n")


def test_a_run_of_this_machine_is_told_once_by_the_place_that_owns_its_root() -> None:
    def tick(*roots: str) -> PatrolResult:
        ending = RunJudgement(RunStatus.FINISHED, PatrolRemark("succeeded", "succeeded"))
        return PatrolResult(
            "now", "here", roots, tuple(ObservedRun(HERE, f"{root}/{HERE}", 1, ending) for root in roots)
        )

    places = [Place("lab", kind="slurm", root="/lab"), Place("more", kind="slurm"), Place("gpu1", host="gpu1")]
    told = tell_once({name: tick("/own", "/lab") for name in ("local", "lab", "more", "gpu1")}, places, "local")
    assert {name: [each.run_dir.split("/")[1] for each in seen.seen] for name, seen in told.items()} == {
        "local": ["own"],
        "lab": ["lab"],
        "more": [],
        "gpu1": ["own", "lab"],
    }


@pytest.mark.slow
def test_a_clock_at_a_place_is_shown_exactly_and_looks_at_that_place(
    places: Callable[..., Path], holdfast: Command, tmp_path: Path
) -> None:
    places()
    clocks = make_clocks(tmp_path / "clocks")
    env = with_clocks(clocks, "crontab")
    for verb, words in (("patrol", "patrol --since-last --here"), ("queue", "queue work --boot")):
        done = holdfast(verb, "install", "--on", "gpu1", "--cron", "--yes", env=env, timeout_s=LONG_S)
        assert done.code == 0, done
        assert done.out in (clocks / "table").read_text()
        assert f"/hf.py -- {words}" in done.out
        assert "--on gpu1" not in done.out
        assert f"installed; `holdfast {verb} uninstall --on gpu1` removes it" in done.err
    no_clock = holdfast("queue", "install", "--on", "gpu1", env=with_clocks(clocks), timeout_s=LONG_S)
    assert no_clock.code == 64
    assert "/hf.py -- queue work --boot` as this account" in no_clock.err


@pytest.mark.parametrize(
    "answer",
    [
        "nothing",
        "[]",
        '{"runs": 5}',
        '{"error": {"message": "no"}}',
        json.dumps({"runs": [{"run_id": "../x", "lines": []}]}),
        "[" * 100_000,
    ],
)
def test_an_answer_that_is_none_is_no_look(answer: str) -> None:
    with pytest.raises(WireError):
        read_report(Done(0, answer.encode(), b""))
