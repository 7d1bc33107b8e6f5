"""The table of Xids and the judgement of one card's events."""

from __future__ import annotations

import os

import pytest
from hatchling.builders.wheel import WheelBuilder

from holdfast.diagnosis.evidence import Answer, Detection, KernelEvent, KernelKind
from holdfast.diagnosis.kernel import xids
from holdfast.diagnosis.kernel.parse import NO_TIME
from holdfast.diagnosis.kernel.xids import Severity, find_xid, judge_xids, merge_events, read_table
from holdfast.host.formats import bundle
from holdfast.model.gpu import XidEvent
from holdfast.model.record import replace
from holdfast.model.verdict import Confidence, FailureClass
from tests.diagnosis.kernel.texts import parse_text

pytestmark = pytest.mark.files

CARD = "00000000:3B:00.0"


def line(code: int, *, at: float = 100.0, bus: str = "3b", detail: str = "detail", pid: int = 1234) -> KernelEvent:
    text = f"4,1,{int(at * 1e6)},-;NVRM: Xid (PCI:0000:{bus}:00): {code}, pid={pid}, name=python, {detail}"
    return parse_text(text)[0]


def judge_one(*events: KernelEvent, since: float = 0.0, overrides: dict[int, str] | None = None) -> Detection:
    (found,) = judge_xids(events, pci=CARD, since_seconds=since, overrides=overrides)
    return found


def test_every_entry_says_what_it_means_and_what_to_do() -> None:
    table = read_table()
    assert len(table) > 100
    for code, xid in table.items():
        assert xid.code == code
        assert xid.mnemonic
        assert xid.meaning.endswith(".")
        assert xid.action.endswith(".")
        assert xid.source
        assert not xid.repeat or xid.severity is Severity.APP, "only an error of the job's kind escalates by repetition"


def test_the_table_goes_wherever_the_package_goes() -> None:
    name = os.path.relpath(xids.TABLE, bundle.PACKAGE)
    assert name in {listed for listed, _, _ in bundle._list_sources(bundle.PACKAGE)}
    root = os.path.dirname(os.path.dirname(bundle.PACKAGE))
    wheel = {file.distribution_path for file in WheelBuilder(root).recurse_included_files()}
    assert f"holdfast/{name}" in wheel


@pytest.mark.requirement("B-33")
def test_the_fatal_codes_are_fatal() -> None:
    fatal = {code for code, xid in read_table().items() if xid.severity in (Severity.CARD, Severity.HOST)}
    assert {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143} <= fatal
    assert not {13, 31, 43, 45, 63, 68, 92, 94, 109} & fatal, "no one of these condemns a card by itself"


@pytest.mark.requirement("B-33")
def test_a_code_that_is_not_in_the_table_is_watched_and_said_to_be_unknown() -> None:
    xid = find_xid(4711)
    assert (xid.severity, xid.known) == (Severity.WATCH, False)
    found = judge_one(line(4711))
    assert found.answer is Answer.NO
    assert any("unknown code" in clue.text for clue in found.evidence_against)


def test_an_override_of_the_administrator_goes_before_the_table() -> None:
    assert judge_one(line(45), overrides={45: "card"}).answer is Answer.YES
    assert judge_one(line(48), overrides={48: "watch"}).answer is Answer.NO
    with pytest.raises(ValueError, match=r"Xid 45: 'fatal' is no severity \(known: app"):
        find_xid(45, {45: "fatal"})


@pytest.mark.requirement("GPUH-02", "FAIL-07")
@pytest.mark.parametrize("code", [48, 79, 95, 119])
def test_a_fatal_code_condemns_the_card_with_its_line_as_evidence(code: int) -> None:
    found = judge_one(line(code))
    assert (found.kind, found.answer, found.confidence) == (FailureClass.HARDWARE, Answer.YES, Confidence.CERTAIN)
    assert f"): {code}, " in found.evidence_for[0].text
    assert found.facts["card"] == "0000:3b:00.0"
    assert found.facts["action"]


def test_xid_45_never_decides_however_often_it_comes() -> None:
    assert judge_one(*(line(45, at=float(at), pid=at) for at in range(0, 80_000, 100))).answer is Answer.NO


