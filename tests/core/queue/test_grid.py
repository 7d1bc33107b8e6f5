"""Combinations, names, and the ways in which a parameter reaches a command."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queue import grid
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("QUEUE-02")]

NAMES = st.from_regex(r"[a-z][a-z0-9_.]{0,8}", fullmatch=True)
VALUES = st.text(st.characters(blacklist_characters="\0\n", blacklist_categories=["Cs"]), min_size=1, max_size=70)


@given(st.dictionaries(NAMES, st.lists(st.integers(0, 9).map(str), min_size=1, max_size=4, unique=True), max_size=3))
def test_every_combination_is_there_once(axes: dict[str, list[str]]) -> None:
    jobs = grid.expand_grid(axes)
    assert len(jobs) == math.prod(len(values) for values in axes.values())
    assert len({tuple(job.items()) for job in jobs}) == len(jobs)


def test_the_last_axis_varies_fastest() -> None:
    assert [tuple(job.values()) for job in grid.expand_grid({"a": ["1", "2"], "b": ["x", "y"]})] == [
        ("1", "x"),
        ("1", "y"),
        ("2", "x"),
        ("2", "y"),
    ]


def test_more_jobs_than_can_be_meant_are_refused_without_making_them() -> None:
    with pytest.raises(grid.GridError, match="1000000000000"):
        grid.expand_grid({name: [str(n) for n in range(1000)] for name in "abcd"})


@pytest.mark.parametrize("values", [["1e-3", "0.001"], ["a", "a"], ["1", "1.0"], []])
def test_an_axis_that_says_one_value_twice_or_none_is_refused(values: list[str]) -> None:
    with pytest.raises(grid.GridError):
        grid.check_values("lr", values)


def test_words_that_look_alike_are_different_values() -> None:
    grid.check_values("flag", ["no", "No", "off", "false", "0", "1e-3"])


@each("name", ["job", "config", "group", "", "1a", "a b", "a=b", "-x"])
def test_a_name_that_no_parameter_can_have_is_refused(name: str) -> None:
    with pytest.raises(grid.GridError):
        grid.check_parameter(name)


@pytest.mark.slow
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=6))
def test_a_jobs_name_is_always_a_name(params: dict[str, str]) -> None:
    grid.check_name(grid.make_name(params))


def test_a_name_keeps_values_as_they_were_written() -> None:
    assert grid.make_name({"lr": "1e-3", "seed": "0"}) == "lr=1e-3_seed=0"


def test_words_of_other_scripts_have_names_of_their_own() -> None:
    names = {grid.make_name({"city": value}) for value in ("ü", "日本", "\u20ac", "u")}
    assert len(names) == 4


def test_long_names_differ_when_their_jobs_do() -> None:
    one, other = ({"path": "x" * 200 + end} for end in "ab")
    assert grid.make_name(one) != grid.make_name(other)


def test_two_jobs_with_one_name_are_told_with_both_places() -> None:
    (problem,) = grid.find_twins([("a", "line 3"), ("b", "line 4"), ("a", "line 7")])
    assert "line 3" in problem
    assert "line 7" in problem


def test_a_condition_compares_numbers_as_numbers_and_text_as_text() -> None:
    assert grid.matches_parameters({"lr": "1e-3"}, {"lr": ["0.001"]})
    assert not grid.matches_parameters({"flag": "no"}, {"flag": ["off"]})
    assert not grid.matches_parameters({}, {"lr": ["1"]})
    assert grid.matches_parameters({"lr": "1"}, {})


def test_placeholders_are_filled_and_everything_else_in_braces_stays() -> None:
    values = {"lr": "1e-3", "optimizer.lr": "2"}
    text = '--lr={lr} ${lr} {print} {} {optimizer.lr} {"a": 1}'
    assert grid.fill_placeholders(text, values) == '--lr=1e-3 ${lr} {print} {} 2 {"a": 1}'


def test_a_value_with_a_placeholder_in_it_is_not_filled_again() -> None:
    assert grid.fill_placeholders("{a}{b}", {"a": "{b}", "b": "x"}) == "{b}x"


def test_a_misspelt_placeholder_is_told_and_a_foreign_one_is_not() -> None:
    assert grid.find_misspelt({"sed", "print", "lr"}, {"seed", "lr"}) == {"sed": "seed"}


def test_arguments_follow_the_style() -> None:
    params = {"lr": "1e-3", "seed": "0"}
    assert list(grid.make_arguments(["--{name}={value}"], params)) == ["--lr=1e-3", "--seed=0"]
    assert list(grid.make_arguments(["--{name}", "{value}"], params)) == ["--lr", "1e-3", "--seed", "0"]
    assert list(grid.make_arguments([], params)) == []


def test_a_style_without_a_place_for_the_value_is_refused() -> None:
    with pytest.raises(grid.GridError, match=r"\{value\}"):
        grid.check_arguments(["--{name}"])


def test_variables_are_upper_case_and_one_each() -> None:
    assert grid.make_variables({"optimizer.lr": "1"}) == {"HOLDFAST_PARAM_OPTIMIZER_LR": "1"}
    with pytest.raises(grid.GridError, match=re.escape("a.b and a_b")):
        grid.make_variables({"a.b": "1", "a_b": "2"})
