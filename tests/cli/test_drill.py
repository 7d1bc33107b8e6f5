"""``holdfast drill``: good scripts pass, and each way of not continuing is told by its name."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.live import started
from tests.waiting import LIMIT_S, PATIENCE, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = [pytest.mark.cli, pytest.mark.requirement("CKPT-15"), pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parent / "payloads" / "rehearsed.py"
LONGEST_S = 150.0 * PATIENCE


def job(how: str, steps: int = 90, step_s: float = 0.05) -> tuple[str, ...]:
    return ("--", sys.executable, str(SCRIPT), how, str(steps), str(step_s))


def rehearse(holdfast: Command, how: str, *args: str, steps: int = 90) -> dict[str, Any]:
    done = holdfast("drill", "--json", "--kills", "1", *args, *job(how, steps), timeout_s=LONGEST_S)
    value = done.json()
    assert "error" not in value, value
    assert done.code == value["exit_code"]
    assert done.code == (0 if value["passed"] else 1)
    return value


@pytest.mark.slow
@pytest.mark.requirement("SPOT-05")
def test_a_good_script_passes_and_nothing_is_left(holdfast: Command, isolated_environment: dict[str, str]) -> None:
    done = holdfast("drill", "--kills", "2", "--stop", *job("good", step_s=0.15), timeout_s=LONGEST_S)
    assert done.code == 0, done
    assert "continues exactly" in done.out
    assert "reference" in done.out
    assert "143" in done.out
    assert os.listdir(isolated_environment["TMPDIR"]) == []
    assert os.listdir(isolated_environment["HOLDFAST_RUNS"]) == []


@pytest.mark.soak
def test_both_runs_are_kept_when_told_and_the_compared_steps_are_there(holdfast: Command, tmp_path: Path) -> None:
    value = rehearse(holdfast, "good", "--keep", "kept")
    assert value["verdict"] == "exact"
    assert value["compared"] > 5
    assert len(value["attempts"]) == 2
    assert value["attempts"][0]["end"] == "killed"
    assert value["attempts"][1]["first_step"] == value["attempts"][1]["newest_checkpoint_before"] > 0
    assert len(os.listdir(tmp_path / "kept" / "runs")) == 2
    assert holdfast("drill", "--keep", "kept", *job("good")).code == 64


@pytest.mark.slow
@pytest.mark.parametrize("how", ["generator", pytest.param("order", marks=pytest.mark.soak)])
def test_a_lost_generator_or_data_position_is_detected(holdfast: Command, how: str) -> None:
    value = rehearse(holdfast, how)
    assert value["verdict"] == "inexact"
    assert f"loss differs first at step {value['attempts'][1]['first_step']}" in value["why"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "verdict"),
    [pytest.param("restarts", "no_checkpoint", marks=pytest.mark.soak), ("forgets", "starts_over")],
)
def test_a_script_that_restarts_at_0_fails(holdfast: Command, how: str, verdict: str) -> None:
    assert rehearse(holdfast, how)["verdict"] == verdict


@pytest.mark.slow
def test_a_script_without_the_library_is_judged_by_its_heartbeats(holdfast: Command) -> None:
    value = rehearse(holdfast, "byhand")
    assert value["verdict"] == "exact"
    assert value["judged_by"] == "heartbeats"
    assert any("from heartbeats" in line["words"] for line in value["lines"])


@pytest.mark.soak
def test_a_script_that_differs_anyway_is_not_blamed_on_interruptions(holdfast: Command) -> None:
    value = rehearse(holdfast, "unseeded")
    assert value["verdict"] == "inexact"
    assert "without any interruption" in value["why"]


@pytest.mark.soak
def test_a_script_that_fails_after_an_interruption_is_told_with_its_last_words(holdfast: Command) -> None:
    value = rehearse(holdfast, "fails")
    assert value["verdict"] == "fails"
    assert "prices.csv" in value["why"]


@pytest.mark.slow
def test_a_directory_that_the_script_names_is_left_alone(holdfast: Command, tmp_path: Path) -> None:
    assert rehearse(holdfast, "named")["verdict"] == "exact"
    assert not (tmp_path / "mine").exists()


@pytest.mark.soak
def test_a_long_job_is_compared_up_to_where_it_was_cut(holdfast: Command) -> None:
    value = rehearse(holdfast, "good", "--until", "60", steps=100_000)
    assert value["verdict"] == "exact"
    assert value["cut"] is True


@pytest.mark.slow
def test_a_job_that_cannot_be_started_is_no_rehearsal(holdfast: Command) -> None:
    done = holdfast("drill", "--", "/nonexistent/program")
    assert done.code not in (0, 1)
    assert done.err
    broken = holdfast("drill", "--json", "--", "sh", "-c", "echo no such column >&2; exit 3")
    assert broken.code == 1
    assert broken.json()["verdict"] == "broken"
    assert "no such column" in broken.json()["why"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_rehearsal_that_is_given_up_leaves_nothing(isolated_environment: dict[str, str], number: int) -> None:
    place = Path(isolated_environment["TMPDIR"])
    with started("drill", *job("good", 100_000)) as process:
        wait_until(lambda: list(place.glob("holdfast-drill-*/runs/*/attempts/1/heartbeat.json")), what="a beat")
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130
    assert list(place.iterdir()) == []
