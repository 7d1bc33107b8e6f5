"""Run ids and names are safe as file names, environment values and arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.ids import build_run_id, clean_name, is_name, is_run_id, name_of
from tests.each import each

pytestmark = pytest.mark.pure

STAMP = "20261120-104501"
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,47}\Z")


@given(NAMES, st.integers(0, 0xFFFF))
def test_OBS_18_an_id_is_built_and_tells_its_name(name: str, number: int) -> None:
    run_id = build_run_id(STAMP, name, f"{number:04x}")
    assert is_run_id(run_id)
    assert name_of(run_id) == name
    assert set(run_id) <= set(ALPHABET)


@each(
    ("stamp", "name", "suffix"),
    [
        (STAMP, "", "3fa2"),
        (STAMP, "a/b", "3fa2"),
        (STAMP, "../..", "3fa2"),
        (STAMP, "-rf", "3fa2"),
        (STAMP, "a\n", "3fa2"),
        (STAMP, "a", "3fa2\n"),
        (STAMP, "a", "3FA2"),
        (STAMP, "x" * 49, "3fa2"),
        ("2026-11-20", "a", "3fa2"),
        ("٢٠٢٦١١٢٠-104501", "a", "3fa2"),
    ],
)
def test_malformed_parts_are_refused(stamp: str, name: str, suffix: str) -> None:
    with pytest.raises(ValueError, match="is not a run id"):
        build_run_id(stamp, name, suffix)


@given(st.text())
def test_any_text_is_cleaned_to_a_name(text: str) -> None:
    assert is_name(clean_name(text))


@given(NAMES.filter(lambda name: name[-1] not in "-._"))
def test_a_good_name_stays(name: str) -> None:
    assert clean_name(name) == name


@pytest.mark.parametrize(
    ("text", "name"), [("train.py", "train.py"), ("./my train!.sh", "my-train-.sh"), ("--", "run"), ("é", "run")]
)
def test_cleaned_names(text: str, name: str) -> None:
    assert clean_name(text) == name
