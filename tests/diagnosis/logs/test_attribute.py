"""Causes before what follows from them; words alone are at most likely; what is unread is unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.evidence import Answer, LineRole, LogFacts, LogMatch, Reading
from holdfast.diagnosis.logs import exceptions
from holdfast.diagnosis.logs.attribute import FAR_BYTES, NEAR_BYTES, find_root, judge_log
from holdfast.diagnosis.logs.exceptions import is_of_client, is_open_end, judge_text
from holdfast.diagnosis.logs.scan import read_log
from holdfast.diagnosis.logs.words.locales import TRANSLATIONS
from holdfast.model.record import replace
from holdfast.model.verdict import Confidence, FailureClass

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.pure, pytest.mark.requirement("FAIL-01")]

VRAM = LogMatch(
    "vram", LineRole.ROOT, FailureClass.GPU_OUT_OF_MEMORY, "CUDA out of memory", 100, 3, values={"card": "3"}
)
DISK = LogMatch("disk", LineRole.ROOT, FailureClass.DISK_FULL, "No space left on device", 50, remedy="free some")
PEER = LogMatch("collective.timeout", LineRole.ROOT, FailureClass.COMMUNICATION, "Watchdog caught", 10, 0)
AFTER = LogMatch("collective.aftermath", LineRole.CASCADE, FailureClass.COMMUNICATION, "Broken pipe", 5)
WORKER = LogMatch("worker.killed", LineRole.CONFIRMATION, FailureClass.OUT_OF_MEMORY, "killed by signal: Killed", 70)
KILLED = LogMatch("killed", LineRole.CONFIRMATION, None, "Killed", 80)
TRACKER = LogMatch("tracker", LineRole.ROOT, FailureClass.TRANSIENT, "wandb: Network error", 1)
NAN = [LogMatch("nonfinite", LineRole.ROOT, FailureClass.DIVERGED, "loss nan", number) for number in range(3)]


def raised(line: str, offset: int, kind: FailureClass = FailureClass.BUG, rank: int | None = None) -> LogMatch:
    return LogMatch("exception", LineRole.ROOT, kind, line, offset, rank)


def facts(*matches: LogMatch, exception: str = "", whole: bool = True) -> LogFacts:
    ordered = tuple(sorted(matches, key=lambda match: match.offset))
    return LogFacts("output.log", 1000, ordered, exception=exception, whole=whole)


def test_unread_is_unknown() -> None:
    (only,) = judge_log(Reading(unread="output.log cannot be opened: Permission denied"))
    assert (only.kind, only.answer) == (FailureClass.UNKNOWN, Answer.UNKNOWN)
    assert "Permission denied" in only.unknown[0].text


def test_a_silent_log_that_is_not_whole_is_unknown_not_no() -> None:
    assert judge_log(Reading(facts()))[0].answer is Answer.NO
    only = judge_log(Reading(facts(whole=False)))[0]
    assert only.answer is Answer.UNKNOWN
    assert only.unknown


def test_an_output_that_is_no_text_is_unknown_not_no() -> None:
    (only,) = judge_log(Reading(replace(facts(), binary=True)))
    assert only.answer is Answer.UNKNOWN
    assert "no text" in only.unknown[0].text


def test_a_cause_of_a_log_that_is_not_whole_says_so() -> None:
    best = judge_log(Reading(facts(VRAM, whole=False)))[0]
    assert best.answer is Answer.YES
    assert best.unknown


def test_the_earliest_cause_is_the_root() -> None:
    assert find_root(facts(VRAM, DISK)) is DISK
    first, second = judge_log(Reading(facts(VRAM, DISK)))
    assert (first.kind, first.confidence) == (FailureClass.DISK_FULL, Confidence.LIKELY)
    assert (second.kind, second.confidence) == (FailureClass.GPU_OUT_OF_MEMORY, Confidence.POSSIBLE)
    assert first.facts["remedy"] == "free some"
    assert second.facts["rank"] == "3"


def test_the_last_traceback_says_it_before_earlier_words() -> None:
    assert find_root(facts(DISK, VRAM, raised("X: CUDA", 100), exception="X: CUDA")) is VRAM


def test_a_collective_comes_after_every_other_cause() -> None:
    assert find_root(facts(PEER, VRAM)) is VRAM
    assert find_root(facts(PEER, AFTER)) is PEER
    assert find_root(facts(AFTER)) is None


def test_an_exception_before_a_collective_is_the_root_and_one_behind_is_not() -> None:
    early, late = raised("KeyError: 1", 2, rank=1), raised("RuntimeError: x", 400)
    assert find_root(facts(early, PEER, late, exception="RuntimeError: x")) is early
    assert find_root(facts(PEER, late, exception="RuntimeError: x")) is PEER


def test_the_reported_rank_decides_between_exceptions() -> None:
    report = LogMatch("elastic.root", LineRole.CONFIRMATION, None, "Root Cause", 900, 2)
    one, two = raised("KeyError: 1", 2, rank=1), raised("KeyError: 2", 3, rank=2)
    assert find_root(facts(one, two, exception="KeyError: 2")) is one
    assert find_root(facts(one, two, report, exception="KeyError: 2")) is two


def test_what_can_be_survived_is_a_cause_only_in_the_last_traceback() -> None:
    assert find_root(facts(TRACKER)) is None
    assert judge_log(Reading(facts(TRACKER)))[0].confidence is Confidence.POSSIBLE
    bug = raised("KeyError: x", 300)
    assert find_root(facts(TRACKER, bug, exception="KeyError: x")) is bug
    ended = raised("wandb: Network error", 1)
    assert find_root(facts(TRACKER, ended, exception="wandb: Network error")) is TRACKER


def test_one_loss_that_is_not_finite_proves_nothing() -> None:
    assert find_root(facts(*NAN[:2])) is None
    assert find_root(facts(*NAN)) is NAN[0]
    bug = raised("ValueError: found invalid values: tensor([nan])", 300)
    assert find_root(facts(*NAN, bug, exception=bug.line)) is NAN[0]


def test_what_confirms_is_possible_and_killed_has_no_class() -> None:
    (only,) = judge_log(Reading(facts(WORKER)))
    assert (only.kind, only.confidence) == (FailureClass.OUT_OF_MEMORY, Confidence.POSSIBLE)
    (killed,) = judge_log(Reading(facts(KILLED)))
    assert (killed.kind, killed.answer) == (FailureClass.UNKNOWN, Answer.NO)
    assert killed.evidence_for


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("-9", FailureClass.KILLED),
        ("-11", FailureClass.NATIVE_CRASH),
        ("-7", FailureClass.SHARED_MEMORY),
        ("-1", FailureClass.HANG_UP),
        ("17", FailureClass.BUG),
        ("-99999999999", FailureClass.UNKNOWN),
    ],
)
def test_a_launchers_report_counts_when_nothing_names_a_cause(code: str, kind: FailureClass) -> None:
    report = LogMatch("elastic.root", LineRole.CONFIRMATION, None, "Root Cause", 9, 4, values={"exitcode": code})
    best = judge_log(Reading(facts(report)))[0]
    assert best.kind is kind
    # Who waited for a process knows the signal; what a kill or a code was about it does not.
    assert best.confidence is (Confidence.LIKELY if kind is FailureClass.NATIVE_CRASH else Confidence.POSSIBLE)
    assert judge_log(Reading(facts(report, VRAM)))[0].kind is FailureClass.GPU_OUT_OF_MEMORY


SIZE = 2 * FAR_BYTES


def at_the_end(*matches: LogMatch, exception: str = "") -> LogFacts:
    """Facts of a long output; offsets count from its end."""
    moved = [replace(match, offset=SIZE - match.offset) for match in matches]
    return replace(facts(*moved, exception=exception), size_bytes=SIZE)


def test_a_full_card_that_was_survived_is_not_why_the_job_raised_much_later() -> None:
    tried = replace(VRAM, offset=NEAR_BYTES + 1)
    best, second = judge_log(Reading(at_the_end(tried, raised("KeyError: 'lr'", 20), exception="KeyError: 'lr'")))
    assert (best.kind, best.confidence) == (FailureClass.BUG, Confidence.LIKELY)
    assert (second.kind, second.confidence) == (FailureClass.GPU_OUT_OF_MEMORY, Confidence.POSSIBLE)


@pytest.mark.requirement("FAIL-02")
def test_a_blip_after_which_the_job_went_on_is_only_possible() -> None:
    line = "ConnectionRefusedError: [Errno 111] Connection refused"
    blip = [raised(line, NEAR_BYTES + 1, FailureClass.TRANSIENT)]
    (only,) = judge_log(Reading(at_the_end(*blip, exception=line)))
    assert (only.kind, only.confidence) == (FailureClass.TRANSIENT, Confidence.POSSIBLE)


@pytest.mark.parametrize("after", [PEER, AFTER])
def test_a_cause_is_near_as_long_as_what_follows_is_the_other_ranks_end(after: LogMatch) -> None:
    first = replace(VRAM, offset=FAR_BYTES)
    best = judge_log(Reading(at_the_end(first, replace(after, offset=20))))[0]
    assert (best.kind, best.confidence) == (FailureClass.GPU_OUT_OF_MEMORY, Confidence.LIKELY)
    best = judge_log(Reading(at_the_end(replace(first, offset=FAR_BYTES + 1), replace(after, offset=20))))[0]
    assert (best.kind, best.confidence) != (FailureClass.GPU_OUT_OF_MEMORY, Confidence.LIKELY)


def test_what_the_c_library_says_in_another_language_has_its_class() -> None:
    said = [(text, kind) for kind, texts in TRANSLATIONS.items() for each in texts.values() for text in each]
    assert len(said) > 200
    assert [(text, kind) for text, kind in said if judge_text(f"cp: 'a': {text}") is not kind] == []


def test_a_scheduler_that_sent_the_signal_is_the_cause_of_the_exception_that_tells_of_it(tmp_path: Path) -> None:
    sent = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO PREEMPTION ***\n"
    ended = 'Traceback (most recent call last):\n  File "run.py", line 3, in <module>\n    main()\n'
    ended += "torch.distributed.elastic.multiprocessing.api.SignalException: Process 771 got signal: 15\n"
    path = tmp_path / "output.log"
    for text, kind in ((sent + ended, FailureClass.PREEMPTED), (ended, FailureClass.KILLED)):
        path.write_text(text)
        assert judge_log(read_log(str(path)))[0].kind is kind


def test_a_traceback_is_asked_for_clients_by_bounded_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    for name in ("_FRAME", "_CLIENT"):
        pattern = getattr(exceptions, name)

        def match(text: str, found: Callable[[str], object] = pattern.match) -> object:
            given.append(len(text))
            return found(text)

        def search(text: str, found: Callable[[str], object] = pattern.search) -> object:
            given.append(len(text))
            return found(text)

        monkeypatch.setattr(exceptions, name, SimpleNamespace(match=match, search=search))
    frame = f'  File "{"/requests" * 6500}'
    assert not is_of_client("ConnectionResetError: [Errno 104] x", f"{frame}\n" * 3)
    assert is_of_client("ConnectionResetError: [Errno 104] x", f'{frame}\n  File "/v/requests/api.py", line 9, in get')
    assert max(given) <= exceptions.LONGEST_FRAME


def test_a_request_without_its_end_is_no_open_end() -> None:
    assert is_open_end("HTTPError: 404 Client Error. (Request ID: Root=1-67).")
    assert not is_open_end("(Request ID: " * 5000 + "x")
    assert not is_open_end("HTTPError: (Request ID: a) was refused (again)")
