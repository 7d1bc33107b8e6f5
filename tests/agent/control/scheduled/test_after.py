"""What a run of a scheduler may wait for: what its end says beyond its exit code is asked before it is handed in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.scheduled.after import find_awaited
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed
from tests.rundirs import ended, make_run, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


@pytest.mark.requirement("SLM-13")
def test_SLM_13_a_success_in_doubt_is_waited_for_no_more_than_a_failure(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    run_id = os.path.basename(run_dir)
    exit_record = {"outcome": "succeeded", "exit_code": 0, "failure_class": None}
    path = f"{wire.attempt_dir(run_dir, 1)}/{wire.EXIT}"
    write(path, wire.to_bytes(exit_record))
    assert find_awaited((run_id,), str(tmp_path)) == (run_id,)
    write(path, wire.to_bytes({**exit_record, "failure_class": "suspicious_finish"}))
    with pytest.raises(PreflightFailed, match=f"{run_id}: it ended with 0 in doubt: suspicious_finish") as refused:
        find_awaited((run_id,), str(tmp_path))
    assert refused.value.hint.startswith(f"holdfast restart {run_id}, then say it again")
