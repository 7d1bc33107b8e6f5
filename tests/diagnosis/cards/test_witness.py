"""What the kernel's log says of each card of a box, by one reading of a log in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.plan.card_fitness import mark_unfit
from holdfast.core.cards.choose import choose_cards
from holdfast.core.rules.rules import Rules
from holdfast.diagnosis.cards import witness
from holdfast.diagnosis.cards.witness import ask_kernel, mark_condemned
from holdfast.diagnosis.kernel.log import read_kernel_log
from holdfast.host.gpu.quarantine import clear
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.model.gpu import CardRules, GpuRequest, Inventory, InventorySource, XidEvent
from tests.diagnosis.cards.cards import make_card

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.evidence import KernelLog, Reading

pytestmark = pytest.mark.process

BAD = make_card(recovery_action=None)
GOOD = make_card(index=1, uuid="GPU-2", pci_bus_id="00000000:AF:00.0", recovery_action=None)
BOX = Inventory(InventorySource.NVML, (BAD, GOOD))
XID = "NVRM: Xid (PCI:0000:3b:00): 95, pid=1, name=x, Uncontained"


@pytest.fixture
def area(tmp_path: Path) -> LeaseArea:
    return open_area(str(tmp_path / "area"), environ={})


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "kmsg"
    path.write_text(f"4,0,1000000,-;boot\n4,1,2000000,-;{XID}\n12,2,3000000,-;{XID.replace('3b', 'af')}\n")
    return str(path)


@pytest.mark.requirement("GPUH-03", "PRE-23", "FAIL-07")
def test_a_card_that_the_log_speaks_against_is_not_chosen(log: str, area: LeaseArea) -> None:
    marked = mark_condemned(BOX, ask_kernel(BOX.cards, source=log, area=area))
    (fault,) = marked.cards[0].faults
    assert fault.startswith("xid: NVRM: Xid (PCI:0000:3b:00): 95")
    assert "holdfast gpus clear 0" in fault
    assert marked.cards[1].faults == (), "a forged line speaks against nobody"
    chosen = choose_cards(GpuRequest(count=1), marked, leased={}, rules=CardRules())
    assert chosen.devices == ("GPU-2",)


def test_what_was_before_the_card_was_cleared_does_not_count(log: str, area: LeaseArea) -> None:
    clear(BAD.uuid, area=area)
    assert mark_condemned(BOX, ask_kernel(BOX.cards, source=log, area=area)) == BOX


@pytest.mark.requirement("GPUH-04")
def test_a_log_that_cannot_be_read_condemns_nobody_and_is_unread(tmp_path: Path, area: LeaseArea) -> None:
    found = ask_kernel(BOX.cards, source=str(tmp_path / "none"), area=area)
    assert all(one.unread for one in found.values())
    assert mark_condemned(BOX, found) == BOX


def test_what_the_driver_reported_counts_where_the_log_is_closed(tmp_path: Path, area: LeaseArea) -> None:
    report = XidEvent("GPU-2", 79, 5.0, "00000000:AF:00.0")
    found = ask_kernel(BOX.cards, source=str(tmp_path / "none"), heard=[report], area=area)
    assert not found["GPU-1"].detections
    assert mark_condemned(BOX, found).cards[1].faults[0].startswith("xid: ")


def test_how_far_back_an_overwritten_log_reaches_is_said(tmp_path: Path, area: LeaseArea) -> None:
    path = tmp_path / "kmsg"
    path.write_text("4,900,1000000,-;later\n")
    found = ask_kernel(BOX.cards, source=str(path), area=area)
    assert found["GPU-1"].reaches_back


def test_a_card_without_an_address_is_unread(log: str, area: LeaseArea) -> None:
    nameless = make_card(pci_bus_id=None)
    assert "PCI address" in ask_kernel([nameless], source=log, area=area)["GPU-1"].unread


def test_simulated_cards_have_no_kernel(log: str, area: LeaseArea) -> None:
    simulated = Inventory(InventorySource.SIMULATED, (BAD,))
    assert mark_condemned(simulated, ask_kernel([BAD], source=log, area=area)) == simulated


def test_a_reading_for_a_lease_carries_both_words(log: str, area: LeaseArea, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.host.gpu.quarantine import quarantine

    monkeypatch.setattr(witness, "read_kernel_log", lambda **options: _read(**{**options, "source": log}))
    quarantine("GPU-2", "slow", area=area)
    bad, good = mark_unfit(BOX, Rules(lease_dir=area.directories[0]), {}).cards
    assert bad.faults[0].startswith("xid: ")
    assert good.quarantined.startswith("slow")
    unread, aside = mark_unfit(BOX, Rules(lease_dir=area.directories[0]), {}, kernel=False).cards
    assert (unread.faults, bool(aside.quarantined)) == ((), True)


def _read(**options: Any) -> Reading[KernelLog]:
    return read_kernel_log(**options)
