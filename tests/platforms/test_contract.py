"""The conformance suite of platforms, on the real thing; every platform runs all of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import NoSuchRun
from holdfast.model.finding import Level
from holdfast.model.job import JobSpec
from holdfast.platforms.base import Call, Platform, Unsupported
from holdfast.platforms.local import LocalPlatform
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.contract


@pytest.fixture(params=["local"])
def platform(request: pytest.FixtureRequest, tmp_path: Path, isolated_environment: dict[str, str]) -> Platform:
    """Each platform in turn."""
    assert isolated_environment
    makers: dict[str, Callable[[], Platform]] = {"local": lambda: LocalPlatform(str(tmp_path / "runs"))}
    return makers[request.param]()


@pytest.fixture
def call(isolated_environment: dict[str, str]) -> Call:
    """A call from the test's own environment."""
    return Call(("holdfast", "run"), os.getcwd(), {**os.environ, **isolated_environment})


def _job(tmp_path: Path, *command: str) -> JobSpec:
    return JobSpec("job", command, str(tmp_path))


def _ended(platform: Platform, run_id: str) -> bool:
    return platform.poll([run_id])[run_id].ended


def test_a_job_runs_to_its_end_and_its_code_is_told(platform: Platform, call: Call, tmp_path: Path) -> None:
    taken = platform.submit(_job(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 5"), call)
    wait_until(lambda: _ended(platform, taken.run_id))
    assert platform.poll([taken.run_id])[taken.run_id].exit_code == 5
    assert platform.logs(taken.run_id, 0) == b"out\nerr\n"
    assert platform.logs(taken.run_id, 4) == b"err\n"


@pytest.mark.slow
def test_cancel_is_idempotent_and_leads_to_the_end(platform: Platform, call: Call, tmp_path: Path) -> None:
    taken = platform.submit(_job(tmp_path, "sleep", "100"), call)
    wait_until(lambda: platform.poll([taken.run_id])[taken.run_id].condition == "running")
    platform.cancel(taken.run_id, by="test")
    platform.cancel(taken.run_id, by="test", force=True)
    wait_until(lambda: _ended(platform, taken.run_id))
    platform.cancel(taken.run_id, by="test")
    seen = platform.poll([taken.run_id])[taken.run_id]
    assert (seen.condition, seen.exit_code) == ("stopped", 130)


@pytest.mark.slow
def test_poll_answers_for_the_runs_it_knows_only(platform: Platform, call: Call, tmp_path: Path) -> None:
    taken = [platform.submit(_job(tmp_path, "true"), call) for _ in range(2)]
    asked = [item.run_id for item in taken]
    wait_until(lambda: all(item.ended for item in platform.poll(asked).values()))
    seen = platform.poll([*asked, "20260101-000000-nobody-0000"])
    assert sorted(seen) == sorted(asked)


def test_results_are_fetched_by_name(platform: Platform, call: Call, tmp_path: Path) -> None:
    script = 'echo 42 > "$HOLDFAST_ARTIFACT_DIR/answer.txt"'
    taken = platform.submit(_job(tmp_path, "sh", "-c", script), call)
    wait_until(lambda: _ended(platform, taken.run_id))
    found = platform.fetch(taken.run_id, ["artifacts/answer.txt", "artifacts/none.txt"])
    assert list(found) == ["artifacts/answer.txt"]
    with open(found["artifacts/answer.txt"], encoding="ascii") as file:
        assert file.read() == "42\n"


def test_plan_starts_nothing_and_names_what_is_missing(platform: Platform, call: Call, tmp_path: Path) -> None:
    findings = platform.plan(_job(tmp_path, "/no/such/command"), call)
    assert any(item.level is Level.FAIL and "/no/such/command" in item.evidence for item in findings)
    assert not (tmp_path / "runs").exists()


def test_probe_tells_what_is_there(platform: Platform) -> None:
    findings = platform.probe()
    assert findings
    assert all(item.evidence and item.subject for item in findings)


def test_an_unknown_run_is_said_to_be_unknown(platform: Platform) -> None:
    with pytest.raises(NoSuchRun):
        platform.logs("20260101-000000-nobody-0000", 0)


def test_teardown_says_why_not_or_does_it(platform: Platform) -> None:
    with pytest.raises(Unsupported, match="nothing to tear down"):
        platform.teardown("20260101-000000-nobody-0000")
