"""The condition of a card through the real binding: clocks, limits, counters, link, recovery action, Xid events."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.gpu.inventory import read_inventory, read_xid_events
from holdfast.host.gpu.probe_client import Probe
from holdfast.model.gpu import Card, shorten_pci
from holdfast.model.record import replace
from tests.fakes.nvml import GIB
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.nvml import FakeNvml

pytestmark = [pytest.mark.process, pytest.mark.requirement("GPUH-01")]

PATIENT_S = LIMIT_S


@pytest.fixture
def probe() -> Iterator[Probe]:
    with Probe() as own:
        yield own


def read_one(probe: Probe | None = None) -> Card:
    (card,) = read_inventory(PATIENT_S, probe=probe).cards
    return card


@pytest.mark.slow
def test_every_value_is_read_in_its_unit(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, clock__sm=1380, violation__thermal=5_000_000, utilisation__memory=40, remapped="3 2 0 0")
    fake_nvml.set(0, ecc__volatile__corrected=17, pcie_generation=1, minor=5)
    card = read_one()
    assert (card.sm_clock_mhz, card.sm_clock_max_mhz) == (1380, 1410)
    assert card.memory_clock_mhz == 1593
    assert (card.slowdown_c, card.gpu_max_c) == (89, 85)
    assert (card.power_limit_w, card.memory_utilisation_pct) == (400.0, 40)
    assert card.thermal_violation_ns == 5_000_000
    assert (card.pcie_generation, card.pcie_generation_max, card.pcie_width, card.pcie_width_max) == (1, 4, 16, 16)
    assert (card.ecc_corrected, card.remapped_uncorrected) == (17, 2)
    assert (card.clock_reasons, card.minor) == (0x1, 5)
    assert (card.recovery_action, card.unsupported, card.faults) == (0, (), ())


def test_a_card_that_has_none_of_it_is_no_fault_and_says_what_it_lacks(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    lacking = ("clock.sm", "clock_max.sm", "limit.slowdown", "violation.thermal", "power_limit_mw", "pcie_width")
    for key in (*lacking, "ecc.volatile.uncorrected", "ecc.aggregate.uncorrected", "remapped", "field.230"):
        fake_nvml.cards[0].values[key] = None
    fake_nvml.write()
    card = read_one()
    assert card.faults == ()
    assert (card.sm_clock_mhz, card.slowdown_c, card.thermal_violation_ns, card.recovery_action) == (None,) * 4
    assert {"sm_clock_mhz", "slowdown_c", "power_limit_w", "ecc_uncorrectable", "remapped_uncorrected"} <= {
        *card.unsupported
    }


@pytest.mark.parametrize("code", [2, 4, 13, 999])
@pytest.mark.parametrize("function", ["nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetFieldValues"])
def test_an_odd_answer_for_an_optional_value_condemns_no_card(fake_nvml: FakeNvml, function: str, code: int) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.fail(function, code)
    card = read_one()
    assert (card.faults, card.memory_free_bytes) == ((), 80 * GIB - 600 * 1024**2)


def test_a_card_that_is_lost_in_the_middle_is_lost(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.fail("nvmlDeviceGetClockInfo", 15, 0)
    (fault,) = read_one().faults
    assert fault.startswith("lost: nvmlDeviceGetClockInfo failed")


@pytest.mark.parametrize(
    ("action", "words"), [(1, "a reset of the card"), (2, "a reboot of the box"), (42, "not known")]
)
def test_what_the_driver_wants_done_is_a_fault(fake_nvml: FakeNvml, action: int, words: str) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, **{"field.230": action})
    card = read_one()
    assert card.recovery_action == action
    (fault,) = card.faults
    assert fault.startswith("recovery_wanted: ")
    assert words in fault


@pytest.mark.slow
def test_a_call_that_hangs_late_leaves_what_was_read_before(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(2)
    read_inventory(PATIENT_S, probe=probe)
    fake_nvml.hang("nvmlDeviceGetViolationStatus", 1)
    well, stuck = read_inventory(1.0, probe=probe).cards
    assert well.faults == ()
    assert stuck.faults[0].startswith("unresponsive: nvmlDeviceGetViolationStatus")
    assert stuck.sm_clock_mhz == 210
    fake_nvml.heal()


@pytest.mark.slow
def test_an_old_driver_gives_what_it_has(
    fake_nvml: FakeNvml, old_nvml_library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", os.path.dirname(old_nvml_library))
    fake_nvml.add_cards(1)
    card = read_one()
    assert (card.clock_reasons, card.sm_clock_max_mhz, card.faults) == (0x1, 1410, ())


@pytest.mark.requirement("GPUH-02")
def test_xids_are_heard_once_each_from_when_one_listens(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.report_xid(0, 13)
    assert read_xid_events(probe, PATIENT_S) == ((), ""), "what was before nobody hears"
    fake_nvml.report_xid(1, 79)
    fake_nvml.report_xid(1, 79)
    fake_nvml.report_xid(0, 94, gpu_instance=5)
    events, unheard = read_xid_events(probe, PATIENT_S)
    assert unheard == ""
    assert [(event.uuid, event.code, event.gpu_instance) for event in events] == [
        (fake_nvml.cards[1].uuid, 79, None),
        (fake_nvml.cards[1].uuid, 79, None),
        (fake_nvml.cards[0].uuid, 94, 5),
    ]
    assert shorten_pci(events[0].pci_bus_id or "") == "0000:3b:00.0"
    assert read_xid_events(probe, PATIENT_S)[0] == ()
    assert read_inventory(PATIENT_S, probe=probe).complete, "listening disturbs no reading"


def test_a_card_that_reports_no_xids_is_named(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.set(1, event_types=0)
    events, unheard = read_xid_events(probe, PATIENT_S)
    assert (events, unheard) == ((), "the driver reports no Xid of card 1")


@pytest.mark.slow
def test_listening_that_hangs_is_said_and_hides_no_reading(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    read_inventory(PATIENT_S, probe=probe)
    fake_nvml.hang("nvmlDeviceRegisterEvents")
    events, unheard = read_xid_events(probe, 1.0)
    assert events == ()
    assert "nvmlDeviceRegisterEvents has not returned" in unheard
    assert read_inventory(PATIENT_S, probe=probe).cards[0].faults == ()
    fake_nvml.heal()


def test_a_box_without_a_driver_hears_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, probe: Probe
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    events, unheard = read_xid_events(probe, PATIENT_S)
    assert events == ()
    assert "nvmlInitWithFlags failed" in unheard


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:af:00", "0000:af:00.0"),
        ("00010000:C1:00.0", "10000:c1:00.0"),
        ("", ""),
        ("GPU-1", ""),
        ("0000:zz:00.0", ""),
    ],
)
def test_an_address_has_one_form(text: str, short: str) -> None:
    assert shorten_pci(text) == short


def test_a_simulated_card_can_have_every_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "cards.json"
    path.write_text(
        '{"cards": [{"sm_clock_mhz": 700, "power_limit_w": 300, "recovery_action": 1, "utilisation_pct": 9}]}'
    )
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", str(path))
    card = read_one()
    assert (card.sm_clock_mhz, card.power_limit_w, card.recovery_action, card.clock_reasons) == (700, 300, 1, 0)
    path.write_text('{"cards": [{"sm_clock_mhz": "fast"}]}')
    assert "sm_clock_mhz is not a number" in (read_inventory().reason or "")
    assert replace(card, quarantined="x").quarantined == "x"
