"""What a submission is called, and that two are taken one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue.submit import hand_in
from holdfast.agent.queue.submit.hand_in import one_at_a_time
from holdfast.agent.queue.submit.refuse import hash_files
from holdfast.core.queue.submit_options import choose_group
from holdfast.model.errors import StorageError
from holdfast.model.job import JobSpec
from holdfast.model.queue import NewJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.pure
def test_a_pipe_gives_no_name_to_a_group() -> None:
    assert choose_group(None, "/dev/fd/63") == choose_group(None, "-") == "lines"
    assert choose_group(None, "/home/anna/night.txt") == "night"


@pytest.mark.files
def test_a_submission_that_stands_still_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_in, "SUBMIT_WAIT_S", 0.05)
    with one_at_a_time(str(tmp_path)), pytest.raises(StorageError, match="locked"), one_at_a_time(str(tmp_path)):
        pytest.fail("it was held")
    with one_at_a_time(str(tmp_path)):
        assert (tmp_path / hand_in.LOCK).exists()


@pytest.mark.files
def test_scripts_behind_a_launchers_own_file_are_compared_too(tmp_path: Path) -> None:
    for name in ("acc.yaml", "train.py", "data.bin"):
        (tmp_path / name).touch()
    command = ("accelerate", "launch", "--config_file", "acc.yaml", "train.py", "data.bin", "none.py")
    jobs = (NewJob("a"), NewJob("b", {"command": ["./train.py", "acc.yaml"]}))
    found = hash_files(JobSpec("t", command, str(tmp_path)), jobs)
    assert set(found) == {f"{tmp_path}/acc.yaml", f"{tmp_path}/train.py"}
