"""The words of a gotcha in the log of a failed run: its class, and the id that ``holdfast explain`` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.evidence import Answer
from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.diagnosis.logs.scan import read_log
from holdfast.model.verdict import FailureClass

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Told = Callable[[str], tuple[FailureClass, tuple[str, ...]]]

pytestmark = pytest.mark.contract

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Writes a log between steps of a training; answers class and gotchas of what is judged first."""

    def judge(text: str) -> tuple[FailureClass, tuple[str, ...]]:
        (tmp_path / "output.log").write_text(f"step 1 loss 0.3\nstep 2 loss 0.2\n{text}")
        first = judge_log(read_log(str(tmp_path / "output.log")))[0]
        assert first.answer is Answer.YES, first
        assert isinstance(first.kind, FailureClass)
        return first.kind, first.gotchas

    return judge


@pytest.mark.gotcha("U12")
@pytest.mark.parametrize(
    "text",
    [
        (
            "rsync: connection unexpectedly closed (1024 bytes received so far) [receiver]\n"
            "rsync error: error in rsync protocol data stream (code 12) at io.c(232) [receiver=3.2.7]\n"
        ),
        "Connection reset by 203.0.113.7 port 22\r\n",
        "lost connection\n",
        "Connection closed by 203.0.113.7 port 22\n",
        "scp: Connection closed\n",
        "Read from remote host box.example.org: Connection reset by peer\n",
    ],
)
def test_a_transfer_that_broke_off_is_transient(told: Told, text: str) -> None:
    assert told(text) == (FailureClass.TRANSIENT, ("U12",))


@pytest.mark.gotcha("U13")
@pytest.mark.requirement("FAIL-10")
def test_FAIL_10_a_destination_that_does_not_exist_is_no_failure_of_the_training(told: Told) -> None:
    rsync = 'rsync: [Receiver] mkdir "/data/run7/ckpt" failed: No such file or directory (2)\n'
    assert told(rsync) == (FailureClass.SYNC_FAILED, ("U13",))
    scp = 'scp: dest open "/data/run7/model.pt": No such file or directory\n'
    assert told(scp) == (FailureClass.SYNC_FAILED, ("U13",))
    assert told('scp: dest open "/data/run7/model.pt": Failure\n') == (FailureClass.SYNC_FAILED, ("U13",))


@pytest.mark.gotcha("U28")
@pytest.mark.requirement("FAIL-11")
def test_FAIL_11_a_toolkit_of_another_cuda_is_the_environment(told: Told) -> None:
    text = TRACE + (
        "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile "
        "PyTorch (12.1). Please make sure to use the same CUDA versions.\n"
    )
    assert told(text) == (FailureClass.ENVIRONMENT, ("U28",))


@pytest.mark.gotcha("U28")
def test_a_build_without_code_for_this_card_is_the_environment(told: Told) -> None:
    text = TRACE + "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    assert told(text) == (FailureClass.ENVIRONMENT, ("U28",))


@pytest.mark.gotcha("U35")
def test_a_tracker_that_turned_itself_off_is_named(told: Told) -> None:
    text = "Disabled WandB due to initialization error: No API key configured\n"
    assert told(text) == (FailureClass.ENVIRONMENT, ("U35",))


@pytest.mark.gotcha("U37")
def test_a_plot_that_is_too_large_is_a_bug(told: Told) -> None:
    text = (
        TRACE
        + "ValueError: Image size of 1000x70000 pixels is too large. It must be less than 2^16 in each direction.\n"
    )
    assert told(text) == (FailureClass.BUG, ("U37",))


@pytest.mark.gotcha("U44")
def test_a_worker_that_starts_the_script_again_is_a_bug(told: Told) -> None:
    text = (
        f"{TRACE}RuntimeError: \n        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.\n"
    )
    assert told(text) == (FailureClass.BUG, ("U44",))


@pytest.mark.gotcha("SLURM4")
def test_the_words_of_a_step_that_was_killed_for_memory(told: Told) -> None:
    text = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    assert told(text) == (FailureClass.OUT_OF_MEMORY, ("SLURM4",))


@pytest.mark.gotcha("K8S5")
def test_the_words_of_an_eviction_for_ephemeral_storage(told: Told) -> None:
    text = 'Container train exceeded its local ephemeral storage limit "1Gi".\n'
    assert told(text) == (FailureClass.DISK_FULL, ("K8S5",))
