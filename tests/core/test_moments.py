"""Moments as people write and read them."""

from __future__ import annotations

import pytest

from holdfast.core.moments import at_zone, format_moment, parse_moment, parse_past, show_times
from holdfast.core.reader import READER
from holdfast.model.errors import UsageError

pytestmark = pytest.mark.pure

NOW = 1_795_000_000.0


def test_moments_are_read_as_people_write_them() -> None:
    assert parse_moment("+2h", NOW) == NOW + 7200
    assert parse_moment("now", NOW) is None
    assert parse_moment("2026-11-21T08:00Z", NOW) == 1795248000.0
    next_time = parse_moment(format_moment(NOW + 3600, NOW)[-5:], NOW)
    assert next_time is not None
    assert NOW < next_time <= NOW + 86400
    for wrong in ("25:00", "soon", "+", "2026-13-01", "0001-01-01T00:00", "9999-12-31T23:59-14:00"):
        with pytest.raises(UsageError, match="no time"):
            parse_moment(wrong, NOW)


def test_moments_that_have_been_are_read_as_people_write_them() -> None:
    assert parse_past("7d", NOW) == NOW - 7 * 86400
    assert parse_past(" 1h30m ", NOW) == NOW - 5400
    assert parse_past("2026-11-01T08:00Z", NOW) == 1793520000.0
    assert parse_past("2026-11-01", NOW) == parse_moment("2026-11-01T00:00", NOW)
    today = parse_past("today", NOW)
    assert format_moment(today, NOW) == "00:00"
    assert NOW - 86400 < today <= NOW
    assert parse_past(" Yesterday", NOW) == parse_past(f"{at_zone(today - 3600):%Y-%m-%d}", NOW)
    for offset in (-3600, 3600):
        found = parse_past(format_moment(NOW + offset, NOW)[-5:], NOW)
        assert NOW - 86400 < found <= NOW
    for wrong in ("soon", "+2h", "2026-13-01", "5000d", "25:00", "7", "1.5", "2027-01-01", ""):
        with pytest.raises(UsageError, match="--since"):
            parse_past(wrong, NOW)
    with pytest.raises(UsageError, match=r"^--since: 'soon' is no time$"):
        parse_past("soon", NOW)
    with pytest.raises(UsageError, match="comes yet") as future:
        parse_past("2027-01-01", NOW)
    assert "2026-11-01" not in future.value.hint, "it was written rightly"


def test_a_date_alone_as_an_end_is_the_end_of_that_day() -> None:
    assert parse_past("2026-11-01", NOW, ends=True) == parse_past("2026-11-02", NOW)
    today = f"{at_zone(NOW):%Y-%m-%d}"
    assert parse_past(today, NOW, ends=True) > NOW, "the day that is not over, too"
    for text in ("today", "yesterday", "7d", "2026-11-01T08:00"):
        assert parse_past(text, NOW, ends=True) == parse_past(text, NOW)
    with pytest.raises(UsageError, match="comes yet"):
        parse_past("2027-01-01", NOW, ends=True)


def test_a_moment_without_a_date_in_this_zone_can_be_shown() -> None:
    # Of an older queue, or of a clock that was set wrong: one such job must not keep the whole list from being shown.
    assert format_moment(253402351140.0, NOW) == "253402351140 s after 1970"
    assert format_moment(-62135596800.0, NOW) == "-62135596800 s after 1970"


@pytest.mark.parametrize(
    ("zone", "shown", "morning"),
    [
        ("Asia/Kathmandu +0545", "2026-11-18 16:51", 1795227300.0),
        ("No/Such +0100", "2026-11-18 12:06", 1795244400.0),
        (" -0330", "2026-11-18 07:36", 1795260600.0),
    ],
)
def test_who_sends_a_command_from_another_zone_reads_and_writes_its_own(
    monkeypatch: pytest.MonkeyPatch, zone: str, shown: str, morning: float
) -> None:
    monkeypatch.setattr(READER, "zone", zone)
    assert format_moment(NOW, NOW + 3 * 86400) == shown
    assert parse_moment("2026-11-21T08:00", NOW) == morning
    assert parse_moment(shown[-5:], NOW - 60) == NOW - NOW % 60
    assert parse_moment("2026-11-21T08:00Z", NOW) == 1795248000.0


@pytest.mark.parametrize("zone", ["", "nonsense", "../../etc/passwd +0100x", "/etc/passwd +01", "UTC +9999"])
def test_what_is_no_zone_is_this_box_s(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    here = format_moment(NOW, NOW + 3 * 86400)
    monkeypatch.setattr(READER, "zone", zone)
    assert zone.startswith("UTC") or format_moment(NOW, NOW + 3 * 86400) == here


def test_a_start_time_is_never_shown_earlier_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(READER, "zone", "No/Such +0000")
    minute = NOW - NOW % 60
    assert format_moment(minute + 41.5, NOW, exact=True) == f"{format_moment(minute, NOW)}:41"
    assert format_moment(minute, NOW, exact=True) == format_moment(minute, NOW)


def test_moments_in_a_text_are_shown_by_the_readers_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(READER, "zone", "Asia/Kathmandu +0545")
    assert show_times("anna, since 2026-11-20T12:03:36.066Z (2026-11-20T23:00:00Z)") == (
        "anna, since 2026-11-20 17:48:36 (2026-11-21 04:45:00)"
    )
    for text in ("20261120-120336-sh-1a2b", "9999-99-99T00:00:00Z", "2026-11-20T12:03:36+00:00", ""):
        assert show_times(text) == text
