"""wait_until: answers what became true, and says in words what did not."""

from __future__ import annotations

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.pure


def test_answers_the_first_true_value() -> None:
    answers = iter([0, None, "", "ready", "later"])
    assert wait_until(lambda: next(answers)) == "ready"


def test_asks_even_when_there_is_no_time() -> None:
    assert wait_until(lambda: 7, timeout_s=0) == 7


def test_failure_names_the_condition_and_the_last_answer() -> None:
    with pytest.raises(AssertionError, match=r"in vain for: the lease is free \(last answer: \[\]\)"):
        wait_until(list, timeout_s=0, what="the lease is free")


def test_what_the_condition_raises_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0)
