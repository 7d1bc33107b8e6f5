"""Layers of a configuration: nulls give way, values are not walked through, nothing below is changed."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.near import find_near
from holdfast.core.queue.overlay import (
    OverlayError,
    find_by_name,
    find_value,
    list_paths,
    merge_layers,
    set_value,
)

pytestmark = [pytest.mark.pure, pytest.mark.requirement("QUEUE-17")]

KEYS = st.sampled_from("abc")
TREES = st.recursive(
    st.dictionaries(KEYS, st.integers(), max_size=3),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def test_a_null_parent_becomes_what_is_laid_over_it() -> None:
    assert merge_layers({"optimizer": None, "epochs": 5}, {"optimizer": {"lr": 1}}) == {
        "optimizer": {"lr": 1},
        "epochs": 5,
    }


def test_mappings_are_merged_key_by_key_and_lists_replaced_whole() -> None:
    base = {"a": {"x": 1, "y": 2}, "l": [1, 2, 3]}
    assert merge_layers(base, {"a": {"y": 3}, "l": [4]}) == {"a": {"x": 1, "y": 3}, "l": [4]}


def test_a_mapping_over_a_value_is_refused_with_its_path() -> None:
    with pytest.raises(OverlayError, match=r"a\.b"):
        merge_layers({"a": {"b": "adam"}}, {"a": {"b": {"lr": 1}}})


def test_a_mapping_may_be_switched_off() -> None:
    assert merge_layers({"augment": {"flip": 1}}, {"augment": None}) == {"augment": None}


@given(TREES)
def test_a_layer_laid_over_itself_changes_nothing(tree: dict[str, object]) -> None:
    assert merge_layers(tree, tree) == tree
    assert merge_layers(tree, {}) == tree
    assert merge_layers({}, tree) == tree


@pytest.mark.gotcha("U27")
def test_a_value_is_put_through_null_parents_and_gaps() -> None:
    tree: dict[str, object] = {"optimizer": None}
    set_value(tree, "optimizer.schedule.warmup", lambda _: 5)
    assert tree == {"optimizer": {"schedule": {"warmup": 5}}}


@pytest.mark.parametrize("path", ["a.b.c", "m"])
def test_a_path_that_does_not_end_at_a_value_is_refused(path: str) -> None:
    with pytest.raises(OverlayError):
        set_value({"a": {"b": "text"}, "m": {"x": 1}}, path, lambda _: 5)


def test_putting_a_value_leaves_what_is_shared_alone() -> None:
    base = {"a": {"b": 1}}
    before = copy.deepcopy(base)
    tree = dict(base)
    set_value(tree, "a.b", lambda below: below + 1)
    assert tree == {"a": {"b": 2}}
    assert base == before


def test_paths_are_found_by_their_last_part_and_by_likeness() -> None:
    tree = {"train": {"epochs": 5, "lr": 1}, "epochs": 3, "empty": {}}
    assert list_paths(tree) == ["train.epochs", "train.lr", "epochs", "empty"]
    assert find_by_name(tree, "epochs") == ["train.epochs", "epochs"]
    assert find_near("train.epoch", list_paths(tree), cutoff=0.75) == "train.epochs"
    assert find_value(tree, "train.lr") == (True, 1)
    assert find_value(tree, "train.lr.x") == (False, None)
