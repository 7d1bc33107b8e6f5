"""Deadlines, budgets and step times: pure. And what signal handlers may contain, read from their source."""

from __future__ import annotations

import ast
import inspect
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.training.stopping import budget as stopping
from holdfast.training.stopping import signals as stopping_signals
from holdfast.training.stopping.budget import Budget, Deadline, StepClock, StopSignals

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.pure

EPOCH, MONOTONIC = 1_800_000_000.0, 5_000.0


def earliest(environ: dict[str, str], limit_s: float | None = None) -> tuple[Deadline | None, tuple[str, ...]]:
    return stopping.earliest_deadline(environ, time_limit_s=limit_s, now_epoch=EPOCH, now_monotonic=MONOTONIC)


@pytest.mark.requirement("LIB-03")
@pytest.mark.parametrize(
    ("environ", "limit_s", "left_s", "source"),
    [
        ({"HOLDFAST_DEADLINE": "1800000100"}, None, 100, "walltime of the run"),
        ({"SLURM_JOB_END_TIME": "1800000050"}, None, 50, "SLURM_JOB_END_TIME"),
        ({"HOLDFAST_DEADLINE": "1800000100", "SLURM_JOB_END_TIME": "1800000050"}, 60, 50, "SLURM_JOB_END_TIME"),
        ({"HOLDFAST_DEADLINE": "1800000100", "SLURM_JOB_END_TIME": "1800000150"}, 60, 60, "time_limit="),
        ({"HOLDFAST_DEADLINE": "1799999990"}, None, -10, "walltime of the run"),
    ],
)
def test_LIB_03_the_earliest_known_end_counts(
    environ: dict[str, str], limit_s: float | None, left_s: float, source: str
) -> None:
    assert earliest(environ, limit_s) == (Deadline(MONOTONIC + left_s, source), ())


def test_without_any_end_there_is_no_deadline() -> None:
    assert earliest({"HOLDFAST_DEADLINE": ""}) == (None, ())


@pytest.mark.parametrize("text", ["soon", "-5", "0", "nan", "inf", "1e999", "2027-01-01"])
def test_a_value_that_is_no_time_is_named_and_not_followed(text: str) -> None:
    deadline, problems = earliest({"HOLDFAST_DEADLINE": text, "SLURM_JOB_END_TIME": "1800000050"})
    assert deadline == Deadline(MONOTONIC + 50, "SLURM_JOB_END_TIME")
    assert len(problems) == 1
    assert "HOLDFAST_DEADLINE" in problems[0]
    assert text in problems[0]


