"""The Xids that the driver reports while a job runs: written down, told of, and part of the verdict."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.agent.supervise.watch import xids
from holdfast.agent.supervise.watch.xids import MOST_EVENTS, MOST_TIMES, XidWatch
from holdfast.core.rules.rules import Rules
from holdfast.host.gpu.probe_client import Probe
from holdfast.model import wire
from holdfast.model.gpu import Card, GpuRequest, XidEvent
from holdfast.model.job import GpuOptions, Retries
from tests.agent.driving import Drive, Driven, read_text
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.agent.supervise.context import SupervisorContext
    from tests.fakes.nvml.driver import FakeNvml

PATIENT_S = LIMIT_S


@pytest.fixture
def probe(fake_nvml: FakeNvml) -> Iterator[Probe]:
    """A probe of the fake driver, which listens already."""
    fake_nvml.add_cards(2)
    with Probe() as made:
        made.warm(PATIENT_S, listen=True)
        made.ask({"op": "utilisation"}, PATIENT_S)
        yield made


class Stage:
    """A watch whose events and alerts are kept."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.alerts: list[tuple[str, dict[str, Any]]] = []
        self.lines: list[str] = []
        self.manifest: dict[str, Any] = {}
        recorder = SimpleNamespace(event=self._keep, log=self.lines.append, read_manifest=lambda: self.manifest)
        context = SimpleNamespace(recorder=recorder, rules=rules or Rules())
        self.watch = XidWatch(cast("SupervisorContext", context), lambda name, **data: self.alerts.append((name, data)))

    def _keep(self, name: str, **data: object) -> None:
        assert name == "xid"
        self.events.append(data)


def card_of(fake: FakeNvml, index: int) -> Card:
    values = fake.cards[index].values
    return Card(index, fake.cards[index].uuid, "A100", pci_bus_id=str(values["pci"]))


@pytest.mark.contract
@pytest.mark.requirement("GPUH-02")
def test_GPUH_02_what_is_reported_of_a_leased_card_is_written_and_a_grave_one_told_once(
    fake_nvml: FakeNvml, probe: Probe
) -> None:
    stage, card = Stage(), card_of(fake_nvml, 0)
    for code in (79, 13, 13):
        fake_nvml.report_xid(0, code)
    fake_nvml.report_xid(1, 48)
    stage.watch.look(probe, [card])
    seen = [(event["code"], event["severity"], event["count"], len(event["at_s"])) for event in stage.events]
    assert seen == [(79, "host", 1, 1), (13, "app", 2, 2)], "the other card is not ours"
    assert stage.events[0]["card"] == card.uuid
    ((name, data),) = stage.alerts
    assert (name, data["index"]) == ("card_fault", 0)
    assert data["faults"][0].startswith("xid: Xid 79: ")
    fake_nvml.report_xid(0, 79)
    stage.watch.look(probe, [card])
    assert (len(stage.events), len(stage.alerts), stage.lines) == (3, 1, [])


