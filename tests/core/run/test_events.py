"""The alphabet of the table: complete, frozen, comparable, and named as its kind is named."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.core.run import events
from holdfast.core.run.events import EVENTS, Action, Arm, EmptyTree, RunPlan, SimpleAction, Timer, TimerFired
from holdfast.model.record import fields
from tests.each import each

pytestmark = pytest.mark.pure


def test_every_event_is_listed_once_and_frozen() -> None:
    assert set(EVENTS) == set(get_args(events.Event))
    assert len(set(EVENTS)) == len(EVENTS)
    for kind in EVENTS:
        assert "__setattr__" in vars(kind)
        assert not hasattr(kind, "__dict__") or "__slots__" in vars(kind)
        assert kind.__doc__


def test_events_and_actions_do_not_overlap() -> None:
    assert not set(get_args(Action)) & set(EVENTS)


@each("order", list(SimpleAction))
def test_orders_are_imperative_and_distinct(order: SimpleAction) -> None:
    assert order.value == order.name.lower()


def test_actions_can_be_compared() -> None:
    assert Arm(Timer.RUN, 1.0) == Arm(Timer.RUN, 1.0) != Arm(Timer.TOTAL, 1.0)
    assert EmptyTree(0.0) != EmptyTree(5.0)
    assert TimerFired(Timer.GRACE) == TimerFired(Timer.GRACE, progressing=False)


def test_a_plan_without_words_has_no_deadline_but_those_of_our_own_work() -> None:
    limits = {field.name: field.default for field in fields(RunPlan)}
    assert (limits["run_s"], limits["total_s"], limits["max_hold_s"]) == (None, None, None)
    assert limits["wait_s"] == 0.0
    assert (limits["preflight_s"], limits["postflight_s"]) == (120.0, 300.0)
