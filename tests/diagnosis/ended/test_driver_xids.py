"""The Xids that the supervisor heard are part of the verdict, also where the kernel's log cannot be read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.diagnosis.ended.driver_xids import decode_severities, read_heard
from holdfast.diagnosis.ended.judge import examine_here
from holdfast.host.clock import monotonic_s
from holdfast.model import wire
from holdfast.model.gpu import XidEvent
from holdfast.model.verdict import FailureClass, Verdict

from .making import ended, launch, write_attempt

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files

CARD = {"index": 0, "uuid": "GPU-1", "name": "H100", "pci_bus_id": "00000000:3B:00.0", "faults": []}


def line(event: str = "xid", **data: Any) -> str:
    facts = {"card": "GPU-1", "index": 0, "pci": "00000000:3B:00.0", "code": 79, "at_s": [monotonic_s()], **data}
    return json.dumps({"seq": 1, "utc": "", "monotonic_s": 1.0, "event": event, "data": facts}) + "\n"


def judge(root: Path, *events: str, xids: object = None) -> Verdict:
    end = ended(1)
    base = launch(str(root))
    manifest = {"cards": [CARD], "baseline": {**base["baseline"], "xids": xids or {}}}
    run_dir = write_attempt(root, end, manifest=manifest)
    (root / end_directory(run_dir) / wire.EVENTS).write_text("".join(events))
    verdict = examine_here(run_dir, 1, end, kernel_source=str(root / "unreadable")).verdict
    assert verdict is not None
    return verdict


def end_directory(run_dir: str) -> str:
    return wire.attempt_dir(run_dir, 1)


@pytest.mark.requirement("GPUH-02", "GPUH-04")
def test_GPUH_02_a_lost_card_is_hardware_though_the_kernel_log_is_unreadable(tmp_path: Path) -> None:
    verdict = judge(tmp_path, line())
    assert (verdict.kind, verdict.cards) == (FailureClass.HARDWARE, ("GPU-1",))


def test_GPUH_04_without_a_report_and_without_a_log_it_is_open(tmp_path: Path) -> None:
    verdict = judge(tmp_path, line("running"))
    assert verdict.kind is not FailureClass.HARDWARE
    assert any("Xid lines of the kernel log" in clue.text for clue in verdict.unknown)


def test_another_card_and_a_code_that_is_only_watched_condemn_nothing(tmp_path: Path) -> None:
    verdict = judge(tmp_path, line(card="GPU-2", pci="00000000:5E:00.0"), line(code=45))
    assert verdict.kind is not FailureClass.HARDWARE


@pytest.mark.parametrize(("word", "hardware"), [("card", True), ("watch", False), ("nonsense", False)])
def test_the_rules_that_held_at_the_launch_judge(tmp_path: Path, word: str, hardware: bool) -> None:
    verdict = judge(tmp_path, line(code=13), xids={"13": word})
    assert (verdict.kind is FailureClass.HARDWARE) == hardware


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    bad = [
        '{"event": "xid"\n',
        '{"event": "xid", "data": 7}\n',
        line(code="79"),
        line(code=True),
        line(at_s=5.0),
        line(at_s=["x", None, 10**400, -1.0, float("nan")]),
        line("card_fault", faults=["xid"]),
    ]
    path.write_text("".join(bad) + line(at_s=[1.5, "x", 2], gpu_instance=3, pci=None) + line()[:-1])
    assert read_heard(str(path)) == (XidEvent("GPU-1", 79, 1.5, None, 3), XidEvent("GPU-1", 79, 2.0, None, 3))
    assert read_heard(str(tmp_path / "none")) == read_heard(str(tmp_path)) == ()


def test_severities_that_are_none_are_left_out() -> None:
    assert decode_severities({"63": "card", "x": "card", "94": "fine", "13": 5, "14": ["card"]}) == {63: "card"}
    assert decode_severities([1]) == decode_severities(None) == {}
