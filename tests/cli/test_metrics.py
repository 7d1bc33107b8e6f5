"""``holdfast metrics``: what was logged, over attempts, with rows that are none; and the curve of `show`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.live.metrics import read_curve
from holdfast.core.run.progress import spread_out, thin_out
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


def make_runs(root: str, logged: dict[str, list[dict[str, object]]]) -> dict[str, str]:
    """Ended runs of these names that logged this; their ids."""
    ids = {}
    for number, (name, rows) in enumerate(logged.items()):
        ids[name] = f"20261120-1045{number:02d}-{name}-0a1b"
        log(make_run(root, ids[name], ended()), 1, rows)
    return ids


def test_a_value_that_was_not_logged_is_refused_with_a_near_one(isolated_environment: dict[str, str]) -> None:
    rows: list[dict[str, object]] = [{"step": 1, "loss": 0.5, "accuracy": 0.1}]
    make_runs(isolated_environment["HOLDFAST_RUNS"], {"x1": rows, "other": rows, "bare": []})
    done = say("metrics", "x1", "los")
    assert (done.code, done.out) == (66, "")
    assert "x1 logged no 'los', and no run is called so; logged is loss, accuracy" in done.err
    assert "did you mean loss?" in done.err
    assert "did you mean other?" in say("metrics", "x1", "others").err
    assert say("metrics", "--json", "x1", "zzz").code == 66
    assert "x1 and other logged no 'zzz'" in say("metrics", "x1", "other", "zzz").err
    # Before anything is logged nobody can know what is misspelt.
    assert (say("metrics", "bare", "los").code, "logged no values" in say("metrics", "bare", "los").err) == (0, True)
    followed = say("metrics", "-f", "x1", "los")
    assert (followed.code, "x1 logged no 'los'" in followed.err) == (0, True)


def test_runs_are_compared_on_one_axis(isolated_environment: dict[str, str]) -> None:
    long: list[dict[str, object]] = [{"step": step, "loss": 10.0 - step} for step in range(10)]
    short: list[dict[str, object]] = [{"step": step, "loss": 19.0 - step, "lr": 0.1} for step in range(5)]
    ids = make_runs(isolated_environment["HOLDFAST_RUNS"], {"a": long, "b": short, "loss": short, "none": []})
    done = say("metrics", "a", "b")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["NAME", "RUN", "FIRST", "LAST", "LOWEST", "HIGHEST", "STEP", "CURVE"]
    assert [row[:7] for row in rows[1:]] == [
        ["loss", "a", "10", "1", "1", "10", "9"],
        ["loss", "b", "19", "15", "15", "19", "4"],
        ["lr", "b", "0.1", "0.1", "0.1", "0.1", "4"],
    ]
    assert (len(rows[1][7]), 10 < len(rows[2][7]) < 16) == (30, True)
    assert set(rows[2][7]) <= set("▆▇█*#@")
    # What the first run logged is a value, also where a run is called so: that one answers to its id.
    assert [line.split()[0] for line in say("metrics", "a", "loss").out.splitlines()[3:]] == ["loss"]
    assert len(say("metrics", "a", ids["loss"], "loss").out.splitlines()) == 3
    found = say("metrics", "--json", "a", "b", "loss").json()["runs"]
    assert [(one["run_id"], len(one["rows"])) for one in found] == [(ids["a"], 10), (ids["b"], 5)]
    assert [one["name"] for one in found[1]["series"]] == ["loss"]
    assert found[1]["series"][0]["curve_steps"] == [0, 1, 2, 3, 4]
    assert "none has logged none of these" in say("metrics", "a", "none").err
    for words in (("-f", "a", "b"), ("-n", "3", "a", "b")):
        assert say("metrics", *words).code == 64, words


def test_so_many_runs_and_no_more_are_compared(isolated_environment: dict[str, str]) -> None:
    rows: list[dict[str, object]] = [{"loss": 1.0}]
    ids = make_runs(isolated_environment["HOLDFAST_RUNS"], {f"r{number}": rows for number in range(17)})
    done = say("metrics", *ids)
    assert (done.code, "17 runs to compare, and 16 are the most" in done.err) == (64, True)
    assert say("metrics", *list(ids)[:16], "r0").code == 0


def test_a_course_is_laid_out_by_its_steps() -> None:
    assert spread_out([(0, 1.0), (4, 3.0)], 0, 8, 4) == [1.0, 1.0, 3.0, None]
    assert spread_out([(6, 1.0), (7, 3.0)], 0, 8, 4) == [None, None, None, 2.0]
    assert spread_out([(3, 1.0)], 3, 3, 2) == [1.0, None]
    assert spread_out([], 0, 1, 2) == [None, None]


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
