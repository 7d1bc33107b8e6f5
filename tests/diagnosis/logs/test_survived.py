"""A cause that the job survived is not why it ended; one that its last words follow from still is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.diagnosis.logs.scan import read_log
from holdfast.diagnosis.logs.survived import MORE_THAN, went_on_after
from holdfast.model.verdict import Confidence, FailureClass

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.evidence import Detection, LogFacts

pytestmark = [pytest.mark.files, pytest.mark.requirement("FAIL-01", "FAIL-02")]

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
FULL = TRACE + "OSError: [Errno 28] No space left on device\n"
CARD = TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n"
BUG = TRACE + "KeyError: 'lr'\n"
STEPS = "".join(f"step {number} loss 0.1\n" for number in range(MORE_THAN + 1))
FEW = "".join(f"summary {number}\n" for number in range(MORE_THAN))
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"


def facts(tmp_path: Path, text: str) -> LogFacts:
    path = tmp_path / "output.log"
    path.write_text(text)
    read = read_log(str(path)).value
    assert read is not None
    return read


def judge(tmp_path: Path, text: str) -> tuple[Detection, ...]:
    path = tmp_path / "output.log"
    path.write_text(text)
    return judge_log(read_log(str(path)))


@pytest.mark.parametrize("cause", [FULL, CARD])
def test_the_jobs_own_last_words_count_when_it_went_on_after_a_cause(tmp_path: Path, cause: str) -> None:
    best, *others = judge(tmp_path, cause + STEPS + BUG)
    assert (best.kind, best.confidence) == (FailureClass.BUG, Confidence.LIKELY)
    assert {item.confidence for item in others} == {Confidence.POSSIBLE}


@pytest.mark.parametrize(
    "after",
    [
        BUG,
        FEW + BUG,
        CHAIN + BUG,
        STEPS,
        STEPS + "Error in atexit._run_exitfuncs:\n" + BUG,
        STEPS + "Exception in thread Thread-3:\n" + BUG,
        STEPS + "Process SpawnProcess-1:\n" + BUG,
        STEPS + BUG + "cleaning up\n",
        "".join(f"[rank1]: {line}\n" for line in (STEPS + BUG).splitlines()),
    ],
)
def test_a_cause_stays_one_where_what_follows_may_come_from_it(tmp_path: Path, after: str) -> None:
    assert judge(tmp_path, FULL + after)[0].kind is FailureClass.DISK_FULL


def test_an_earlier_cause_does_not_hide_a_later_one_of_the_same_end(tmp_path: Path) -> None:
    assert judge(tmp_path, CARD + STEPS + FULL + CHAIN + BUG)[0].kind is not FailureClass.BUG


def test_memory_that_was_answered_by_a_smaller_batch_is_no_cause_and_what_a_disk_could_not_take_is(
    tmp_path: Path,
) -> None:
    steps = "".join(f"step {number} loss 2.1\n" for number in range(20))
    assert judge(tmp_path, "RuntimeError: CUDA out of memory, with 128\n" + steps + BUG)[0].kind is FailureClass.BUG
    full = "RuntimeError: CUDA out of memory, with 128\n"
    assert judge(tmp_path, full + BUG)[0].kind is FailureClass.GPU_OUT_OF_MEMORY
    assert judge(tmp_path, "cp: error writing 'x': No space left on device\n" + steps + BUG)[0].kind is (
        FailureClass.DISK_FULL
    )


def test_a_disk_that_was_tried_again_and_again_is_the_cause_of_an_error_that_names_none(tmp_path: Path) -> None:
    tried = "".join(f"WARNING: retry {n}/3: [Errno 121] Remote I/O error\n" for n in range(3))
    wrapper = BUG.replace(BUG.strip().splitlines()[-1], "RuntimeError: Caught OSError in DataLoader worker process 2.")
    assert judge(tmp_path, tried + wrapper)[0].kind is FailureClass.STORAGE_FAULT
    assert judge(tmp_path, tried + BUG)[0].kind is FailureClass.BUG


def test_going_on_is_told_from_what_a_library_writes_at_an_end(tmp_path: Path) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
    assert went_on_after(facts(tmp_path, CARD + STEPS), line)
    assert not went_on_after(facts(tmp_path, CARD + FEW), line)
    assert not went_on_after(facts(tmp_path, STEPS + CARD), line)
    assert went_on_after(facts(tmp_path, CARD + "".join(f"step {number}\n" for number in range(500))), line)


def test_of_several_ranks_going_on_is_never_said(tmp_path: Path) -> None:
    labelled = "".join(f"[rank1]: {line}\n" for line in CARD.splitlines())
    assert not went_on_after(facts(tmp_path, labelled + STEPS), "CUDA out of memory")
