"""The command that queues again what is missing."""

from __future__ import annotations

import pytest

from holdfast.agent.queue.wait.names import rerun_command
from holdfast.model.queue import JobState, QueuedJob

pytestmark = pytest.mark.pure


def test_many_failed_jobs_of_one_group_are_tried_again_by_its_name() -> None:
    failed = [QueuedJob(n, f"k{n}", "g", f"c{n}", JobState.FAILED) for n in range(30)]
    assert rerun_command(failed) == "holdfast queue retry g/ --failed"
    cancelled = [*failed, QueuedJob(99, "k99", "g", "x", JobState.CANCELLED)]
    assert rerun_command(cancelled) == "holdfast queue retry g/"
    assert rerun_command(failed[:2]) == "holdfast queue retry g/c0 g/c1"
    assert rerun_command([]) == ""
