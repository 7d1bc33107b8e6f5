"""``run --like RUN``: the job of an earlier run as a new one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.model import wire
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
def test_it_says_which_run_it_took_what_it_changed_and_leaves_the_sweep_of_that_run() -> None:
    path = Path(make_run(os.environ["HOLDFAST_RUNS"], state=ended()), wire.RUN)
    record = json.loads(path.read_bytes())
    record["job"]["env"] = {"A": "1", "HOLDFAST_PARAM_LR": "2", "HOLDFAST_JOB": "LR=2", "HOLDFAST_GROUP": "rates"}
    path.write_bytes(wire.to_bytes(record))
    again = say("run", "--like", "digits", "--dry-run", "--json", "--env", "A=2")
    assert again.json()["job"]["env"] == {"A": "2", "HOLDFAST_PARAM_LR": "2"}
    for words in ("like 20261120-100000-digits-0a1b", "changed: env.A 1 -> 2", "HOLDFAST_JOB, HOLDFAST_GROUP"):
        assert words in again.err, again.err
    other = say("run", "--like", "digits", "--dry-run", "--json", "--", "sh", "-c", "echo $HOLDFAST_PARAM_LR")
    assert other.json()["job"]["env"] == {"A": "1"}
    assert "the command names HOLDFAST_PARAM_LR: give it with --env HOLDFAST_PARAM_LR=VALUE" in other.err
    kept = say("run", "--like", "digits", "--dry-run", "--json", "--env", "HOLDFAST_PARAM_LR=3", "--", "true")
    assert kept.json()["job"]["env"] == {"A": "1", "HOLDFAST_PARAM_LR": "3"}


@pytest.mark.usefixtures("isolated_environment")
def test_what_does_not_go_with_it_is_refused() -> None:
    make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    assert say("run", "--like", "digits", "job.yaml").code == 64
    assert say("run", "--like", "digits", "--on", "local,gpu1").code == 66, "there is no place gpu1"
    assert say("run", "--like", "gpu1:digits").code == 66, "there is no place gpu1"
    assert say("run", "--like", "nosuch").code == 66
