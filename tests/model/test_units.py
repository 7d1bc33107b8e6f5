"""Durations and sizes: what people write is understood or refused, never guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.units import format_bytes, format_count, format_duration, parse_bytes, parse_duration
from tests.each import each

pytestmark = pytest.mark.pure

TEN_YEARS_S = 10 * 365 * 86400


@each(
    ("text", "seconds"),
    [
        ("90", 90.0),
        (90, 90.0),
        (1.5, 1.5),
        ("90s", 90.0),
        ("500ms", 0.5),
        ("15m", 900.0),
        ("15 min", 900.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("  2D ", 172800.0),
        ("1w", 604800.0),
        ("0", 0.0),
        ("0.5h", 1800.0),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@each("text", ["", "soon", "1x", "-1", "-5s", "1h30", "h", "1..5s", "٣s", True, "1e3", "1:30", "5 s x"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write it like"):
        parse_duration(text)


@pytest.mark.parametrize("text", [-1, "4000d", float("nan"), float("inf"), 10**400, "9" * 400])
def test_durations_out_of_range(text: str | float) -> None:
    with pytest.raises(ValueError, match="is out of range for a duration"):
        parse_duration(text)


@given(st.integers(0, 3000), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_duration_in_parts_is_their_sum(days: int, hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    text = f"{days}d{hours}h{minutes}m{seconds}s{milliseconds}ms"
    expected = days * 86400 + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    assert parse_duration(text) == pytest.approx(expected)


@given(st.floats(0, TEN_YEARS_S - 1))
def test_a_formatted_duration_parses_to_nearly_itself(seconds: float) -> None:
    """Two units are shown, so what is lost is less than one of the smaller."""
    again = parse_duration(format_duration(seconds))
    step = 0.1 if seconds < 10 else 1 if seconds < 3600 else 60 if seconds < 86400 else 3600
    assert abs(again - seconds) <= step


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert 0 <= parse_duration(text) < TEN_YEARS_S
    except ValueError as error:
        assert "duration" in str(error)  # noqa: PT017 - both answers are right, each is checked


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0.0 s"),
        (0.84, "0.8 s"),
        (42, "42 s"),
        (59.7, "1m00s"),
        (192, "3m12s"),
        (14700, "4h05m"),
        (183600, "2d03h"),
    ],
)
def test_formatted_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@each(
    ("text", "count"),
    [
        (512, 512),
        ("512", 512),
        ("1k", 1000),
        ("10GB", 10 * 1000**3),
        ("8GiB", 8 * 1024**3),
        ("8 gib", 8 * 1024**3),
        ("1.5G", 1_500_000_000),
        ("1Ti", 1024**4),
        ("0", 0),
        ("3b", 3),
    ],
)
def test_sizes(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@each("text", ["", "big", "-1GB", "1 GBs", "1e9", "GB", "1.GB", True, "10 G B"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write it like"):
        parse_bytes(text)


@pytest.mark.parametrize("text", [-1, 2**60, "9" * 400, "99999PB"])
def test_sizes_out_of_range(text: str | int) -> None:
    with pytest.raises(ValueError, match=r"is negative|is out of range for a size"):
        parse_bytes(text)


@given(st.integers(0, 2**60 - 1))
def test_a_size_in_bytes_is_itself(count: int) -> None:
    assert parse_bytes(count) == count


@given(st.integers(0, 2**59))
def test_a_formatted_size_parses_to_nearly_itself(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.006, abs=1)


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        assert 0 <= parse_bytes(text) < 2**60
    except ValueError as error:
        assert "size" in str(error)  # noqa: PT017 - both answers are right, each is checked


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (512, "512 B"),
        (1024, "1 KiB"),
        (10200547328, "9.5 GiB"),
        (200 * 1024**2, "200 MiB"),
        (2**52, "4096 TiB"),
        (300 * 10**6, "300 MB"),
        (1_230_000_000, "1.23 GB"),
        (80 * 10**9, "80 GB"),
        (1_234_000_000, "1.15 GiB"),
        (100 * 10**6 // 4096 * 4096, "100 MB"),
        (300 * 10**6 // 4096 * 4096, "300 MB"),
        (10**9 // 4096 * 4096, "1 GB"),
        (300 * 10**6 - 1, "286 MiB"),
        (2**20, "1 MiB"),
        (2 * 2**20, "2 MiB"),
        (5_128_192, "4.89 MiB"),
    ],
)
def test_formatted_sizes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@each(
    ("count", "words", "text"),
    [
        (0, ("card",), "0 cards"),
        (1, ("card",), "1 card"),
        (2, ("card",), "2 cards"),
        (1, ("entry", "entries"), "1 entry"),
        (2, ("card is", "cards are"), "2 cards are"),
    ],
)
def test_a_number_has_its_noun(count: int, words: tuple[str, ...], text: str) -> None:
    assert format_count(count, *words) == text
