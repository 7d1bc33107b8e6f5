"""``holdfast agent``: the supervisor in the foreground."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.create import create_run
from holdfast.model.job import JobSpec

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.fixture
def run_dir(isolated_environment: dict[str, str], tmp_path: Path) -> Path:
    spec = JobSpec("five", ("sh", "-c", "echo $HOLDFAST_REASON; exit 5"), str(tmp_path))
    created, _ = create_run(
        spec, isolated_environment["HOLDFAST_RUNS"], argv=("holdfast",), cwd=str(tmp_path), environ=os.environ
    )
    return Path(created)


@pytest.mark.slow
def test_agent_supervises_to_the_end(holdfast: Command, run_dir: Path) -> None:
    value = holdfast("agent", str(run_dir), "--reason", "start", "--json").json()
    assert value == {"schema": 1, "run_dir": str(run_dir), "attempt": 1, "exit_code": 0}
    assert json.loads((run_dir / "attempts/1/exit.json").read_text())["exit_code"] == 5
    assert (run_dir / "attempts/1/output.log").read_text() == "start\n"
    # Once more does nothing: it has ended.
    assert holdfast("agent", str(run_dir)).code == 0


def test_agent_needs_an_attempt(holdfast: Command, run_dir: Path, tmp_path: Path) -> None:
    for args in ([str(run_dir), "--attempt", "2"], [str(tmp_path / "absent")]):
        ended = holdfast("agent", *args)
        assert ended.code == 66
        assert "has no attempt" in ended.err
    assert holdfast("agent", str(run_dir), "--attempt", "0").code == 64