@pytest.mark.contract
def test_a_card_that_no_longer_tells_its_name_is_known_by_its_address(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = (XidEvent("None", 79, 5.0, "00000000:3A:00.0"), XidEvent("None", 79, 6.0, "00000000:3B:00.0"))
    monkeypatch.setattr(xids, "read_xid_events", lambda *_: (events, ""))
    stage = Stage()
    stage.manifest = {"cards": [{"uuid": "GPU-1", "pci_bus_id": "00000000:3A:00.0"}, 7]}
    stage.watch.look(probe, [Card(0, "GPU-1", "A100", faults=("lost: it is gone",))])
    assert [(event["card"], event["pci"], event["at_s"]) for event in stage.events] == [
        ("GPU-1", "00000000:3A:00.0", [5.0])
    ]


@pytest.mark.contract
def test_a_rule_of_the_box_goes_before_the_table(fake_nvml: FakeNvml, probe: Probe) -> None:
    stage = Stage(Rules(xids={79: "watch", 13: "card"}))
    fake_nvml.report_xid(0, 79)
    fake_nvml.report_xid(0, 13)
    stage.watch.look(probe, [card_of(fake_nvml, 0)])
    assert [(event["code"], event["severity"]) for event in stage.events] == [(79, "watch"), (13, "card")]
    assert len(stage.alerts) == 1
    assert "Xid 13" in stage.alerts[0][1]["faults"][0]


@pytest.mark.contract
def test_a_storm_of_one_code_is_bounded(fake_nvml: FakeNvml, probe: Probe) -> None:
    stage, card = Stage(), card_of(fake_nvml, 0)
    for _ in range(MOST_TIMES + 8):
        fake_nvml.report_xid(0, 31)
    stage.watch.look(probe, [card])
    assert (stage.events[0]["count"], len(stage.events[0]["at_s"])) == (MOST_TIMES + 8, MOST_TIMES)
    for _ in range(MOST_EVENTS + 2):
        fake_nvml.report_xid(0, 31)
        stage.watch.look(probe, [card])
    assert len(stage.events) == MOST_EVENTS


@pytest.mark.contract
def test_a_card_that_reports_none_is_said_once(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, event_types=0)
    stage = Stage()
    with Probe() as listening:
        listening.warm(PATIENT_S)
        for _ in range(2):
            listening.ask({"op": "utilisation"}, PATIENT_S)
            stage.watch.look(listening, [card_of(fake_nvml, 0)])
    assert (stage.events, len(stage.lines)) == ([], 1)
    assert "no Xid of card 0" in stage.lines[0]


def start(drive: Drive, fake: FakeNvml, gate: str) -> Driven:
    """A run on the fake card that leaves with 1 when the gate opens, and whose probe listens."""
    os.mkfifo(gate)
    run = drive(
        *("sh", "-c", f"read x < {gate}; exit 1"),
        gpus=GpuRequest(count=1),
        gpu=GpuOptions(idle_window_s=0.0, verify=False),
        environ=fake.environment(),
        health_every_s=0.2,
        retries=Retries(0),
    )
    run.running()
    before = count_samples(run)
    wait_until(lambda: count_samples(run) > before + 1, what="it looks at its card")
    return run


def count_samples(run: Driven) -> int:
    try:
        return sum(bool(json.loads(line)["cards"]) for line in read_text(run.path(wire.HEALTH)).split("\n")[:-1])
    except FileNotFoundError:
        return 0


def open_gate(gate: str) -> None:
    with open(gate, "w", encoding="ascii") as file:
        file.write("go\n")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.requirement("GPUH-02", "GPUH-03")
def test_GPUH_02_a_run_whose_card_falls_off_is_told_and_ends_as_hardware(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    gate = f"{drive.workdir}/gate"
    run = start(drive, fake_nvml, gate)
    fake_nvml.report_xid(0, 79)
    (fault,) = wait_until(lambda: run.events("card_fault"), what=f"it is told; {run.log()}")
    assert "Xid 79" in fault["data"]["faults"][0]
    open_gate(gate)
    run.ended()
    verdict = run.read(wire.VERDICT)["verdict"]
    assert (verdict["kind"], verdict["cards"]) == ("hardware", [fake_nvml.cards[0].uuid])
    assert any(clue["source"].startswith("NVML") for clue in verdict["evidence_for"])


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.requirement("GPUH-02")
def test_GPUH_02_what_is_reported_after_the_last_sample_is_heard_and_the_box_s_rules_judge_it(
    drive: Drive, fake_nvml: FakeNvml
) -> None:
    rules = Path(drive.environ["HOLDFAST_RULES"])
    rules.write_text('[xid]\n13 = "card"\n')
    rules.chmod(0o600)
    fake_nvml.add_cards(1)
    gate = f"{drive.workdir}/gate"
    run = start(drive, fake_nvml, gate)
    fake_nvml.report_xid(0, 13)
    open_gate(gate)
    run.ended()
    (event,) = run.events("xid")
    assert (event["data"]["code"], event["data"]["severity"]) == (13, "card")
    assert run.read(wire.MANIFEST)["baseline"]["xids"] == {"13": "card"}
    rules.unlink()
    assert run.read(wire.VERDICT)["verdict"]["kind"] == "hardware"
