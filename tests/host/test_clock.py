"""Clocks: each answers its own question, and a time that is written can be read back."""

from __future__ import annotations

import os
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.host import clock

pytestmark = pytest.mark.process

YEAR_9999 = 253_402_300_799_999


@given(st.integers(0, YEAR_9999))
def test_a_time_is_written_and_read_back_to_the_millisecond(milliseconds: int) -> None:
    text = clock.format_utc(milliseconds / 1000)
    assert clock.format_utc(clock.parse_utc(text)) == text
    assert clock.parse_utc(text) == pytest.approx(milliseconds / 1000, abs=0.0006)


@given(st.integers(0, YEAR_9999 - 1), st.integers(1, 10**9))
def test_written_times_sort_as_they_are(milliseconds: int, later: int) -> None:
    first, second = milliseconds / 1000, min(milliseconds + later, YEAR_9999) / 1000
    assert clock.format_utc(first) <= clock.format_utc(second)


@pytest.mark.parametrize(
    ("epoch_s", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1795171501.123, "2026-11-20T10:45:01.123Z"),
        (1795171501.9996, "2026-11-20T10:45:02.000Z"),
        (99999999999999999.0, "9999-12-31T23:59:59.999Z"),
        (-99999999999999999.0, "1000-01-01T00:00:00.000Z"),
    ],
)
def test_the_form(epoch_s: float, text: str) -> None:
    assert clock.format_utc(epoch_s) == text


def test_a_time_without_milliseconds_is_read_too() -> None:
    assert clock.parse_utc("1970-01-01T00:00:10Z") == 10.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-20",
        "2026-13-20T10:45:01Z",
        "2026-11-20T10:45:01.1x3Z",
        "2026-02-29T10:45:01Z",
        "2026-11-20 10:45:61Z",
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        clock.parse_utc(text)


def test_the_time_zone_of_the_box_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        assert clock.format_utc(0) == "1970-01-01T00:00:00.000Z"
        assert clock.parse_utc("1970-01-01T00:00:00.000Z") == 0.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_now_lies_between_before_and_after() -> None:
    before = clock.epoch_s()
    now = clock.utc_now()
    assert before - 0.001 <= clock.parse_utc(now) <= clock.epoch_s() + 0.001
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", now)


def test_clocks_that_nobody_can_set_do_not_go_back() -> None:
    assert clock.monotonic_s() <= clock.monotonic_s()
    first = clock.boottime_ns()
    assert first <= clock.boottime_ns()
    with open("/proc/uptime", encoding="ascii") as file:
        uptime_s = float(file.read().split()[0])
    assert first / 1e9 <= uptime_s + 0.02


def test_the_boot_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"[0-9a-f-]{36}", clock.boot_id())
    assert clock.boot_id() == clock.boot_id()
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "another-boot")
    assert clock.boot_id() == "another-boot"
    assert "HOLDFAST_BOOT_ID" in os.environ
