"""What speaks against an exit code 0 by the end of the output alone, and what only looks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.ended.doubts import find_farewell, find_last_exception, find_lost_losses
from holdfast.diagnosis.logs.scan import read_log
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.evidence import LogFacts

pytestmark = pytest.mark.files

TRACE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: bad batch
"""


def facts_of(text: str, tmp_path: Path) -> LogFacts:
    path = tmp_path / "output.log"
    path.write_text(text)
    found = read_log(str(path)).value
    assert found is not None
    return found


EXCEPTIONS = {
    "at the very end": (f"step 1\n{TRACE}", True),
    "with blank lines behind it": (f"{TRACE}\n\n", True),
    "with more of its text, indented": (f"{TRACE}\tMissing key(s): fc.weight\n", True),
    "handled in the middle": (f"step 1\n{TRACE}trying again\nstep 2\ndone\n", False),
    "logged, then on": (f"ERROR:root:one batch is left out\n{TRACE}INFO:root:step 2\n", False),
    "of a test": (f"test_a FAILED\n{TRACE}\n1 failed, 3 passed in 0.1s\n", False),
    "of a thread": (f"Exception in thread Thread-1 (run):\n{TRACE}", False),
    "of a finaliser": (f"done\nException ignored in: <function Queue.__del__ at 0x7f>\n{TRACE}", False),
    "nothing": ("step 1\ndone\n", False),
}


@each("name", list(EXCEPTIONS))
def test_an_output_that_ends_with_a_traceback(name: str, tmp_path: Path) -> None:
    text, told = EXCEPTIONS[name]
    assert bool(find_last_exception(facts_of(text, tmp_path), piped=False)) is told


def test_what_came_through_tee_may_stand_behind_the_traceback(tmp_path: Path) -> None:
    facts = facts_of(f"{TRACE}step 8 loss 0.3\nstep 9 loss 0.2\n", tmp_path)
    assert find_last_exception(facts, piped=True) == "ValueError: bad batch"
    assert not find_last_exception(facts, piped=False)
    many = facts_of(TRACE + "".join(f"step {n}\n" for n in range(9)), tmp_path)
    assert not find_last_exception(many, piped=True)


LOSSES = {
    "all of them": ("".join(f"step {n} loss: nan\n" for n in range(9)), True),
    "the last ones": ("loss=0.4\nloss=0.9\n" + "loss=nan\n" * 3, True),
    "both there are": ("epoch 1 loss nan\nepoch 2 loss inf\n", True),
    "in dictionaries": ("{'loss': nan, 'lr': 0.1}\n" * 4, True),
    "one that was passed over": ("loss 0.3\nloss nan\nloss 0.2\n", False),
    "the last one alone": ("loss 0.3\nloss 0.2\nloss nan\n", False),
    "a validation loss that was never taken": ("loss 0.3 val_loss nan\n" * 5, False),
    "one line": ("loss nan\n", False),
    "another word": ("nan_count 3\nloss 0.2\nno loss of data\n", False),
}


@each("name", list(LOSSES))
def test_losses_that_are_not_finite_at_the_end(name: str, tmp_path: Path) -> None:
    text, told = LOSSES[name]
    assert bool(find_lost_losses(facts_of(text, tmp_path))) is told


FAREWELLS = {
    "received": ("step 4\nreceived SIGTERM, saving\nsaved\n", True),
    "by number": ("Caught signal 15\n", True),
    "the other way round": ("SIGTERM received: leaving\n", True),
    "bash": ("run.sh: line 3:  17 Terminated              python train.py\nTerminated\n", True),
    "a handler that was set": ("handler for SIGTERM installed\ndone\n", False),
    "long ago": ("received SIGTERM, going on\n" + "".join(f"step {n}\n" for n in range(9)), False),
    "a user's signal": ("received SIGUSR1: saved a checkpoint\ndone\n", False),
    "of a helper": ("tensorboard (pid 881) received SIGTERM, exiting\nAll done!\n", False),
    "behind the name of a box": ("gpu-worker-01 python[77]: received SIGTERM, exiting\n", True),
    "of a worker": ("loader worker 3: SIGTERM received\ndone\n", False),
    "another sense": ("the signal was terminated by a window function\n", False),
}


@each("name", list(FAREWELLS))
def test_a_job_that_says_that_it_was_asked_to_leave(name: str, tmp_path: Path) -> None:
    text, told = FAREWELLS[name]
    assert bool(find_farewell(facts_of(text, tmp_path))) is told
