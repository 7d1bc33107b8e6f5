"""``holdfast adopt``: a live run whose supervisor died goes on under a new one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.cli.live import live_run
from tests.rundirs import ended, make_run

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.mark.requirement("PROC-15")
def test_PROC_15_a_run_whose_supervisor_was_killed_is_offered_and_adopted(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "orphan") as run:
        run.kill_supervisor()
        listed = holdfast("ls", "--json").json()["runs"]
        assert [row["condition"] for row in listed] == ["running, unsupervised"]
        shown = holdfast("show", "orphan")
        assert f"holdfast adopt {run.run_id}" in shown.out
        done = holdfast("adopt", "--json", "orphan")
        assert done.code == 0, done
        assert done.json()["condition"] == "running"
        assert run.look().supervised
        again = holdfast("adopt", "orphan")
        assert again.code == 64
        assert "one is enough" in again.err


def test_an_ended_run_is_not_adopted(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    done = holdfast("adopt", run_dir)
    assert done.code == 64
    assert "has ended" in done.err
