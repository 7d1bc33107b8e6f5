"""How often to save: the formula, its cut to steps, its bounds, and what people write."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.cadence import (
    Cadence,
    CadenceKind,
    SaveInterval,
    checkpoint_bytes,
    parse_every,
    steps_per_interval,
    young_interval_s,
)
from tests.each import each

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.pure

AUTO = SaveInterval(CadenceKind.AUTO)
HOUR = 3600.0
NO_MORE_OFTEN = "but no more often than 10 x the pause and the time that a save takes"


def measured(durable_s: float, paused_s: float = 0.0, **settings: Any) -> Cadence:
    """An automatic cadence that begins at step 0, second 0, and knows how long a save takes."""
    cadence = Cadence(AUTO, **settings)
    cadence.begin(0, 0.0)
    cadence.note_save(durable_s, paused_s)
    return cadence


def first_due(cadence: Cadence, step_s: float, *, start: int = 0, at: float = 0.0, most: int = 5000) -> int:
    """The first step boundary at which a save is due, steps all taking `step_s`."""
    boundaries = range(start + 1, start + most)
    return next(step for step in boundaries if cadence.due(step, at + (step - start) * step_s, step_s))


@pytest.mark.gotcha("NB5")
@pytest.mark.requirement("CKPT-09")
def test_CKPT_09_a_save_of_30_s_and_an_interruption_each_3_h_give_804_98_s() -> None:
    assert round(young_interval_s(30, 10800), 2) == 804.98
    assert steps_per_interval(young_interval_s(30, 10800), 2.0) == 402


@pytest.mark.requirement("CKPT-09")
def test_CKPT_09_four_machines_halve_the_interval() -> None:
    assert young_interval_s(30, 10800, workers=4) == pytest.approx(young_interval_s(30, 10800) / 2)


@pytest.mark.parametrize(
    "wrong",
    [(0, 10800, 1), (-1, 10800, 1), (math.nan, 10800, 1), (30, 0, 1), (30, math.inf, 1), (30, 10800, 0)],
)
def test_an_interval_of_nonsense_is_refused(wrong: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match=r"positive number|at least 1"):
        young_interval_s(*wrong)


@pytest.mark.parametrize(
    ("interval_s", "step_s", "steps"),
    [(10, 3, 3), (10, 10, 1), (10, 11, 1), (10, 0, 1), (10, math.nan, 1), (math.inf, 1, 1), (0, 1, 1)],
)
def test_steps_are_rounded_down_and_at_least_one(interval_s: float, step_s: float, steps: int) -> None:
    assert steps_per_interval(interval_s, step_s) == steps


@pytest.mark.requirement("CKPT-09")
def test_CKPT_09_a_save_is_due_at_step_402_of_2_s_and_shown_so() -> None:
    cadence = measured(30.0)
    assert first_due(cadence, 2.0) == 402
    assert cadence.describe() == "every 402 steps (about 13 m 25 s): sqrt(2 x 3 h x 30 s)"


def test_the_next_interval_counts_from_the_begin_of_the_save() -> None:
    cadence = measured(30.0)
    cadence.saving(402, 804.0)
    cadence.note_save(30.0, 0.1)
    assert first_due(cadence, 2.0, start=402, at=804.0) == 804


def test_a_long_evaluation_counts_as_time() -> None:
    cadence = measured(30.0)
    assert not cadence.due(10, 20.0, 2.0)
    assert cadence.due(11, 900.0, 2.0)


def test_before_any_measure_the_first_save_comes_after_a_minute() -> None:
    cadence = Cadence(AUTO)
    cadence.begin(0, 0.0)
    assert first_due(cadence, 2.0) == 30
    assert "first save" in cadence.describe()


def test_while_a_save_is_in_flight_none_is_due_by_time() -> None:
    for every in (AUTO, SaveInterval(CadenceKind.TIME, 10.0)):
        cadence = Cadence(every)
        cadence.begin(0, 0.0)
        cadence.saving(5, 10.0)
        assert not cadence.due(1000, 1e6, 1.0)
        cadence.note_save(1.0, 0.0)
        assert cadence.due(1000, 1e6, 1.0)


def test_a_failed_save_is_tried_again_after_a_minute_then_two() -> None:
    cadence = measured(30.0)
    cadence.saving(10, 100.0)
    cadence.note_failure()
    assert first_due(cadence, 1.0, start=10, at=100.0) == 70
    cadence.saving(70, 160.0)
    cadence.note_failure()
    assert first_due(cadence, 1.0, start=70, at=160.0) == 190


@pytest.mark.parametrize(
    ("durable_s", "paused_s", "interval_s"),
    [(1200, 0, HOUR), (0.1, 20, 200), (4000, 0, 4000), (0, 0, 1), (1, 400, 4000)],
    ids=["once an hour", "ten times the pause", "not before the last is durable", "a second", "pause above the hour"],
)
def test_the_interval_is_bounded(durable_s: float, paused_s: float, interval_s: float) -> None:
    assert measured(durable_s, paused_s).interval_s == interval_s


def test_one_slow_save_does_not_decide() -> None:
    cadence = measured(30.0)
    cadence.note_save(30.0, 0.0)
    cadence.note_save(3000.0, 0.0)
    assert cadence.interval_s == young_interval_s(30, 10800)


def test_measures_that_are_no_times_are_left_out() -> None:
    cadence = measured(30.0)
    cadence.note_save(math.nan, -1.0)
    assert cadence.interval_s == young_interval_s(30, 10800)


def test_every_500_steps_means_multiples_also_after_a_resume() -> None:
    cadence = Cadence(parse_every(500))
    cadence.begin(730, 0.0)
    assert first_due(cadence, 1.0, start=730) == 1000
    assert cadence.describe() == "every 500 steps"
    assert cadence.interval_s is None


def test_a_count_of_steps_is_kept_to_while_a_save_is_in_flight() -> None:
    cadence = Cadence(parse_every(500))
    cadence.begin(0, 0.0)
    cadence.saving(500, 0.0)
    assert not cadence.due(999, 1.0, 1.0)
    assert cadence.due(1000, 1.0, 1.0)


def test_an_overtaken_multiple_is_made_up_for() -> None:
    cadence = Cadence(parse_every(500))
    cadence.begin(0, 0.0)
    cadence.saving(500, 0.0)
    cadence.note_save(1.0, 0.0)
    assert cadence.due(1001, 2.0, 1.0)


def test_every_10_minutes_is_never_later_than_that() -> None:
    cadence = Cadence(parse_every("10m"))
    cadence.begin(0, 0.0)
    assert first_due(cadence, 7.0) == 85
    assert cadence.describe() == "every 85 steps (about 10 m)"


def test_never_is_never_and_says_when_it_saves() -> None:
    cadence = Cadence(parse_every(None))
    cadence.begin(0, 0.0)
    assert not cadence.due(10**9, 1e9, 1.0)
    assert cadence.describe() == "only at the end and when asked"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cadence(parse_every("10m")), "about every 10 m"),
        (lambda: Cadence(parse_every(1)), "every step"),
        (lambda: measured(30.0, workers=4), "about every 6 m 42 s: sqrt(2 x 3 h / 4 x 30 s)"),
        (lambda: measured(1200.0), "about every 1 h: sqrt(2 x 3 h x 20 m), but at least once an hour"),
        (
            lambda: measured(0.5, 20.0),
            f"about every 3 m 20 s: sqrt(2 x 3 h x 0.5 s), {NO_MORE_OFTEN}",
        ),
        (lambda: measured(30.0, interruption_s=7500.0), "about every 11 m 11 s: sqrt(2 x 2 h 05 m x 30 s)"),
    ],
)
def test_the_description_says_what_decides(make: Callable[[], Cadence], said: str) -> None:
    assert make().describe() == said


def test_a_cadence_of_nonsense_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="interruptions"):
        Cadence(AUTO, interruption_s=0)


class Index:
    """What numpy's integers are to us: something with __index__."""

    def __index__(self) -> int:
        return 20


