"""What of declared scratch may go: patterns, and what stays whatever they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.job.scratch import (
    KeepReason,
    ScratchItem,
    ScratchRoot,
    find_pattern_problem,
    is_checkpoint,
    matches,
    may_lead,
    plan_pruning,
    read_kind,
    read_step,
)
from tests.each import each

pytestmark = pytest.mark.pure


def item(path: str, *, size: int = 1, whole: bool | None = True, held: KeepReason | None = None) -> ScratchItem:
    return ScratchItem(ScratchRoot.RUN, path, size, 1, 0, 1, hash(path) & 0xFFFFFF, whole=whole, held=held)


def gone(*items: ScratchItem) -> list[str]:
    return sorted(one.path for one in plan_pruning(items).victims)


def why(*items: ScratchItem) -> dict[str, KeepReason]:
    return {kept.item.path: kept.why for kept in plan_pruning(items).kept}


@each(
    ("path", "pattern", "named"),
    [
        ("tmp/a", "tmp", True),
        ("tmp/a/b", "tmp/*", True),
        ("tmp", "tmp/**", False),
        ("tmp/a/b/c", "tmp/**", True),
        ("a/b/x.part", "**/x.part", True),
        ("x.part", "**/x.part", True),
        ("a/x.part", "*.part", False),
        ("a/.hidden", "a/.hidden", True),
        ("a/b", "a/[bc]", True),
        ("tmpx/a", "tmp/*", False),
        ("ab", "a?", True),
        ("a/b/c.tmp", "a/**/*.tmp", True),
        ("a/c.tmp", "a/**/*.tmp", True),
        ("a", "a/**/**", False),
        ("a/b", "a/**/**", True),
        ("a/b", "a/**/b/**", False),
        ("/".join("a" * 60), "/".join(["**", "a"] * 12) + "/**/z", False),
    ],
)
def test_patterns_name_what_a_shell_would(path: str, pattern: str, named: bool) -> None:
    assert matches(path, pattern) is named


@pytest.mark.parametrize(("pattern", "directory", "leads"), [("a/*/c", "a/b", True), ("a/*/c", "b", False)])
def test_a_walk_goes_only_where_a_pattern_leads(pattern: str, directory: str, leads: bool) -> None:
    assert may_lead(directory, pattern) is leads


@given(st.lists(st.sampled_from(["a", "b", "tmp", "x.part"]), min_size=1, max_size=5), st.integers(0, 4))
def test_a_walk_reaches_everything_that_is_named(parts: list[str], cut: int) -> None:
    path = "/".join(parts)
    for pattern in ("tmp/**", "**/x.part", "a/*", "b", "a/**/x.part"):
        if matches(path, pattern):
            for length in range(1, min(cut, len(parts) - 1) + 1):
                head = "/".join(parts[:length])
                assert matches(head, pattern) or may_lead(head, pattern), (path, pattern, head)


@pytest.mark.requirement("ETIQ-05")
@each("pattern", ["/x", "~/x", "../x", "a/../../x", "*", "**", "*/*", "?", "[a-z]", "", ".", "a\0"])
def test_ETIQ_05_a_pattern_that_leaves_or_names_everything_is_refused(pattern: str) -> None:
    assert find_pattern_problem(pattern)


def test_usual_patterns_are_allowed() -> None:
    assert [find_pattern_problem(pattern) for pattern in ("tmp/**", "*.part", "artifacts/ckpt-*.pt", "**/cache")] == [
        ""
    ] * 4


@pytest.mark.requirement("STOR-03")
def test_STOR_03_the_newest_whole_checkpoint_best_last_and_metrics_stay() -> None:
    items = [
        item("c/ckpt-100.pt"),
        item("c/ckpt-200.pt"),
        item("c/ckpt-300.pt", whole=False),
        item("c/best.pt"),
        item("c/last.ckpt"),
        item("c/metrics.jsonl"),
        item("c/events.out.tfevents.1"),
        item("c/batch.tmp", size=9),
    ]
    assert gone(*items) == ["c/batch.tmp", "c/ckpt-100.pt", "c/ckpt-300.pt"]
    stays = why(*items)
    assert stays["c/ckpt-200.pt"] is KeepReason.NEWEST
    assert stays["c/best.pt"] is stays["c/last.ckpt"] is KeepReason.CHOSEN
    assert stays["c/metrics.jsonl"] is stays["c/events.out.tfevents.1"] is KeepReason.METRICS
    assert plan_pruning(tuple(items)).victims[0].path == "c/batch.tmp"


def test_what_cannot_be_proven_to_be_replaceable_stays() -> None:
    assert gone(item("a/ckpt-1.pt", whole=None), item("a/ckpt-2.pt", whole=None)) == []
    assert gone(item("a/rank0.pt"), item("a/rank1.pt")) == []
    assert gone(item("a/ckpt-1.pt"), item("b/ckpt-2.pt")) == []
    assert gone(item("x", held=KeepReason.OPEN)) == []


def test_the_pieces_of_one_checkpoint_count_together() -> None:
    torn = [item("step_20_rank0.pt"), item("step_20_rank1.pt", whole=False)]
    whole = [item("step_10_rank0.pt"), item("step_10_rank1.pt")]
    assert gone(*torn, *whole) == ["step_20_rank0.pt", "step_20_rank1.pt"]


def test_a_step_that_lacks_a_piece_does_not_replace_one_that_has_it() -> None:
    whole = [item("model_10.pt"), item("optim_10.pt"), item("model_5.pt"), item("optim_5.pt")]
    assert gone(item("model_20.pt"), *whole) == ["model_5.pt", "optim_5.pt"]
    ranks = [item(f"step_10_rank{rank}.pt") for rank in range(4)]
    assert gone(item("step_20_rank0.pt"), item("step_20_rank1.pt"), *ranks) == []


def test_one_series_does_not_replace_another_in_the_same_directory() -> None:
    first, second = [item("fold0_epoch9.pt"), item("fold0_epoch8.pt")], [item("fold1_epoch5.pt")]
    assert gone(*first, *second) == ["fold0_epoch8.pt"]
    assert why(*first, *second)["fold1_epoch5.pt"] is KeepReason.NEWEST


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ckpt-100.pt", "ckpt#.pt"),
        ("epoch=3-val_loss=0.23.ckpt", "epoch#-val_loss##.ckpt"),
        ("fold1_epoch5.pt", "fold1_epoch#.pt"),
        ("step_20_rank3.pt", "step#_rank#.pt"),
        ("netG_200.pt", "netG#.pt"),
    ],
)
def test_the_kind_of_a_piece_leaves_out_what_differs_between_steps(name: str, kind: str) -> None:
    assert read_kind(name) == kind


@each(
    ("name", "step"),
    [
        ("ckpt-100.pt", 100),
        ("checkpoint_12.pth", 12),
        ("epoch=3-step=1200.ckpt", 3),
        ("global_step500", 500),
        ("model_100.pt", 100),
        ("model.pt", None),
        ("mp_rank_00_model_states.pt", None),
        ("rank1.pt", None),
        ("resnet50-64x64.pt", None),
    ],
)
def test_the_step_of_a_checkpoint_is_read_or_not_known(name: str, step: int | None) -> None:
    assert read_step(name) == step


def test_checkpoints_are_told_by_ending_or_by_word_and_number() -> None:
    assert all(map(is_checkpoint, ("a.pt", "X.SAFETENSORS", "checkpoint-100", "step-5", "global_step5")))
    assert not any(map(is_checkpoint, ("tmp", "batch.tmp", "step.log", "steps-1.log", "notes.txt", "checkpoints")))


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5), st.sampled_from([True, False, None])),
        unique_by=lambda one: one[:2],
    )
)
def test_a_series_with_a_whole_checkpoint_keeps_one(drawn: list[tuple[str, int, bool | None]]) -> None:
    items = tuple(item(f"{directory}/ckpt-{step}.pt", whole=whole) for directory, step, whole in drawn)
    plan = plan_pruning(items)
    assert {one.path for one in plan.victims} | {kept.item.path for kept in plan.kept} == {one.path for one in items}
    for directory in {one[0] for one in drawn}:
        kept = [k.item for k in plan.kept if k.item.path.startswith(f"{directory}/")]
        wholes = [step for place, step, whole in drawn if place == directory and whole is True]
        if wholes:
            assert [k.path for k in kept] == [f"{directory}/ckpt-{max(wholes)}.pt"]
        else:
            assert len(kept) == len([one for one in drawn if one[0] == directory])
