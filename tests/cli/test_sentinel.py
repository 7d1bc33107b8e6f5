"""``holdfast sentinel``: in the foreground, detached, one of a kind, and what it says."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.patrol.sentinel import records
from holdfast.host.process.processes import is_alive, read_environ
from tests.cli.live import live_run, started
from tests.rundirs import dead_process, ended, make_run, running
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.fixture(autouse=True)
def no_sentinel_stays(isolated_environment: dict[str, str]) -> Iterator[None]:
    """End what a failed test left."""
    yield
    for _, record in records.list_all():
        if record is not None and records.is_waiting(record):
            records.end(record.process)


@pytest.mark.slow
@pytest.mark.requirement("MON-03")
def test_it_answers_at_once_about_a_run_that_is_over(holdfast: Command) -> None:
    make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    met = holdfast("sentinel", "digits", "--for", "ended", "--json")
    assert (met.code, met.json()["verdict"]) == (0, "met")
    never = holdfast("sentinel", "digits", "--for", "step=5")
    assert never.code == 1
    assert "ended without" in never.err
    assert records.list_all() == []


@pytest.mark.requirement("MON-03")
def test_a_run_that_is_gone_is_lost(holdfast: Command) -> None:
    make_run(os.environ["HOLDFAST_RUNS"], state=running(), supervisor=dead_process())
    lost = holdfast("sentinel", "digits", "--for", "ended")
    assert lost.code == 1
    assert "run lost" in lost.err


@pytest.mark.slow
def test_a_life_is_bounded_and_words_are_checked(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "job"):
        assert holdfast("sentinel", "job", "--for", "ended", "--max", "300ms").code == 124
    for words in (("--for", "doom"), ("--for", "ended", "--max", "0s"), ("--for", "ended", "--notify-command", "")):
        assert holdfast("sentinel", "job", *words).code == 64
    assert holdfast("sentinel", "none", "--for", "ended").code == 66


@pytest.mark.slow
@pytest.mark.requirement("MON-03", "MON-01")
def test_a_detached_one_outlives_its_command_tells_and_keeps_its_outcome(holdfast: Command, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/heard\n")
    hook.chmod(0o755)
    with live_run(holdfast, "--name", "job") as run:
        words = ("sentinel", "job", "--for", "ended", "-d", "--notify-command", str(hook))
        assert holdfast(*words, "--json").json()["armed"]
        record = records.read(records.path_of(run.run_id, "ended"))
        assert record is not None
        assert records.is_waiting(record)
        assert "waiting" in holdfast("sentinel", "job").out
        assert holdfast("stop", "job").code == 0
        wait_until(lambda: not is_alive(record.process), what="the sentinel has ended")
    listed = holdfast("sentinel", "job", "--json").json()["sentinels"]
    assert [(one["outcome"], one["exit_code"]) for one in listed] == [("met", 0)]
    heard = json.loads((tmp_path / "heard").read_text())
    assert (heard["event"], heard["condition"], heard["verdict"]) == ("sentinel", "ended", "met")


@pytest.mark.slow
@pytest.mark.requirement("MON-03")
def test_one_that_is_started_inside_of_a_job_does_not_look_like_a_process_of_it(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "job") as run:
        inside = {"HOLDFAST_RUN_ID": run.run_id, "HOLDFAST_ATTEMPT": "1"}
        assert holdfast("sentinel", "job", "--for", "ended", "-d", "--json", env=inside).json()["armed"]
        record = records.read(records.path_of(run.run_id, "ended"))
        assert record is not None
        environ = read_environ(record.process.pid)
        assert environ is not None
        assert "HOLDFAST_RUN_ID" not in environ
        assert holdfast("stop", "job").code == 0
        wait_until(lambda: not is_alive(record.process), what="the sentinel has ended")


@pytest.mark.slow
@pytest.mark.requirement("MON-03")
def test_a_newer_one_takes_the_place_of_the_earlier(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "job") as run:
        path = records.path_of(run.run_id, "ended")
        with started("sentinel", "job", "--for", "ended") as first:
            wait_until(lambda: records.read(path), what="the first is armed")
            for _ in range(2):
                second = holdfast("sentinel", "job", "--for", "ended", "-d")
                assert second.code == 0, second
            assert first.wait(timeout=LIMIT_S) == 130
        record = records.read(path)
        assert record is not None
        assert records.is_waiting(record)
        assert len(records.list_all()) == 1
        assert run.look().condition == "running"


def test_one_that_cannot_be_recorded_says_why(holdfast: Command, tmp_path: Path) -> None:
    make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    (tmp_path / "file").write_text("")
    for words in ((), ("-d",)):
        done = holdfast("sentinel", "digits", "--for", "ended", *words, env={"XDG_STATE_HOME": str(tmp_path / "file")})
        assert done.code == 74