@each(
    ("written", "meant"),
    [
        ("auto", AUTO),
        (" AUTO ", AUTO),
        ("never", SaveInterval(CadenceKind.NEVER)),
        (None, SaveInterval(CadenceKind.NEVER)),
        (500, SaveInterval(CadenceKind.STEPS, 500)),
        ("500", SaveInterval(CadenceKind.STEPS, 500)),
        ("500 steps", SaveInterval(CadenceKind.STEPS, 500)),
        ("1 step", SaveInterval(CadenceKind.STEPS, 1)),
        (Index(), SaveInterval(CadenceKind.STEPS, 20)),
        ("10m", SaveInterval(CadenceKind.TIME, 600)),
        ("30s", SaveInterval(CadenceKind.TIME, 30)),
        ("2h", SaveInterval(CadenceKind.TIME, 7200)),
        ("1h30m", SaveInterval(CadenceKind.TIME, 5400)),
        ("1 h 30 min", SaveInterval(CadenceKind.TIME, 5400)),
        ("0.5h", SaveInterval(CadenceKind.TIME, 1800)),
        ("2 days", SaveInterval(CadenceKind.TIME, 172800)),
        (SaveInterval(CadenceKind.TIME, 5), SaveInterval(CadenceKind.TIME, 5)),
    ],
)
def test_what_people_write_is_understood(written: object, meant: SaveInterval) -> None:
    assert parse_every(written) == meant


