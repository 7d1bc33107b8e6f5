"""What a script forgot to track is said; what it did right is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import training
from holdfast.training.forgotten_state import compare_rates

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.files, pytest.mark.requirement("CKPT-14")]


@pytest.mark.slow
def test_untracked_parts_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    scaler = torch.amp.GradScaler("cpu")
    with training.run(tmp_path) as run:
        run.track(model=model)
        for _ in run.steps(2):
            pass
    words = capsys.readouterr().err
    assert "an optimizer (SGD) is not tracked" in words
    assert "a moving average of the weights (AveragedModel) is not tracked" in words
    assert "a gradient scaler (GradScaler) is not tracked" in words
    assert words.count("is not tracked") == 3
    del optimizer, average, scaler


@pytest.mark.slow
def test_a_script_that_tracks_everything_hears_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.StepLR(optimizer, 3)]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [2])
    with training.run(tmp_path) as run:
        run.track(model=model, optimizer=optimizer, schedule=schedule)
        for _ in run.steps(2):
            optimizer.step()
            schedule.step()
    assert "tracked" not in capsys.readouterr().err


@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["before", "after"])
def test_a_schedule_that_is_built_after_the_resume_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, late: bool
) -> None:
    for steps in (4, 6):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with training.run(tmp_path) as run:
            run.track(model=model, optimizer=optimizer)
            if late:
                run.resume()
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 0.5**at)
            if not late:
                run.track(schedule=schedule)
            for _ in run.steps(steps):
                optimizer.step()
                if not (late and steps == 6):
                    schedule.step()
    words = capsys.readouterr().err
    assert ("the learning rate of optimizer was 0.00625 in the checkpoint and is 0.1 again" in words) == late


def test_rates_that_moved_on_are_no_oversight() -> None:
    assert compare_rates({"o": [0.1]}, {"o": [0.01]}, {"o": [0.009]}) == []
    assert compare_rates({"o": [0.1]}, {"o": [0.1]}, {"o": [0.1]}) == []


@pytest.mark.slow
def test_an_optimizer_without_its_model_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(2, 2)
    with training.run(tmp_path) as run:
        run.track(optimizer=torch.optim.SGD(model.parameters(), 0.1))
        for _ in run.steps(1):
            pass
    assert "optimizer trains parameters of a module that is not tracked" in capsys.readouterr().err


def test_a_run_that_tracks_nothing_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with training.run(tmp_path) as run:
        for _ in run.steps(1):
            pass
    kept = "run.track(): a checkpoint has the step and the random states only"
    assert kept in capsys.readouterr().err


def test_what_is_kept_in_the_run_s_own_state_is_not_denied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with training.run(tmp_path) as run:
        for step in run.steps(1):
            run.state["x"] = step
    assert "run.track(): a checkpoint has run.state, the step and the random" in capsys.readouterr().err


@pytest.mark.slow
def test_a_learning_rate_that_was_edited_is_said_once_and_the_checkpoint_s_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for steps, rate in ((2, 0.1), (4, 0.025), (6, 0.025)):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 0.5**at)
        with training.run(tmp_path) as run:
            run.track(model=model, optimizer=optimizer, schedule=schedule)
            for _ in run.steps(steps):
                optimizer.step()
                schedule.step()
        words = capsys.readouterr().err
        said.append("a learning rate of 0.025, it was 0.1: the checkpoint's goes on" in words)
        assert ("run.resume()" in words) is said[-1], "with what to do"
    assert said == [False, True, False]


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_learning_rate_is_changed_after_a_stop_as_the_documentation_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, scheduled: bool
) -> None:
    used, said = [], []
    for steps, lr in ((2, 0.1), (4, 0.05), (6, 0.05)):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 0.5**at) if scheduled else None
        with training.run(tmp_path) as run:
            run.track(model=model, optimizer=optimizer, schedule=schedule)
            run.resume()
            if run.state.get("lr") != lr:
                run.state["lr"] = lr
                for group in optimizer.param_groups:
                    group["lr"] = lr
                if schedule is not None:
                    schedule.base_lrs = [lr] * len(schedule.base_lrs)
            for _ in run.steps(steps):
                optimizer.step()
                if schedule is not None:
                    schedule.step()
                used.append(optimizer.param_groups[0]["lr"])
        said.append([line for line in capsys.readouterr().err.splitlines() if "learning rate" in line])
    base = (0.1, 0.1, 0.05, 0.05, 0.05, 0.05)
    assert used == pytest.approx([rate * 0.5**at if scheduled else rate for at, rate in enumerate(base, start=1)])
    assert said == [
        [],
        ["holdfast: the script builds optimizer with a learning rate of 0.05, it was 0.1: it goes on with 0.05"],
        [],
    ]
