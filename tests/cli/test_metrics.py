"""``holdfast metrics``: what was logged, over attempts, with rows that are none; and the curve of `show`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.live.metrics import read_curve
from holdfast.core.run.progress import thin_out
from holdfast.model import wire
from holdfast.model.run import Outcome
from tests.cli.live import started
from tests.cli.queues import say
from tests.rundirs import ended, living_process, make_run, running, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cli


def log(run_dir: str, attempt: int, rows: list[dict[str, object]], more: str = "") -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write(f"{wire.attempt_dir(run_dir, attempt)}/{wire.METRICS}", text + more)


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> str:
    """A run that logged steps 0 to 4, was killed, and went on from step 3."""
    root = isolated_environment["HOLDFAST_RUNS"]
    make_run(root, state=ended(Outcome.FAILED, 1))
    made = make_run(root, state=ended(), attempt=2)
    log(made, 1, [{"step": step, "epoch": None, "time": 1.0, "loss": 9.0} for step in range(5)])
    again: list[dict[str, object]] = [
        {"step": step, "loss": 1.0 / step, "lr": "nan" if step == 4 else 0.1} for step in range(3, 6)
    ]
    log(made, 2, again, "no json\n[1]\n")
    return made


def test_steps_that_were_done_again_count_once(run_dir: str) -> None:
    assert os.path.isdir(run_dir)
    found = json.loads(say("metrics", "--json", "digits").out)
    assert [row["step"] for row in found["rows"]] == [0, 1, 2, 3, 4, 5]
    series = {one["name"]: one for one in found["series"]}
    assert (series["loss"]["first"], series["loss"]["last"], series["loss"]["count"]) == (9.0, 0.2, 6)
    assert (series["lr"]["count"], series["lr"]["nonfinite"], found["unread"]) == (3, 1, 2)
    only = json.loads(say("metrics", "--json", "digits", "lr", "--attempt", "2").out)
    assert [one["name"] for one in only["series"]] == ["lr"]


def test_as_text_each_value_has_a_row_and_its_curve(run_dir: str) -> None:
    assert os.path.isdir(run_dir)
    done = say("metrics", "digits")
    (line,) = [line for line in done.out.splitlines() if line.startswith("loss")]
    assert line.split()[1:6] == ["9", "0.2", "0.2", "9", "5"]
    assert len(line.split()[6]) == 6
    assert "1 of 3 values is no finite number" in done.err
    assert say("metrics", "digits", "loss", "-n", "2").out.splitlines()[1:] == ["   4  0.25", "   5   0.2"]
    assert "loss" in say("show", "digits").out.partition("progress")[2]


def test_a_run_that_logged_nothing_says_so(isolated_environment: dict[str, str]) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    done = say("metrics", "digits")
    assert (done.code, "logged no values" in done.err) == (0, True)


def test_the_curve_of_a_large_file_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / wire.METRICS
    path.write_text("".join(f'{{"step":{step},"loss":{60000 - step}}}\n' for step in range(60000)))
    name, curve = read_curve(str(path))
    assert (name, len(curve)) == ("loss", 60)
    assert list(curve) == sorted(curve, reverse=True)
    assert read_curve(str(tmp_path / "none")) == ("", ())
    assert thin_out([1.0, 3.0, 5.0, 7.0], 2) == (2.0, 6.0)


def test_numbers_that_no_float_holds_break_nothing(isolated_environment: dict[str, str]) -> None:
    made = make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    log(made, 1, [{"step": 1, "loss": 10**400}, {"step": 2, "loss": 1.7e308}, {"step": 3, "loss": -1.7e308}])
    done = say("metrics", "digits")
    assert (done.code, "1 of 3 values is no finite number" in done.err) == (0, True)
    assert say("show", "digits").code == 0
    assert thin_out([1.7e308] * 4, 2) == (1.7e308, 1.7e308)


@pytest.mark.slow
def test_rows_are_followed_as_they_are_logged(isolated_environment: dict[str, str]) -> None:
    alive = living_process(os.getpid())
    made = make_run(isolated_environment["HOLDFAST_RUNS"], state=running(), supervisor=alive)
    log(made, 1, [{"step": 1, "time": 1.0, "loss": 0.5, "lr": 0.1}], more="no json\n")
    with started("metrics", "--follow", "digits", "loss") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "step 1  loss 0.5\n"
        with open(f"{wire.attempt_dir(made, 1)}/{wire.METRICS}", "a", encoding="utf-8") as file:
            file.write('{"step": 2, "lr": 0.1}\n{"step": 3, "loss": 0.25, "lr": 0.1}\n')
        assert follower.stdout.readline() == "step 3  loss 0.25\n"
        assert follower.poll() is None
    assert say("metrics", "-f", "--json", "digits").code == 64