@each(
    "wrong",
    [
        *(
            True,
            False,
            0,
            -3,
            2.5,
            600.0,
            "",
            " ",
            "0",
            "0 steps",
            "-5",
            "0s",
            "0m",
            "ten",
            "10x",
            "10m!",
            "m10",
            "1e3",
        ),
        *("99999999999999999999999999", "1000000 days", "10 ms", "٣", "5 steps 3m", [5], object(), math.nan),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_was_expected(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"every=.*(write every=|or None for never)"):
        parse_every(wrong)


def test_a_plain_float_is_told_that_numbers_are_steps() -> None:
    with pytest.raises(ValueError, match='90 seconds are "90s"'):
        parse_every(90.0)


@pytest.mark.requirement("CKPT-16", "B-53")
def test_CKPT_16_100e9_parameters_are_well_over_1_TB_and_not_200_GB() -> None:
    assert checkpoint_bytes(100 * 10**9) == 1_200_000_000_000
    mixed = checkpoint_bytes(100 * 10**9, dtype_bytes=2, master_weights=True)
    assert mixed == 1_400_000_000_000
    weights_only = checkpoint_bytes(100 * 10**9, dtype_bytes=2, optimizer="none")
    assert weights_only == 200_000_000_000
    assert 6 <= mixed / weights_only <= 8


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [("AdamW", 12), ("adam_8bit", 6), ("momentum", 8), ("sgd", 4), ("Lion", 8), ("adafactor", 4)],
)
def test_the_optimizer_decides_the_size(optimizer: str, size: int) -> None:
    assert checkpoint_bytes(1, optimizer=optimizer) == size


def test_an_unknown_optimizer_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'shampoo' is not known; known: .*adam"):
        checkpoint_bytes(1, optimizer="shampoo")
    with pytest.raises(ValueError, match="counts of 0 and 1 or more"):
        checkpoint_bytes(-1)


def test_the_next_step_that_a_count_names_is_the_first_that_is_due() -> None:
    for count in (1, 7, 500):
        cadence = Cadence(SaveInterval(CadenceKind.STEPS, float(count)))
        cadence.begin(730, 0.0)
        due = next(step for step in range(731, 2000) if cadence.due(step, 0.0, 0.0))
        assert cadence.next_step == due
    assert Cadence(AUTO).next_step == math.inf
