"""Choosing cards: what is asked for, what is fit, what is best, with every reason against a card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.cards.choose import (
    choose_cards,
    is_worth_waiting,
    judge_card,
    judge_slice,
    parse_request,
    resolve_imposed,
    visible_devices,
)
from holdfast.model.gpu import (
    Card,
    CardChoice,
    CardRules,
    GpuProcess,
    GpuRequest,
    HolderKind,
    Inventory,
    InventorySource,
    MigSlice,
)
from holdfast.model.record import replace
from tests.each import each

pytestmark = pytest.mark.pure

GIB = 1024**3
RULES = CardRules()


def make_card(index: int = 0, **changes: object) -> Card:
    card = Card(
        index=index,
        uuid=f"GPU-{index}aaa",
        name="A100",
        memory_total_bytes=80 * GIB,
        memory_used_bytes=0,
        memory_free_bytes=80 * GIB,
        utilisation_pct=0,
    )
    return replace(card, **changes)  # type: ignore[arg-type]  # each test names fields of Card


def make_box(*cards: Card, complete: bool = True, reason: str | None = None) -> Inventory:
    return Inventory(InventorySource.NVML, cards=cards, complete=complete, reason=reason)


def make_mig_card(index: int = 0) -> Card:
    slices = tuple(
        MigSlice(f"MIG-{index}{name}", "1g.10gb", memory_total_bytes=10 * GIB, memory_used_bytes=0) for name in "xy"
    )
    return make_card(index, mig_enabled=True, mig_slices=slices, utilisation_pct=None)


def pick(
    request: str | int | list[object],
    inventory: Inventory,
    *,
    leased: dict[str, str] | None = None,
    rules: CardRules = RULES,
    imposed: str | None = None,
) -> CardChoice:
    return choose_cards(parse_request(request), inventory, leased=leased or {}, rules=rules, imposed=imposed)


@each(
    ("text", "request_"),
    [
        ("0", GpuRequest()),
        (2, GpuRequest(count=2)),
        (" 3 ", GpuRequest(count=3)),
        ("any", GpuRequest(count=1)),
        ("any:2", GpuRequest(count=2)),
        ("0,1", GpuRequest(devices=("0", "1"))),
        ("0,", GpuRequest(devices=("0",))),
        ([0], GpuRequest(devices=("0",))),
        (["GPU-a1", 2], GpuRequest(devices=("GPU-a1", "2"))),
        ("GPU-a1,MIG-b2", GpuRequest(devices=("GPU-a1", "MIG-b2"))),
        ([], GpuRequest()),
    ],
)
def test_request_is_understood(text: str | int | list[object], request_: GpuRequest) -> None:
    assert parse_request(text) == request_


@each("text", ["", "two", "-1", -1, "any:", "any:x", "0,,1", ",", "GPU-", "1.5", True, [True], "٣", "0,0"])
def test_request_is_refused_with_what_was_expected(text: str | int | list[object]) -> None:
    with pytest.raises(ValueError, match="gpus:"):
        parse_request(text)


def test_LEASE_11_a_card_under_the_least_free_memory_is_refused_with_the_number() -> None:
    assert not judge_card(make_card(memory_free_bytes=10 * GIB, memory_used_bytes=0), RULES)
    short = make_card(memory_free_bytes=int(9.5 * GIB), memory_used_bytes=0)
    (reason,) = judge_card(short, RULES)
    assert reason.startswith("low_memory: ")
    assert "9.5 GiB" in reason
    assert "10 GiB" in reason
    assert not judge_card(short, replace(RULES, min_free_bytes=8 * GIB))


@each(
    ("changes", "code"),
    [
        ({"faults": ("lost: nvmlDeviceGetMemoryInfo failed: GPU is lost",)}, "lost"),
        ({"memory_free_bytes": None}, "memory_unknown"),
        ({"processes": None}, "processes_unknown"),
        ({"utilisation_pct": 95}, "busy"),
        ({"memory_used_bytes": 3 * GIB}, "memory_held"),
        ({"processes": (GpuProcess(7, HolderKind.UNMANAGED, user="eve", command="python a.py"),)}, "unmanaged"),
        ({"processes": (GpuProcess(7, HolderKind.MANAGED, run_id="r1"),)}, "in_use"),
        ({"processes": (GpuProcess(7, HolderKind.GHOST, used_bytes=GIB),)}, "unattributed_holder"),
        ({"processes": (GpuProcess(7, HolderKind.OTHER_NAMESPACE),)}, "other_container"),
        ({"processes": (GpuProcess(7, HolderKind.UNKNOWN),)}, "unknown_holder"),
    ],
)
def test_LEASE_10_each_sign_of_use_or_damage_refuses_a_card(changes: dict[str, object], code: str) -> None:
    reasons = judge_card(make_card(0, **changes), RULES)
    assert [reason.partition(":")[0] for reason in reasons] == [code]


def test_every_reason_is_named_and_not_only_the_first() -> None:
    card = make_card(
        faults=("ecc_uncorrectable: 2",), utilisation_pct=50, memory_free_bytes=0, memory_used_bytes=80 * GIB
    )
    codes = [reason.partition(":")[0] for reason in judge_card(card, RULES, leased={card.uuid: "alice, run r1"})]
    assert codes == ["ecc_uncorrectable", "leased", "low_memory", "busy", "memory_held"]


@pytest.mark.gotcha("U10")
@pytest.mark.requirement("B-19")
def test_LEASE_12_only_an_ownerless_holder_is_called_so() -> None:
    ghost = judge_card(make_card(processes=(GpuProcess(7, HolderKind.GHOST),)), RULES)[0]
    foreign = judge_card(make_card(processes=(GpuProcess(7, HolderKind.OTHER_NAMESPACE),)), RULES)[0]
    assert "no process table" in ghost
    assert "holder in another container" in foreign
    assert "ghost" not in foreign


def test_LEASE_15_an_unmanaged_process_is_named_with_user_age_and_command() -> None:
    process = GpuProcess(71, HolderKind.UNMANAGED, used_bytes=GIB, user="eve", command="python a.py", age_s=7300)
    (reason,) = judge_card(make_card(processes=(process,), memory_used_bytes=GIB), RULES)
    assert "pid 71" in reason
    assert "eve: python a.py" in reason
    assert "2h01m" in reason


def test_LEASE_18_sharing_admits_managed_runs_and_no_stranger() -> None:
    managed = GpuProcess(7, HolderKind.MANAGED, used_bytes=3 * GIB, run_id="other")
    card = make_card(processes=(managed,), utilisation_pct=80, memory_used_bytes=3 * GIB, memory_free_bytes=77 * GIB)
    assert judge_card(card, RULES)
    assert not judge_card(card, replace(RULES, share=True))
    stranger = replace(card, processes=(managed, GpuProcess(8, HolderKind.UNMANAGED)))
    assert judge_card(stranger, replace(RULES, share=True))


def test_the_asking_run_is_no_obstacle_to_itself() -> None:
    mine = GpuProcess(7, HolderKind.MANAGED, used_bytes=3 * GIB, run_id="mine")
    card = make_card(processes=(mine,), utilisation_pct=99, memory_used_bytes=3 * GIB)
    assert not judge_card(card, RULES, own_run_id="mine")
    assert judge_card(card, RULES, own_run_id="another")


def test_LEASE_13_fit_cards_are_taken_and_the_others_have_reasons() -> None:
    box = make_box(
        make_card(0, memory_free_bytes=15 * GIB), make_card(1), make_card(2, utilisation_pct=60), make_card(3)
    )
    choice = pick("any:2", box, rules=replace(RULES, min_free_bytes=20 * 10**9))
    assert choice.devices == ("GPU-1aaa", "GPU-3aaa")
    assert {uuid: reason.partition(":")[0] for uuid, reason in choice.rejected} == {
        "GPU-0aaa": "low_memory",
        "GPU-2aaa": "busy",
    }


@pytest.mark.requirement("LEASE-13")
def test_one_numa_node_is_preferred_and_the_fuller_one_used_up() -> None:
    nodes = [0, 0, 0, 1, 1]
    box = make_box(*(make_card(index, numa_node=node) for index, node in enumerate(nodes)))
    assert pick(2, box).devices == ("GPU-3aaa", "GPU-4aaa")
    assert pick(3, box).devices == ("GPU-0aaa", "GPU-1aaa", "GPU-2aaa")
    assert len(pick(4, box).devices) == 4
    assert ("GPU-0aaa", "not_needed: fit, but others were preferred") in pick(2, box).rejected


def test_too_few_cards_are_none_at_all_and_the_holder_is_in_the_problem() -> None:
    choice = pick(2, make_box(make_card(0), make_card(1)), leased={"GPU-1aaa": "alice, run r1, since 10:00"})
    assert choice.devices == ()
    assert choice.problem is not None
    assert "2 GPUs are asked for and 1 of 2" in choice.problem
    assert "alice, run r1, since 10:00" in choice.problem


def test_named_devices_are_all_or_nothing_in_pci_order() -> None:
    box = make_box(make_card(0), make_card(1), make_card(2))
    assert pick("2,0", box).devices == ("GPU-0aaa", "GPU-2aaa")
    assert pick("GPU-1aaa", box).devices == ("GPU-1aaa",)
    refused = pick("0,7", box)
    assert refused.devices == ()
    assert refused.rejected == (("7", "no_such_device: this box has cards 0, 1, 2"),)
    assert "named_twice" in (pick("0,GPU-0aaa", box).problem or "")


def test_LEASE_07_nothing_outside_the_imposed_list_is_chosen() -> None:
    box = make_box(*(make_card(index) for index in range(4)))
    assert pick(1, box, imposed="2,3").devices == ("GPU-2aaa",)
    assert pick(1, box, imposed="GPU-3a").devices == ("GPU-3aaa",), "a shortened UUID"
    assert "not_visible" in (pick("0,", box, imposed="2,3").problem or "")
    assert pick(1, box, imposed="").devices == ()
    assert pick(1, box, imposed="-1").devices == ()
    assert pick(2, box, imposed="0,9,1").devices == (), "as CUDA does, the list ends at the first unknown entry"


@pytest.mark.requirement("LEASE-08")
def test_imposed_indexes_on_a_mixed_box_need_an_order() -> None:
    box = make_box(make_card(0), make_card(1, name="L4"))
    choice = pick(1, box, imposed="1")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in (choice.problem or "")
    assert resolve_imposed("1", box, device_order="PCI_BUS_ID") == frozenset({"GPU-1aaa"})
    assert resolve_imposed("GPU-1aaa", box) == frozenset({"GPU-1aaa"})
    assert resolve_imposed(None, box) is None


def test_LEASE_19_slices_of_one_card_are_leased_apart_and_the_card_is_then_refused() -> None:
    card = make_mig_card()
    box = make_box(card, make_card(1))
    assert pick("MIG-0x", box).devices == ("MIG-0x",)
    second = pick("MIG-0y", box, leased={"MIG-0x": "alice"})
    assert second.devices == ("MIG-0y",)
    assert "slice_leased" in " ".join(judge_card(card, RULES, leased={"MIG-0x": "alice"}))
    assert judge_slice(card, card.mig_slices[0], RULES, leased={card.uuid: "bob"}) == (
        "card_leased: the whole card GPU-0aaa: bob",
    )
    whole = pick("0,", box)
    assert whole.devices == ()
    assert "MIG-0x" in (whole.problem or ""), "says which slices there are"
    assert pick(1, box).devices == ("GPU-1aaa",), "slices are not given out unasked"
    assert pick(1, box, imposed="MIG-0y").devices == ("MIG-0y",)


def test_a_slice_is_judged_by_its_own_memory_and_its_cards_faults() -> None:
    card = make_mig_card()
    part = card.mig_slices[0]
    small = replace(part, memory_total_bytes=5 * GIB)
    assert not judge_slice(card, small, RULES)
    assert judge_slice(card, replace(small, memory_used_bytes=GIB), RULES)[0].startswith("low_memory")
    assert judge_slice(card, replace(part, memory_used_bytes=None), RULES)[0].startswith("memory_unknown")
    assert judge_slice(replace(card, faults=("lost: x",)), part, RULES) == ("lost: x",)
    held = replace(part, processes=(GpuProcess(7, HolderKind.GHOST),))
    assert judge_slice(card, held, RULES)[0].startswith("unattributed_holder")


def test_a_box_without_cards_says_why() -> None:
    none = Inventory(InventorySource.NONE, reason="the NVIDIA driver is not loaded")
    assert pick(1, none).problem == "no GPU on this box: the NVIDIA driver is not loaded"
    stuck = Inventory(InventorySource.NVML, complete=False, reason="the driver did not answer")
    assert pick(1, stuck).problem == "no GPU can be used: the driver did not answer"
    assert pick(0, none) == CardChoice()


def test_an_incomplete_reading_is_said_when_cards_are_missing() -> None:
    box = make_box(make_card(0), complete=False, reason="card 1 did not answer in time")
    assert "card 1 did not answer in time" in (pick(2, box).problem or "")
    assert "card 1 did not answer in time" in (pick("1,", box).problem or "")


def test_LEASE_08_a_job_sees_its_cards_by_uuid_and_in_pci_order() -> None:
    assert visible_devices(("GPU-a", "GPU-b")) == {
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert visible_devices(())["CUDA_VISIBLE_DEVICES"] == ""


@given(
    fit=st.lists(st.booleans(), max_size=8),
    nodes=st.lists(st.sampled_from([None, 0, 1, 2]), min_size=8, max_size=8),
    held=st.sets(st.integers(0, 7)),
    count=st.integers(1, 9),
)
def test_LEASE_01_all_or_nothing_for_every_box(
    fit: list[bool], nodes: list[int | None], held: set[int], count: int
) -> None:
    cards = [make_card(i, numa_node=nodes[i], utilisation_pct=0 if good else 90) for i, good in enumerate(fit)]
    leased = {f"GPU-{index}aaa": "someone" for index in held}
    choice = choose_cards(GpuRequest(count=count), make_box(*cards), leased=leased, rules=RULES)
    free = [card.uuid for card in cards if card.utilisation_pct == 0 and card.uuid not in leased]
    assert len(choice.devices) == (count if len(free) >= count else 0)
    assert set(choice.devices) <= set(free)
    assert (choice.problem is None) == bool(choice.devices)
    if cards:
        assert set(choice.devices) | {uuid for uuid, _ in choice.rejected} >= {c.uuid for c in cards} - set(free)


@pytest.mark.requirement("GPUH-09")
def test_a_card_that_is_set_aside_is_refused_with_its_slices_by_choice_and_by_name() -> None:
    aside = make_card(0, quarantined="Xid 95 (set aside by root)")
    box = make_box(aside, make_card(1))
    assert pick(1, box).devices == ("GPU-1aaa",)
    named = pick("0,", box)
    assert named.devices == ()
    assert "quarantined: Xid 95" in named.rejected[0][1]
    assert "holdfast gpus clear 0" in named.rejected[0][1]
    sliced = replace(make_mig_card(2), quarantined="slow")
    assert judge_slice(sliced, sliced.mig_slices[0], RULES)[0].startswith("quarantined: slow")


def test_nobody_waits_for_a_card_that_is_set_aside() -> None:
    box = make_box(make_card(0, quarantined="Xid 95"))
    request = GpuRequest(count=1)
    assert not is_worth_waiting(request, box, choose_cards(request, box, leased={}, rules=RULES))
