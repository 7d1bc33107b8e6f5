"""Whether one more run fits on a shared card, which card it gets, and what no box can give."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.cards.choose import choose_cards, is_worth_waiting
from holdfast.core.cards.packing import (
    ENDING_RECHECK_S,
    USE_RECHECK_S,
    count_use,
    find_impossible,
    judge_room,
    mark_sharers,
    memory_of,
    packing_rules,
    share_of,
    sum_use,
)
from holdfast.core.rules.rules import Rules, card_rules
from holdfast.model.gpu import Card, CardRules, GpuProcess, GpuRequest, HolderKind, Inventory, InventorySource, MigSlice
from holdfast.model.job import GpuOptions, JobSpec
from holdfast.model.packing import DeviceMemory, PackingRules, Sharer, SharingRoom
from holdfast.model.record import replace
from tests.each import each

pytestmark = pytest.mark.pure

GIB = 1024**3
FLOOR = PackingRules().floor_bytes
RULES = PackingRules()
SINCE = "2026-11-20T10:00:00.000Z"


def device(used: int = 0, total: int = 80 * GIB) -> DeviceMemory:
    return DeviceMemory("GPU-a", "card 2", total, used, total - used)


def sharer(name: str = "a", reserved: int | None = None, used: int | None = None, **changes: object) -> Sharer:
    made = Sharer(name, "anna", SINCE, None if reserved is None else reserved * GIB, used)
    return replace(made, **changes)  # type: ignore[arg-type]  # each test names fields of Sharer


def make_card(index: int = 0, **changes: object) -> Card:
    card = Card(
        index, f"GPU-{index}", "H100", memory_total_bytes=80 * GIB, memory_used_bytes=0, memory_free_bytes=80 * GIB
    )
    return replace(card, utilisation_pct=0, **changes)  # type: ignore[arg-type]


def make_box(*cards: Card, complete: bool = True) -> Inventory:
    return Inventory(InventorySource.NVML, cards=cards, complete=complete, reason=None if complete else "timeout")


def make_spec(gpus: GpuRequest, **gpu: object) -> JobSpec:
    return JobSpec("t", ("true",), "/", gpus=gpus, gpu=GpuOptions(**gpu))  # type: ignore[arg-type]


def test_two_runs_that_state_nothing_have_not_both_taken_all_the_rest() -> None:
    words = judge_room(device(), [sharer("a"), sharer("b"), sharer("c", reserved=8)], 10 * 10**9, RULES).words
    assert words.count("all the rest may be used by run ") == 2
    assert "taken" not in words
    assert words.endswith("; 10 GB (9.31 GiB) asked, 0 B free")


@pytest.mark.requirement("QUEUE-11")
def test_a_reservation_counts_whole_while_the_card_still_looks_empty() -> None:
    sharers = [sharer(str(number), reserved=10) for number in range(7)]
    assert not judge_room(device(), sharers, 10 * GIB, RULES).fits
    assert judge_room(device(), sharers[:6], 10 * GIB, RULES).fits
    assert judge_room(device(), sharers[:6], 10 * GIB, RULES).free_bytes == 20 * GIB - FLOOR


def test_use_above_the_reservation_counts_as_it_is() -> None:
    room = judge_room(device(used=30 * GIB), [sharer(reserved=10, used=30 * GIB)], 45 * GIB, RULES)
    assert room.free_bytes == 50 * GIB - FLOOR


def test_memory_of_nobody_who_shares_comes_on_top() -> None:
    room = judge_room(device(used=25 * GIB), [sharer(reserved=10, used=5 * GIB)], 50 * GIB, RULES)
    assert room.free_bytes == 80 * GIB - FLOOR - 20 * GIB - 10 * GIB
    unattributed = judge_room(device(used=25 * GIB), [sharer(reserved=10)], 50 * GIB, RULES)
    assert unattributed.free_bytes == room.free_bytes - 5 * GIB, "whose use is not known counts twice, never not at all"


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, None),
        ({"running_s": 59.0, "used_bytes": 3 * GIB}, None),
        ({"running_s": 61.0, "used_bytes": 3 * GIB}, 3 * GIB),
        ({"running_s": 61.0, "used_bytes": 0}, None),
        ({"running_s": 61.0}, None),
    ],
    ids=["not started", "in its ramp", "settled", "not on the card yet", "not known"],
)
def test_a_run_that_states_nothing_is_the_whole_rest_until_its_use_is_known(
    changes: dict[str, object], taken: int | None
) -> None:
    quiet = replace(sharer(), **changes)  # type: ignore[arg-type]  # each case names fields of Sharer
    assert count_use(quiet, RULES) == taken
    room = judge_room(device(used=quiet.used_bytes or 0), [quiet], 10 * GIB, RULES)
    assert room.fits == (taken is not None)
    assert (room.recheck_s is None) == room.fits, "its ramp ends without an event"


def test_runs_that_all_state_nothing_share_without_accounting() -> None:
    assert judge_room(device(used=70 * GIB), [sharer()], None, RULES).fits
    beside = judge_room(device(), [sharer(reserved=75)], None, RULES)
    assert not beside.fits, "a reservation holds against who states nothing, too"


@pytest.mark.parametrize("gap", ["total_bytes", "used_bytes", "processes"])
def test_what_could_not_be_read_has_no_room(gap: str) -> None:
    room = judge_room(replace(device(), **{gap: None}), [], 1, RULES)  # type: ignore[arg-type]
    assert not room.fits
    assert room.recheck_s == USE_RECHECK_S


def test_what_the_driver_keeps_for_itself_is_not_given_out() -> None:
    memory = DeviceMemory("GPU-a", "card 0", 80 * GIB, 0, 78 * GIB)
    assert judge_room(memory, [], 1, RULES).free_bytes == 78 * GIB


def test_looking_again_is_for_what_changes_without_an_event() -> None:
    full = judge_room(device(), [sharer(reserved=79)], 10 * GIB, RULES)
    assert full.recheck_s is None, "only the end of that run makes room"
    by_use = judge_room(device(used=75 * GIB), [sharer(reserved=10, used=75 * GIB)], 10 * GIB, RULES)
    assert by_use.recheck_s == USE_RECHECK_S
    ending = judge_room(device(), [sharer(reserved=79, ending=True)], 10 * GIB, RULES)
    assert ending.recheck_s == ENDING_RECHECK_S
    ramp = judge_room(device(), [sharer(running_s=45.0)], 10 * GIB, RULES)
    assert ramp.recheck_s == pytest.approx(15.0)


def test_the_words_name_everyone_with_what_they_have() -> None:
    sharers = [sharer("run-a", 50, 41 * GIB), sharer("run-b", 20, user="ben")]
    words = judge_room(device(used=41 * GIB), sharers, 10 * GIB, RULES).words
    assert "run run-a (anna, since" in words
    assert "uses 41" in words
    assert "20 GiB reserved by run run-b (ben" in words
    assert "no use seen" in words
    assert "10 GiB asked, 9.5 GiB free" in words


memories = st.integers(0, 90 * GIB)
runs = st.lists(st.tuples(st.integers(1, 60 * GIB), st.floats(0, 2)), max_size=12)


@given(runs, st.integers(0, 20 * GIB))
def test_what_is_given_out_is_never_more_than_the_card(wanted: list[tuple[int, float]], foreign: int) -> None:
    """Each run is admitted by itself, then uses some part of what it reserved, or more."""
    sharers: list[Sharer] = []
    for number, (reserved, part) in enumerate(wanted):
        used = foreign + sum(each.used_bytes or 0 for each in sharers)
        room = judge_room(device(min(used, 80 * GIB)), sharers, reserved, RULES)
        before = foreign + FLOOR + sum(max(each.reserved_bytes or 0, each.used_bytes or 0) for each in sharers)
        if room.fits:
            assert before + reserved <= 80 * GIB
            sharers.append(Sharer(str(number), "u", SINCE, reserved, int(reserved * min(part, 1.0))))
        elif used <= 80 * GIB:
            assert before + reserved > 80 * GIB, "refused though there was room"
    assert sum(each.reserved_bytes or 0 for each in sharers) <= 80 * GIB - FLOOR


@given(st.lists(st.tuples(st.none() | st.integers(0, 60), st.none() | memories), min_size=1, max_size=4), memories)
def test_the_order_of_the_runs_does_not_matter(kept: list[tuple[int | None, int | None]], used: int) -> None:
    sharers = [sharer(str(number), reserved, use, running_s=90.0) for number, (reserved, use) in enumerate(kept)]
    rooms = [judge_room(device(used), order, 10 * GIB, RULES) for order in permutations(sharers)]
    assert len({(room.free_bytes, room.fits, room.recheck_s) for room in rooms}) == 1


def test_a_process_is_put_down_to_the_run_that_its_lease_names() -> None:
    seen = (
        GpuProcess(10, HolderKind.UNMANAGED, 5 * GIB, user="ben"),
        GpuProcess(11, HolderKind.UNMANAGED, 6 * GIB),
        GpuProcess(12, HolderKind.OTHER_NAMESPACE, 7 * GIB),
        GpuProcess(13, HolderKind.GHOST, 1),
    )
    marked = mark_sharers(make_card(processes=seen), {10: "run-b", 13: "run-b"}).processes
    assert marked is not None
    assert [process.run_id for process in marked] == ["run-b", None, None, None]
    assert [process.kind for process in marked[1:]] == [process.kind for process in seen[1:]]
    assert sum_use(marked, "run-b") == 5 * GIB
    assert sum_use(marked, "run-x") is None
    assert sum_use((replace(seen[0], run_id="r", used_bytes=None),), "r") is None, "not told is not nothing"
    among = mark_sharers(make_card(processes=seen), {}, sharing=True).processes
    assert among is not None
    assert [process.kind for process in among] == [*(2 * [HolderKind.UNMANAGED]), HolderKind.MANAGED, HolderKind.GHOST]
    assert among[2].run_id is None, "it may be a sharer's; its memory counts as nobody's"
    assert mark_sharers(make_card(processes=None), {10: "x"}).processes is None


def rooms_of(*frees: tuple[int, bool]) -> dict[str, SharingRoom]:
    return {
        f"GPU-{index}": SharingRoom(f"GPU-{index}", free * GIB, fits=free >= 10, words="full", shared=shared)
        for index, (free, shared) in enumerate(frees)
    }


@pytest.mark.requirement("QUEUE-11")
@pytest.mark.parametrize(
    ("frees", "taken"),
    [
        ([(79, False), (40, True), (12, True)], ["GPU-2"]),
        ([(79, False), (40, True), (5, True)], ["GPU-1"]),
        ([(79, False), (5, True), (5, True)], ["GPU-0"]),
        ([(79, False), (79, False), (79, False)], ["GPU-0"]),
        ([(5, True), (5, True), (5, True)], []),
    ],
)
def test_the_fullest_shared_card_that_fits_goes_first(frees: list[tuple[int, bool]], taken: list[str]) -> None:
    box = make_box(*(make_card(index) for index in range(3)))
    choice = choose_cards(GpuRequest(count=1), box, leased={}, rules=CardRules(share=True), rooms=rooms_of(*frees))
    assert list(choice.devices) == taken
    assert is_worth_waiting(GpuRequest(count=1), box, choice)


def test_a_card_that_is_too_small_is_not_waited_for() -> None:
    room = judge_room(device(), [], 200 * GIB, RULES)
    assert not room.possible
    box = make_box(make_card())
    rules = CardRules(share=True)
    choice = choose_cards(
        GpuRequest(count=1), box, leased={}, rules=rules, rooms={"GPU-0": replace(room, uuid="GPU-0")}
    )
    assert "too_large" in str(choice.problem)
    assert not is_worth_waiting(GpuRequest(count=1), box, choice)


def test_the_share_for_torch_is_that_of_the_smallest_card() -> None:
    assert share_of(10 * GIB, [80 * GIB, 40 * GIB]) == 0.25
    assert share_of(10 * GIB, [80 * GIB, None]) is None
    assert share_of(10 * GIB, []) is None
    assert share_of(100 * GIB, [80 * GIB]) == 1.0


def test_a_stated_size_takes_the_place_of_the_default_room() -> None:
    spec = make_spec(GpuRequest(count=1), memory_bytes=2 * GIB)
    assert card_rules(spec, Rules()).min_free_bytes == 2 * GIB
    assert card_rules(spec, Rules(min_free_bytes=20 * GIB)).min_free_bytes == 20 * GIB, "the box's rule stands"
    assert packing_rules(CardRules()).unstated_bytes == CardRules().min_free_bytes


MIG = make_card(
    3,
    mig_enabled=True,
    mig_slices=(MigSlice("MIG-3x", "1g.10gb", 10 * GIB, 0), MigSlice("MIG-3y", "1g.10gb", 10 * GIB, 0)),
)


def test_a_slice_has_its_own_memory() -> None:
    memory = memory_of(MIG, MIG.mig_slices[0])
    assert (memory.uuid, memory.total_bytes) == ("MIG-3x", 10 * GIB)
    assert not judge_room(memory, [sharer(reserved=6)], 6 * GIB, RULES).fits
    assert judge_room(memory, [sharer(reserved=6)], 3 * GIB, RULES).fits


@each(
    ("gpus", "gpu", "words"),
    [
        (GpuRequest(count=9), {}, "9 cards are asked for; this box has 3"),
        (GpuRequest(devices=("7",)), {}, "device 7 does not exist"),
        (GpuRequest(devices=("GPU-0", "0")), {}, "the same as another"),
        (GpuRequest(devices=("3",)), {}, "by MIG slice only"),
        (GpuRequest(devices=("MIG-9",)), {}, "device MIG-9 does not exist"),
        (GpuRequest(count=1), {"memory_bytes": 200 * GIB}, "200 GiB of each card are asked for (gpu.memory)"),
        (
            GpuRequest(count=1),
            {"memory_bytes": 400 * 10**9},
            "400 GB (373 GiB) of each card are asked for (gpu.memory)",
        ),
        (GpuRequest(count=1), {"memory_bytes": 80 * GIB, "share": True}, "kept free"),
        (GpuRequest(count=1), {"min_free_bytes": 100 * GIB}, "gpu.min_free"),
        (GpuRequest(devices=("MIG-3x",)), {"memory_bytes": 20 * GIB}, "the largest 10 GiB"),
        (GpuRequest(count=3), {"memory_bytes": 81 * GIB}, "0 of 3 cards have that much"),
        (GpuRequest(devices=("0",)), {"memory_bytes": 200 * GIB}, "0 of 1 card has that much"),
    ],
)
def test_what_no_card_of_the_box_can_give_is_said(gpus: GpuRequest, gpu: dict[str, object], words: str) -> None:
    box = make_box(make_card(0), make_card(1), make_card(2), MIG)
    found = find_impossible(make_spec(gpus, **gpu), box, Rules())
    assert words in "; ".join(found), found


@pytest.mark.parametrize(
    ("gpus", "gpu"),
    [
        (GpuRequest(count=3), {"memory_bytes": 80 * GIB}),
        (GpuRequest(count=0), {"memory_bytes": 800 * GIB}),
        (GpuRequest(devices=("MIG-3x", "MIG-3y")), {"memory_bytes": 9 * GIB}),
        (GpuRequest(count=1), {"memory_bytes": 79 * GIB, "share": True}),
    ],
)
def test_what_the_box_has_is_possible_whoever_has_it_now(gpus: GpuRequest, gpu: dict[str, object]) -> None:
    box = make_box(*(make_card(index, memory_used_bytes=70 * GIB) for index in range(3)), MIG)
    assert find_impossible(make_spec(gpus, **gpu), box, Rules()) == ()


def test_a_reading_that_is_not_complete_proves_nothing() -> None:
    spec = make_spec(GpuRequest(count=9))
    assert find_impossible(spec, make_box(make_card(), complete=False), Rules()) == ()
    assert find_impossible(spec, Inventory(InventorySource.NONE, complete=False, reason="driver stuck"), Rules()) == ()
    (words,) = find_impossible(spec, Inventory(InventorySource.NONE, reason="no driver"), Rules())
    assert "no driver" in words
    (words,) = find_impossible(make_spec(GpuRequest(count=3)), make_box(*map(make_card, range(4))), Rules(max_cards=2))
    assert "allow 2 for one run" in words