@pytest.mark.requirement("GPUH-03")
def test_only_events_of_this_card_and_newer_than_the_lease_count() -> None:
    assert judge_xids([line(79, bus="af")], pci=CARD) == ()
    assert judge_xids([line(79, at=99.0)], pci=CARD, since_seconds=100.0) == ()
    assert judge_one(line(79, at=101.0), since=100.0).answer is Answer.YES
    assert len(judge_xids([line(79), line(48, bus="af")], pci=None)) == 2
    assert len(judge_xids([line(79), line(48, bus="af")], pci=[CARD, "0000:af:00.0"])) == 2


def test_a_line_without_a_time_is_unknown_when_time_matters() -> None:
    undated = replace(line(79), seconds=NO_TIME)
    assert judge_one(undated, since=50.0).answer is Answer.UNKNOWN
    assert judge_one(undated).answer is Answer.YES


def test_a_forged_line_condemns_nobody_and_is_shown() -> None:
    found = judge_one(replace(line(79), trusted=False))
    assert found.answer is Answer.NO
    assert "written by a process" in found.evidence_against[0].text


def test_a_job_of_its_own_fault_is_not_the_cards() -> None:
    burst = [line(13, at=100.0 + at / 10) for at in range(50)]
    found = judge_one(*burst)
    assert (found.kind, found.answer) == (FailureClass.BUG, Answer.YES)
    assert found.facts["count"] == "50"


def test_errors_that_come_back_with_other_processes_may_be_the_cards() -> None:
    job, card = judge_xids([line(31, at=100.0, pid=1), line(31, at=5000.0, pid=2)], pci=CARD)
    assert (job.kind, job.answer) == (FailureClass.BUG, Answer.YES)
    assert (card.kind, card.answer) == (FailureClass.HARDWARE, Answer.UNKNOWN)
    assert "2 separate events of Xid 31" in card.unknown[0].text
    same_process = judge_one(line(31, at=100.0, pid=1), line(31, at=5000.0, pid=1))
    assert same_process.kind is FailureClass.BUG
    two_days = judge_one(line(31, at=100.0, pid=1), line(31, at=180_000.0, pid=2))
    assert two_days.kind is FailureClass.BUG


def test_a_contained_memory_error_is_the_cards_and_no_bug() -> None:
    found = judge_one(line(94))
    assert (found.kind, found.answer, found.confidence) == (FailureClass.HARDWARE, Answer.YES, Confidence.LIKELY)


@pytest.mark.parametrize(
    ("code", "detail", "answer"),
    [
        (144, "SAW_ERROR Fatal (link 3)", Answer.YES),
        (145, "RLW_ERROR Nonfatal (link 3)", Answer.NO),
        (149, "NETIR without the word", Answer.UNKNOWN),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Answer.YES),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", Answer.YES),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", Answer.NO),
        (154, "something else", Answer.UNKNOWN),
    ],
)
def test_a_line_that_names_its_own_weight_is_taken_at_its_word(code: int, detail: str, answer: Answer) -> None:
    assert judge_one(line(code, detail=detail)).answer is answer


def test_a_card_off_the_bus_is_lost_by_one_line_and_the_gravest_comes_first() -> None:
    lost = parse_text("3,9,100000000,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    found = judge_xids([line(45), line(13), *lost], pci=CARD)
    assert [(one.detector, one.answer) for one in found] == [
        ("G2", Answer.YES),
        ("G1", Answer.YES),
        ("G1", Answer.NO),
    ]


def heard(code: int, at: float) -> XidEvent:
    return XidEvent("GPU-1", code, at, CARD)


def test_what_both_the_log_and_the_driver_tell_counts_once() -> None:
    log = (line(79, at=100.0), line(31, at=100.0))
    merged = merge_events(log, [heard(79, 110.0)])
    assert len(merged) == 2
    assert len(merge_events(log, [heard(79, 110.0), heard(79, 111.0)])) == 3, "a second report is a second event"
    assert len(merge_events(log, [heard(79, 900.0)])) == 3, "much later it is another one"
    alone = merge_events((), [heard(48, 5.0)])
    assert judge_one(*alone).answer is Answer.YES
    assert "NVML" in judge_one(*alone).evidence_for[0].source


def test_events_of_other_kinds_are_left_alone() -> None:
    assert judge_xids([KernelEvent(KernelKind.NFS, 1.0, "nfs: server a OK")], pci=None) == ()
