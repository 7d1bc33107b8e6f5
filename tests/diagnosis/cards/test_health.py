"""Is a card well: throttling, heat, load, memory errors, link, Xids, each told apart and with its numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.cards.health import KernelWitness, judge_card_health
from holdfast.diagnosis.kernel.parse import parse_text
from holdfast.diagnosis.kernel.xids import judge_xids
from holdfast.model.finding import Finding, Level, worst
from tests.diagnosis.cards.cards import make_busy, make_card

if TYPE_CHECKING:
    from holdfast.model.gpu import Card

pytestmark = pytest.mark.contract

QUIET = KernelWitness()


def judge(samples: list[Card], *, before: Card | None = None, elapsed_s: float = 0.0) -> dict[str, Finding]:
    findings = judge_card_health(samples, before, None, QUIET, elapsed_s=elapsed_s)
    assert len({finding.id for finding in findings}) == len(findings), "one finding of each kind"
    return {finding.id: finding for finding in findings}


def levels(samples: list[Card]) -> dict[str, Level]:
    return {name: finding.level for name, finding in judge(samples).items()}


@pytest.mark.requirement("GPUH-01")
def test_a_card_that_is_well_passes_with_evidence_for_each_kind() -> None:
    for card in (make_card(), make_busy()):
        found = judge([card] * 12)
        assert set(found) == {
            "gpu.answers",
            "gpu.xid",
            "gpu.ecc",
            "gpu.ecc_corrected",
            "gpu.remap",
            "gpu.recovery",
            "gpu.throttle",
            "gpu.temperature",
            "gpu.load",
            "gpu.pcie",
        }
        assert {finding.level for finding in found.values()} == {Level.PASS}
        assert all(finding.evidence for finding in found.values())


@pytest.mark.requirement("GPUH-06", "B-79", "FAIL-08")
@pytest.mark.parametrize(("reason", "name"), [(0x20, "sw_thermal"), (0x40, "hw_thermal"), (0x80, "hw_power_brake")])
def test_heat_and_the_power_brake_fail_when_they_last(reason: int, name: str) -> None:
    held = make_busy(clock_reasons=reason | 0x8, sm_clock_mhz=800, temperature_c=84)
    found = judge([held] * 6 + [make_busy()] * 6)["gpu.throttle"]
    assert found.level is Level.FAIL
    assert name in found.evidence
    assert "84 °C" in found.evidence
    assert "800 MHz" in found.evidence
    assert "no regression" in found.remedy


def test_one_reading_of_heat_is_too_little_for_a_verdict() -> None:
    assert levels([make_busy(clock_reasons=0x40)])["gpu.throttle"] is Level.WARN
    assert levels([make_busy(clock_reasons=0x40)] + [make_busy()] * 20)["gpu.throttle"] is Level.WARN


@pytest.mark.requirement("GPUH-06")
def test_the_power_cap_is_normal_at_full_draw_and_odd_at_a_low_one() -> None:
    assert levels([make_busy(clock_reasons=0x4)] * 12)["gpu.throttle"] is Level.PASS
    assert levels([make_busy(clock_reasons=0x4, power_w=150.0)] * 12)["gpu.throttle"] is Level.WARN
    assert levels([make_busy(clock_reasons=0x4, power_w=None)] * 12)["gpu.throttle"] is Level.WARN


@pytest.mark.requirement("GPUH-06", "B-79")
def test_a_low_clock_of_an_idle_card_is_no_fault() -> None:
    found = judge([make_card(sm_clock_mhz=210)] * 12)
    assert found["gpu.throttle"].level is Level.PASS
    assert "idle" in found["gpu.throttle"].evidence
    assert found["gpu.load"].level is Level.PASS


def test_somebodys_clock_setting_is_no_fault_and_is_named() -> None:
    found = judge([make_busy(clock_reasons=0x2)] * 12)["gpu.throttle"]
    assert (found.level, "application_clocks" in found.evidence) == (Level.PASS, True)


def test_the_drivers_counter_of_lost_time_decides_without_ten_readings() -> None:
    before, now = make_busy(thermal_violation_ns=0), make_busy(thermal_violation_ns=30 * 10**9)
    assert judge([now], before=before, elapsed_s=100.0)["gpu.throttle"].level is Level.FAIL
    little, nothing = make_busy(thermal_violation_ns=10**9), make_busy(thermal_violation_ns=10**8)
    assert judge([little], before=before, elapsed_s=100.0)["gpu.throttle"].level is Level.WARN
    assert judge([nothing], before=before, elapsed_s=100.0)["gpu.throttle"].level is Level.PASS
    reset = judge([before], before=now, elapsed_s=100.0)["gpu.throttle"]
    assert reset.level is Level.PASS, "a counter that went back was reset with the driver"


@pytest.mark.requirement("GPUH-04")
def test_what_was_not_read_is_unknown_and_never_a_pass() -> None:
    blind = make_card(
        clock_reasons=None, temperature_c=None, utilisation_pct=None, ecc_uncorrectable=None, remapped_uncorrected=None
    )
    found = judge_card_health([blind], None, None, KernelWitness(unread="the kernel log could not be read: EPERM"))
    unknown = {finding.id for finding in found if finding.level is Level.UNKNOWN}
    assert unknown == {"gpu.xid", "gpu.throttle", "gpu.temperature", "gpu.load", "gpu.ecc", "gpu.remap"}


def test_what_a_card_does_not_have_is_left_out() -> None:
    plain = make_card(
        ecc_uncorrectable=None,
        ecc_corrected=None,
        remapped_uncorrected=None,
        recovery_action=None,
        unsupported=("ecc_uncorrectable", "remapped_uncorrected"),
    )
    found = judge([plain] * 12)
    assert {finding.level for finding in found.values()} == {Level.PASS}
    assert "gpu.ecc" not in found


@pytest.mark.requirement("GPUH-06")
@pytest.mark.parametrize(
    ("celsius", "limits", "level"),
    [
        (68, (89, 85), Level.PASS),
        (84, (89, 85), Level.WARN),
        (90, (89, 85), Level.FAIL),
        (84, (104, 100), Level.PASS),
        (84, (None, None), Level.WARN),
        (76, (None, None), Level.PASS),
    ],
)
def test_the_cards_own_limits_go_before_fixed_ones(
    celsius: int, limits: tuple[int | None, int | None], level: Level
) -> None:
    card = make_busy(temperature_c=celsius, slowdown_c=limits[0], gpu_max_c=limits[1])
    assert levels([card] * 12)["gpu.temperature"] is level


def test_without_limits_heat_with_a_low_clock_under_load_is_graver() -> None:
    hot = make_busy(temperature_c=84, slowdown_c=None, gpu_max_c=None, sm_clock_mhz=700)
    assert levels([hot] * 12)["gpu.temperature"] is Level.FAIL
    assert levels([replace(hot, temperature_c=77)] * 12)["gpu.temperature"] is Level.WARN


@pytest.mark.requirement("GPUH-05", "DIAG-03")
def test_a_card_that_is_busy_with_little_is_underfed() -> None:
    spinning = make_busy(power_w=120.0, sm_clock_mhz=700, memory_utilisation_pct=2)
    found = judge([spinning] * 12)["gpu.load"]
    assert found.level is Level.WARN
    assert "99 % utilisation, 30% of the power limit" in found.evidence
    assert "SM clock at 50%" in found.evidence
    assert levels([make_busy(power_w=120.0)] * 12)["gpu.load"] is Level.PASS, "a full clock is work of its own kind"
    assert levels([spinning] * 3)["gpu.load"] is Level.UNKNOWN, "a moment says nothing"


@pytest.mark.requirement("GPUH-01", "FAIL-07")
def test_memory_errors_count_since_the_launch_of_the_run() -> None:
    fault = "ecc_uncorrectable: 3 uncorrectable memory errors since the driver was loaded"
    old = make_card(ecc_uncorrectable=3, faults=(fault,))
    assert judge([old])["gpu.ecc"].level is Level.FAIL
    assert judge([old], before=make_card(ecc_uncorrectable=0))["gpu.ecc"].level is Level.FAIL
    assert judge([old], before=old)["gpu.ecc"].level is Level.WARN, "older than the run"


def test_a_storm_of_corrected_errors_is_told_by_its_rate() -> None:
    before = make_card(ecc_corrected=1000)
    assert (
        judge([make_card(ecc_corrected=1100)], before=before, elapsed_s=10.0)["gpu.ecc_corrected"].level is Level.PASS
    )
    storm = judge([make_card(ecc_corrected=178_000)], before=before, elapsed_s=10.0)["gpu.ecc_corrected"]
    assert (storm.level, "17700 corrected" in storm.evidence) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("remap_failed: no spare row", "gpu.remap"),
        ("remap_pending: at the next reset", "gpu.remap"),
        ("recovery_wanted: the driver asks for a reset", "gpu.recovery"),
        ("reset_required: call failed", "gpu.recovery"),
        ("lost: call failed", "gpu.answers"),
        ("unresponsive: call has not returned", "gpu.answers"),
        ("implausible: used more than there is", "gpu.answers"),
    ],
)
def test_every_hard_fault_fails_with_an_action(fault: str, finding: str) -> None:
    found = judge([make_card(faults=(fault,))])[finding]
    assert (found.level, found.evidence, bool(found.remedy)) == (Level.FAIL, fault, True)


def test_of_a_lost_card_nothing_else_is_claimed() -> None:
    assert set(judge([make_card(faults=("lost: gone",))])) == {"gpu.answers", "gpu.xid"}


def test_a_slow_link_counts_under_load_only() -> None:
    assert levels([make_card(pcie_generation=1)] * 12)["gpu.pcie"] is Level.PASS
    assert levels([make_busy(pcie_generation=1)] * 12)["gpu.pcie"] is Level.WARN
    assert levels([make_busy(pcie_generation=1)] * 6 + [make_busy()] * 6)["gpu.pcie"] is Level.PASS
    assert levels([make_card(pcie_width=8)])["gpu.pcie"] is Level.WARN


def witness(text: str) -> KernelWitness:
    return KernelWitness(judge_xids(parse_text(text), pci="00000000:3B:00.0"))


XID = "4,1,5000000,-;NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=x, words"


@pytest.mark.requirement("GPUH-01", "GPUH-02")
@pytest.mark.parametrize(
    ("code", "level"), [(95, Level.FAIL), (13, Level.PASS), (45, Level.PASS), (4711, Level.WARN), (149, Level.WARN)]
)
def test_a_xid_weighs_what_the_table_says(code: int, level: Level) -> None:
    card = make_card(recovery_action=None)
    (found,) = [
        finding
        for finding in judge_card_health([card], None, None, witness(XID.format(code)))
        if finding.id == "gpu.xid"
    ]
    assert found.level is level
    assert str(code) in found.evidence


def test_a_fatal_xid_of_a_card_of_which_the_driver_wants_nothing_is_a_warning() -> None:
    found = judge_card_health([make_card(recovery_action=0)], None, None, witness(XID.format(95)))
    assert worst(found) is Level.WARN, "it was reset since, or the driver would ask for it"
    wanting = make_card(recovery_action=1, faults=("recovery_wanted: a reset",))
    assert worst(judge_card_health([wanting], None, None, witness(XID.format(95)))) is Level.FAIL


@pytest.mark.slow
@pytest.mark.requirement("GPUH-06")
def test_a_thousand_healthy_cards_give_no_alarm() -> None:
    dice = random.Random(4)
    for _ in range(1000):
        samples = [
            make_busy(
                clock_reasons=dice.choice([0, 0x4, 0x2]),
                power_w=dice.uniform(330, 400),
                sm_clock_mhz=dice.randint(1000, 1410),
                temperature_c=dice.randint(40, 82),
                utilisation_pct=dice.randint(85, 100),
                memory_utilisation_pct=dice.randint(0, 100),
                pcie_generation=dice.choice([3, 4]),
            )
            for _ in range(dice.randint(10, 20))
        ]
        samples.append(make_busy())
        assert worst(judge_card_health(samples, None, None, QUIET)) is Level.PASS