@pytest.mark.parametrize("limit_s", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_that_is_none_is_an_error(limit_s: float) -> None:
    with pytest.raises(ValueError, match="time_limit"):
        earliest({}, limit_s)


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"HOLDFAST_GRACE": "12.5", "TORCHELASTIC_RUN_ID": "x"}, 12.5),
        ({"HOLDFAST_GRACE": "0"}, 0.0),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90", "TORCHELASTIC_RUN_ID": "x"}, 90.0),
        ({"TORCHELASTIC_RUN_ID": "x"}, 30.0),
        ({"HOLDFAST_GRACE": "long"}, None),
        ({"HOLDFAST_GRACE": "-1", "TORCHELASTIC_RUN_ID": "x"}, 30.0),
    ],
)
def test_the_grace_is_what_was_promised_else_what_torchrun_leaves_else_unknown(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert stopping.grace_s(environ) == seconds


def test_an_unknown_grace_sets_no_deadline_after_a_signal() -> None:
    assert stopping.after_signal(7.0, None) is None
    assert stopping.after_signal(7.0, 5.0) == Deadline(12.0, "grace after the signal")


@pytest.mark.requirement("LIB-03")
@pytest.mark.parametrize("offset_s", [0.0, 0.1, 0.25, 0.4, 0.499])
def test_LIB_03_with_10_s_a_save_of_3_s_and_steps_of_half_a_second_the_last_save_starts_before_7_s_left(
    offset_s: float,
) -> None:
    deadline, now = Deadline(10.0, "walltime of the run"), offset_s
    while not Budget.must_stop(now, deadline, 0.5, 3.0):
        now += 0.5
    assert deadline.at_monotonic - now >= 7.0
    assert now > 2.0, "training time is given away"


def test_a_deadline_in_the_past_means_stop() -> None:
    assert Budget.must_stop(11.0, Deadline(10.0, "x"), 0.0, 0.0)


@pytest.mark.gotcha("SLURM2")
@pytest.mark.requirement("SPOT-01")
def test_SPOT_01_a_save_of_10_s_in_a_grace_of_5_s_is_left_out_and_said_so() -> None:
    fits, words = Budget.flush_fits(5.0, 10.0)
    assert not fits
    assert "left out" in words
    assert "10.0 s" in words
    assert "5.0 s" in words


@pytest.mark.requirement("SPOT-01")
@pytest.mark.parametrize(("left_s", "save_s"), [(30.0, 10.0), (None, 10.0), (5.0, None), (None, None)])
def test_SPOT_01_a_save_that_fits_or_of_which_nobody_knows_is_tried(left_s: float | None, save_s: float | None) -> None:
    assert Budget.flush_fits(left_s, save_s)[0]


def test_a_step_clock_without_steps_knows_nothing() -> None:
    clock = StepClock()
    assert (clock.p99(), clock.rate()) == (0.0, 0.0)


def test_a_step_clock_forgets_what_is_long_ago() -> None:
    clock = StepClock()
    for _ in range(10):
        clock.add(60.0)
    for number in range(256):
        clock.add(0.1 if number % 50 else 0.9)
    assert clock.p99() == 0.9
    assert clock.rate() == pytest.approx(256 / (250 * 0.1 + 6 * 0.9))


def handlers() -> Iterator[ast.FunctionDef]:
    """Every function of the module that is installed as a handler, or called by one."""
    names = {
        "_note",
        "_set",
        "_is_second",
        "_note_in_child",
        "_was_for_all",
        "pass_over",
        "_act_by_default",
        "_plain",
        "_ignore",
    }
    for node in ast.walk(ast.parse(inspect.getsource(stopping_signals))):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            names.discard(node.name)
            yield node
    assert names == set()


def called(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}


IN_THE_TRAINER = {"_note", "_set", "_is_second", "_act_by_default", "_plain"}
HARMLESS = {
    *("time.monotonic", "self._is_second", "self._set", "_act_by_default", "_plain", "callable", "before"),
    *("self._previous.get", "signal.signal", "signal.default_int_handler", "os.kill", "os.getpid"),
}
HARMLESS_IN_CHILDREN = HARMLESS | {
    *("os.getppid", "self._was_for_all", "self._spared.add", "time.sleep", "bool", "_thread.start_new_thread"),
    *("passed.append", "os._exit", "_start_deaf", "signal.pthread_sigmask", "signal.valid_signals"),
}


@pytest.mark.gotcha("SLURM1")
@pytest.mark.requirement("LIB-01", "B-17")
def test_LIB_01_a_handler_does_nothing_but_set_a_flag_and_hand_on() -> None:
    for function in handlers():
        allowed = HARMLESS if function.name in IN_THE_TRAINER else HARMLESS_IN_CHILDREN
        assert called(function) <= allowed, function.name
        assert not any(isinstance(node, (ast.With, ast.Import, ast.ImportFrom)) for node in ast.walk(function))


@pytest.mark.requirement("LIB-01")
def test_LIB_01_every_handler_that_is_installed_is_one_of_those_that_were_read() -> None:
    tree = ast.parse(inspect.getsource(stopping_signals))
    given = {
        ast.unparse(node.args[1])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal"
    }
    ours = {"self._note", "pass_over", "_ignore", "_plain(before) if number == signal.SIGHUP else self._note_in_child"}
    given_back = {"_plain(before)", "_plain(self._previous.get(signum))"}
    assert given == ours | given_back | {"signal.SIG_DFL", "signal.default_int_handler"}


def test_a_posted_signal_sets_the_flag_once() -> None:
    signals = StopSignals()
    signals.post(signal.SIGTERM)
    first = signals.at
    signals.post(signal.SIGINT)
    assert (signals.flag, signals.at) == (signal.SIGTERM, first)


def test_outside_of_the_main_thread_nothing_is_installed() -> None:
    signals = StopSignals()
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=signals.install)
    thread.start()
    thread.join()
    assert not signals.installed
    assert signal.getsignal(signal.SIGTERM) is before
