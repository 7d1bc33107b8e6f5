"""``run --like RUN``: the job of an earlier run as a new one."""

from __future__ import annotations

import os

import pytest

from tests.cli.queues import say
from tests.rundirs import ended, make_run

pytestmark = pytest.mark.cli


@pytest.mark.usefixtures("isolated_environment")
def test_the_job_of_another_run_with_what_options_change() -> None:
    make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    done = say("run", "--like", "digits", "--timeout", "5m", "--dry-run")
    assert (done.code, "digits" in done.out, "300" in done.out) == (0, True, True), done.out
    other = say("run", "--like", "digits", "--name", "again", "--dry-run", "--", "sh", "-c", "exit 0")
    assert (other.code, "again" in other.out, "sh -c" in other.out) == (0, True, True), other.err


@pytest.mark.usefixtures("isolated_environment")
def test_what_does_not_go_with_it_is_refused() -> None:
    make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    assert say("run", "--like", "digits", "job.yaml").code == 64
    assert say("run", "--like", "digits", "--on", "local,gpu1").code == 66, "there is no place gpu1"
    assert say("run", "--like", "gpu1:digits").code == 66, "there is no place gpu1"
    assert say("run", "--like", "nosuch").code == 66
