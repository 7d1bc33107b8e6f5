"""``holdfast gpus health``, ``quarantine`` and ``clear``; what a run does with a card that is set aside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.cards.health import judge_box
from holdfast.agent.cards.watch import CardReadings
from holdfast.diagnosis.cards.throttling import ENOUGH_SAMPLES
from holdfast.model.finding import Level
from holdfast.model.gpu import Inventory, InventorySource
from tests.fakes.nvml import GIB

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.cli

SIMULATED = {"HOLDFAST_SIMULATED_GPUS": "2x24GiB"}


def levels(findings: list[dict[str, str]]) -> dict[str, str]:
    return {f"{finding['id']} {finding['subject'].split()[0]}": finding["level"] for finding in findings}


@pytest.mark.slow
@pytest.mark.requirement("GPUH-01")
def test_a_box_that_is_well_says_so_with_evidence(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    done = holdfast("gpus", "health", "--for", "0s", "--json").json()
    found = levels(done["findings"])
    assert done["exit_code"] == 0
    assert done["readings"] == 1
    assert {found[f"gpu.{name} 0"] for name in ("answers", "ecc", "remap", "throttle", "load", "pcie")} == {"pass"}
    assert found["gpu.xid 0"] in ("pass", "unknown")


@pytest.mark.slow
@pytest.mark.requirement("GPUH-01", "GPUH-06", "FAIL-08")
def test_a_card_held_back_by_heat_fails_with_78_and_the_other_is_well(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.set(1, clock_reasons=0x48, utilisation=99, power_mw=390_000, clock__sm=700, temperature=90)
    # With fewer than ten readings nothing is said of throttling, and a busy box gets by with fewer in three seconds.
    for window in ("3s", "12s", "48s"):
        done = holdfast("gpus", "health", "--for", window, "--json")
        value = done.json()
        if value["readings"] >= ENOUGH_SAMPLES:
            break
    assert done.code == 78
    assert value["readings"] >= ENOUGH_SAMPLES
    found = levels(value["findings"])
    assert (found["gpu.throttle 0"], found["gpu.throttle 1"], found["gpu.temperature 1"]) == ("pass", "fail", "fail")
    only = holdfast("gpus", "health", "0", "--for", "0s", "--json")
    assert only.code == 0
    assert all(finding["subject"].startswith("0 ") for finding in only.json()["findings"])


@pytest.mark.slow
def test_health_for_people_has_the_gravest_last_and_says_what_to_do(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, remapped="0 1 1 0")
    done = holdfast("gpus", "health", "--for", "0s")
    assert done.code == 78
    fail, action = done.out.splitlines()[-2:]
    assert fail.startswith("fail     gpu.remap 0 ")
    assert "reset-request" in action
    well = [line for line in done.out.splitlines() if line.startswith("pass")]
    assert len(well) == 1, "what is well is one line for each card"
    assert "throttle" in well[0]


@pytest.mark.slow
def test_only_free_cards_are_watched_on_request(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.run_on(0, (4_194_302, 3 * GIB))
    found = holdfast("gpus", "health", "--watch-free", "--for", "0s", "--json").json()["findings"]
    assert {finding["subject"] for finding in found} == {"1 (NVIDIA A100-SXM4-80GB)"}


@pytest.mark.slow
@pytest.mark.requirement("GPUH-07")
def test_memory_that_nobody_accounts_for_is_reported_and_nothing_is_done(
    holdfast: Command, fake_nvml: FakeNvml
) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, memory__used=9 * GIB)
    done = holdfast("gpus", "health", "--for", "0s", "--json").json()
    (found,) = [finding for finding in done["findings"] if finding["id"] == "gpu.memory"]
    assert found["level"] == "warn"
    assert "9 GiB of its memory are held by no process that the driver lists" in found["evidence"]


def test_a_driver_that_does_not_answer_is_unknown_and_no_pass() -> None:
    reason = "the driver did not answer"
    silent = CardReadings(Inventory(InventorySource.NVML, reason=reason, complete=False), {}, 0.0)
    (found, *_) = judge_box(silent, [])
    assert (found.id, found.level) == ("gpu.driver", Level.UNKNOWN)
    assert reason in found.evidence


@pytest.mark.slow
def test_a_box_without_cards_has_nothing_to_judge(holdfast: Command) -> None:
    done = holdfast("gpus", "health", env={"LD_LIBRARY_PATH": None})
    assert (done.code, "no cards" in done.out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["health", "7"], "no card 7 here"),
        (["health", "GPU-nonesuch"], "no card GPU-nonesuch here"),
        (["health", "--for", "soon"], "--for: "),
        (["health", "--for", "2d"], "too long to watch"),
        (["quarantine", "7", "--reason", "x"], "no card 7 here; the cards are: 0, 1"),
        (["quarantine", "0", "--reason", " "], "for a reason"),
        (["quarantine", "../x", "--reason", "x"], "not a card's UUID"),
        (["clear", "9"], "no card 9 here"),
    ],
)
def test_what_is_wrong_with_the_request_is_said(holdfast: Command, arguments: list[str], words: str) -> None:
    done = holdfast("gpus", *arguments, env=SIMULATED)
    assert (done.code, words in done.err) == (66 if "no card" in words else 64, True), done


@pytest.mark.slow
@pytest.mark.requirement("GPUH-09")
def test_a_card_is_set_aside_avoided_refused_by_name_and_given_back(holdfast: Command) -> None:
    said = holdfast("gpus", "quarantine", "0", "--reason", "Xid 95 \x1b[31mtwice", "--json", env=SIMULATED).json()
    assert said["quarantined"]["reason"] == "Xid 95 \x1b[31mtwice"
    shown = holdfast("gpus", env=SIMULATED)
    assert "quarantined: Xid 95" in shown.out
    assert "\x1b[31m" not in shown.out
    cards = holdfast("gpus", "--json", env=SIMULATED).json()["cards"]
    assert [card["available"] for card in cards] == [False, True]
    run = ("run", "--idle-window", "0s")
    named = holdfast(*run, "--gpus", "0,", "--", "true", env=SIMULATED)
    assert named.code == 78
    assert "quarantined: Xid 95" in named.err
    other = holdfast(*run, "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", env=SIMULATED)
    assert other.code == 0
    assert cards[1]["uuid"] in other.out
    health = holdfast("gpus", "health", "--for", "0s", "--json", env=SIMULATED).json()["findings"]
    warned = [(finding["id"], finding["remedy"]) for finding in health if finding["level"] == "warn"]
    assert warned == [("gpu.quarantine", "holdfast gpus clear 0")]
    cleared = holdfast("gpus", "clear", "0", "--reason", "reset", env=SIMULATED)
    assert "is cleared; it was set aside" in cleared.out
    assert all(card["available"] for card in holdfast("gpus", "--json", env=SIMULATED).json()["cards"])


@pytest.mark.slow
@pytest.mark.requirement("PRE-23")
def test_preflight_refuses_a_card_with_a_fault_and_warns_of_a_hot_one(holdfast: Command, tmp_path: Path) -> None:
    path = tmp_path / "cards.json"
    env = {"HOLDFAST_SIMULATED_GPUS": str(path)}

    def check(**card: object) -> dict[str, str]:
        path.write_text(json.dumps({"cards": [card]}))
        done = holdfast("preflight", "--gpus", "1", "--json", "--", "true", env=env).json()
        return {finding["id"]: finding["level"] for finding in done["findings"]}

    assert check()["gpu"] == "pass"
    assert check(recovery_action=2, faults=["recovery_wanted: a reboot"])["cards"] == "fail"
    assert check(throttle=["hw_thermal"], utilisation_pct=5)["gpu.throttle"] == "warn"
    assert check(temperature_c=95, slowdown_c=89)["gpu.temperature"] == "fail"


@pytest.mark.slow
@pytest.mark.requirement("PRE-23", "GPUH-04")
def test_preflight_says_whether_the_kernel_log_was_read(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    found = holdfast("preflight", "--gpus", "1", "--json", "--", "true").json()["findings"]
    told = {finding["id"]: finding["level"] for finding in found if finding["id"].startswith("gpu")}
    assert told in ({"gpu": "pass"}, {"gpu.xid": "unknown"})


@pytest.mark.requirement("GPUH-08")
@pytest.mark.parametrize(
    ("kind", "words"), [("other_namespace", "restart the container"), ("ghost", "reset-request"), ("managed", "")]
)
def test_a_holder_out_of_reach_gets_advice(holdfast: Command, tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "cards.json"
    path.write_text(json.dumps({"cards": [{"processes": [{"pid": 4242, "kind": kind, "used": "5GiB"}]}]}))
    shown = holdfast("gpus", env={"HOLDFAST_SIMULATED_GPUS": str(path)}).out
    assert ("about pid 4242" in shown) == bool(words)
    assert words in shown


def test_completing_a_card_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    from holdfast.cli.completion import complete_cards

    monkeypatch.setattr("os.listdir", lambda _: ["nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "null"])
    context, parameter = click.Context(click.Command("x")), click.Argument(["card"])
    assert [item.value for item in complete_cards(context, parameter, "")] == ["0", "11"]
    assert [item.value for item in complete_cards(context, parameter, "1")] == ["11"]
