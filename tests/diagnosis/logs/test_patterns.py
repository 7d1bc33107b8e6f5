"""The table of rules about a log's words: each keeps its own examples, and nothing harmless is a crash."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.bounds import WIDEST
from holdfast.diagnosis.logs.lines import clean_line
from holdfast.diagnosis.logs.pattern import LONGEST_LINE, Pattern, check_pattern, match_line
from holdfast.diagnosis.logs.patterns import PATTERNS
from holdfast.diagnosis.logs.scan import classify_text
from holdfast.model.verdict import FailureClass
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("DIAG-06")]

HARMLESS = [
    "mean squared Error 0.1",
    "val: mean squared error 0.1, 0 errors",
    "Error rate: 0.25",
    "0 errors, 0 warnings",
    "errors=0 failed=0",
    "top-1 error: 0.31 (killed 3 stale workers before)",
    "INFO: no errors, no Killed processes, no Segmentation fault so far",
    "loss=0.31 lr=1e-4 nan_count=0 inf_count=0",
    "nanmean of grad: 0.1",
    "loss information follows",
    "using NCCL version 2.21.5, watchdog timeout is 600 s",
    "NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    "Memory Error Correction (ECC) is enabled",
    "set ulimit -n to avoid running into too many open files",
    "Consider passing CUDA_LAUNCH_BLOCKING=1",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "checkpoint saved, 12 GB space left on device /data",
    "ValueErrorHandler registered",
    "KeyErrors are counted: 0",
    "exception handling is on",
    "Traceback collection is enabled",
    "Downloading: 100%|##########| 5/5 [00:01<00:00, 4.2it/s]",
    "terminated early: patience reached",
    "wandb: W&B API key is configured. Use `wandb login --relogin` to force relogin",
    "Setting up Xid monitor",
]


@each("pattern", PATTERNS, ids=lambda pattern: pattern.id)
def test_each_rule_knows_its_examples_and_no_near_miss(pattern: Pattern) -> None:
    assert pattern.examples
    assert pattern.near_misses
    assert check_pattern(pattern) == ""


@each("pattern", PATTERNS, ids=lambda pattern: pattern.id)
def test_a_rule_finds_its_examples_in_a_whole_log(pattern: Pattern) -> None:
    for example in pattern.examples:
        text = f"step 1 loss 0.3\n{example}\nstep 2 loss 0.2\n"
        assert pattern.id in {match.pattern for match in classify_text(text)}, example


@each("pattern", PATTERNS, ids=lambda pattern: pattern.id)
def test_a_rule_finds_no_near_miss_in_a_whole_log(pattern: Pattern) -> None:
    for line in pattern.near_misses:
        found = classify_text(f"step 1 loss 0.3\n{line}\nstep 2 loss 0.2\n")
        assert pattern.id not in {match.pattern for match in found}, line


def test_ids_are_unique_and_every_rule_names_its_source() -> None:
    assert len({pattern.id for pattern in PATTERNS}) == len(PATTERNS)
    assert all(pattern.source for pattern in PATTERNS)
    assert all(pattern.widest == LONGEST_LINE > WIDEST for pattern in PATTERNS)


def test_a_cause_has_a_class_and_a_trigger_has_letters() -> None:
    for pattern in PATTERNS:
        assert pattern.kind is not None or pattern.role is not LineRole.ROOT, pattern.id
        assert all(sum(letter.isalpha() for letter in trigger) >= 3 for trigger in pattern.triggers), pattern.id


@pytest.mark.requirement("MON-13")
@pytest.mark.requirement("B-63")
@each("line", HARMLESS)
def test_MON_13_a_harmless_line_matches_nothing(line: str) -> None:
    assert classify_text(line + "\n") == ()


@each("pattern", [one for one in PATTERNS if one.lines == 1], ids=lambda pattern: pattern.id)
def test_colours_and_labels_do_not_hide_a_line(pattern: Pattern) -> None:
    for example in pattern.examples:
        rank, text = clean_line(f"[rank7]: \x1b[31m{clean_line(example)[1]}\x1b[0m")
        assert rank == 7
        assert match_line(pattern, text) is not None, example


def test_values_are_named() -> None:
    by_id = {pattern.id: pattern for pattern in PATTERNS}
    found = match_line(by_id["vram"], by_id["vram"].examples[0])
    assert found is not None
    assert found.values == {
        "wanted": "2.00 GiB",
        "card": "0",
        "total": "79.15 GiB",
        "free": "1.50 GiB",
        "holders": ". Process 4242 has 60.00 GiB memory in use",
    }
    rank, text = clean_line(by_id["collective.timeout"].examples[0])
    found = match_line(by_id["collective.timeout"], text, rank=rank)
    assert found is not None
    assert (found.rank, found.values["op"], found.values["ran_ms"]) == (1, "ALLREDUCE", "600083")
    report = match_line(by_id["elastic.root"], by_id["elastic.root"].examples[0])
    assert report is not None
    assert (report.rank, report.values["exitcode"], report.values["signal"]) == (4, "-9", "9")


def test_a_rule_that_breaks_its_word_is_told() -> None:
    good = Pattern("x", LineRole.ROOT, FailureClass.BUG, ("boom",), "^boom$", ("boom",), ("boomerang",))
    assert check_pattern(good) == ""
    no_trigger = Pattern("x", LineRole.ROOT, FailureClass.BUG, ("bang",), "^boom$", ("boom",), ())
    assert "stands in the example" in check_pattern(no_trigger)
    no_match = Pattern("x", LineRole.ROOT, FailureClass.BUG, ("boom",), "^boom$", ("a boom",), ())
    assert "does not match the example" in check_pattern(no_match)
    too_wide = Pattern("x", LineRole.ROOT, FailureClass.BUG, ("boom",), "boom", ("boom",), ("boomerang",))
    assert "matches the near miss" in check_pattern(too_wide)
