"""How long a card has rested: only what was seen counts."""

from __future__ import annotations

import pytest

from holdfast.core.patrol.idle import find_idle_since, is_idle_now

pytestmark = pytest.mark.pure


def test_idleness_is_the_unbroken_rest_before_the_last_sample() -> None:
    assert find_idle_since([(0.0, 0), (30.0, 90), (60.0, 0), (90.0, 5)]) == 60.0
    assert find_idle_since([(0.0, 0), (30.0, 6)]) is None
    assert find_idle_since([]) is None


def test_what_was_not_read_is_no_idleness() -> None:
    assert find_idle_since([(0.0, 0), (30.0, None), (60.0, 0)]) == 60.0
    assert find_idle_since([(0.0, 0), (9000.0, 0)]) == 9000.0
    assert not is_idle_now([0, None, 0])
    assert not is_idle_now([])
    assert is_idle_now([0, 5])
