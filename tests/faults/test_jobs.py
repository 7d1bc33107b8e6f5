"""The job file of a fault's run, and its environment."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.job.jobfile import read_job
from holdfast.faults.box import MARK, make_environment, make_places
from holdfast.faults.jobs import write_job
from holdfast.faults.table import FAULTS, find_fault
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.faults.spec import Fault

pytestmark = pytest.mark.files


@each("fault", [fault for fault in FAULTS if not fault.records], ids=lambda fault: fault.name)
def test_the_job_file_is_one_that_holdfast_takes(fault: Fault, tmp_path: Path) -> None:
    place = tmp_path / fault.name
    place.mkdir()
    spec = read_job(write_job(fault, str(place)), {})
    assert spec.name == f"fault-{fault.name}"
    assert not any("{" in word for word in spec.command if word != "{print")
    assert spec.timeouts.total_s is not None, "a run whose guard was killed must end by itself"


def test_a_command_and_a_payload_are_put_together(tmp_path: Path) -> None:
    content = json.loads((tmp_path / write_job(find_fault("torchrun-raise"), str(tmp_path))).read_text())
    assert content["command"][:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert content["command"][-3:] == ["-m", "holdfast.faults.payloads.ranks", "raise"]


def test_a_job_file_is_never_written_over(tmp_path: Path) -> None:
    write_job(find_fault("killed"), str(tmp_path))
    with pytest.raises(FileExistsError):
        write_job(find_fault("killed"), str(tmp_path))


def test_everything_that_a_run_writes_is_in_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "4")
    environ = make_environment(str(tmp_path), {"EXTRA": "1"})
    for name in ("HOLDFAST_RUNS", "HOLDFAST_LEASE_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR", "HOLDFAST_RULES"):
        assert environ[name].startswith(f"{tmp_path}/"), name
    assert environ[MARK] == str(tmp_path)
    assert environ["EXTRA"] == "1"
    assert "HOLDFAST_SIMULATED_GPUS" not in environ


def test_the_places_are_closed_to_others(tmp_path: Path) -> None:
    make_places(str(tmp_path))
    assert {name: os.stat(tmp_path / name).st_mode & 0o7777 for name in ("runs", "state", "tmp", "leases")} == {
        "runs": 0o700,
        "state": 0o700,
        "tmp": 0o700,
        "leases": 0o1777,
    }
