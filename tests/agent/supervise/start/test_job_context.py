"""What the job's training library is promised: where it is, until when, and how often runs end here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.control.create import next_attempt
from holdfast.agent.supervise.start.job_context import find_deadline, read_running_time
from holdfast.core.run.events import RunPlan
from holdfast.host.formats import bundle
from holdfast.model import wire
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import Checkpoints, GpuOptions, Timeouts
from holdfast.model.run import Outcome
from tests.agent.driving import Drive, job
from tests.rundirs import ended, make_run

pytestmark = pytest.mark.process

STARTED_EPOCH_S = 1_795_168_800.0
"""`started_at` of `tests.rundirs.ended`, 2026-11-20T10:00:00Z."""
IMPORT = "import holdfast.training; print('from', holdfast.training.__file__)"
START = (
    "import os, sys; sys.path.insert(0, sys.argv[1]); from holdfast.agent import launch; "
    "launch.start_supervisor(sys.argv[2], 1, environ=os.environ)"
)
"""Start a supervisor from a package that is installed among others."""


def environment_of(output: bytes) -> dict[str, str]:
    found = json.loads(output)["environ"]
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_any_interpreter_of_the_job_imports_the_library(drive: Drive, tmp_path: Path) -> None:
    """A virtual environment without holdfast, and no site-packages at all."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    for command in ([str(tmp_path / "venv/bin/python")], [sys.executable, "-S"]):
        run = drive(*command, "-c", IMPORT)
        assert run.ended().outcome is Outcome.SUCCEEDED, run.output()
        assert f"from {bundle.PACKAGE}/training/__init__.py" in run.output().decode()


def test_the_users_own_paths_come_first(drive: Drive, tmp_path: Path) -> None:
    own = tmp_path / "own" / "holdfast"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("")
    (own / "training.py").write_text("")
    run = drive(sys.executable, "-S", "-c", IMPORT, environ={"PYTHONPATH": str(own.parent)})
    assert run.ended().outcome is Outcome.SUCCEEDED, run.output()
    assert f"from {own}/training.py" in run.output().decode()


def test_an_isolated_interpreter_sees_nothing_of_it(drive: Drive) -> None:
    run = drive(sys.executable, "-I", "-S", "-c", "import sys; sys.exit(any('holdfast' in p for p in sys.path))")
    assert run.ended().exit_code == 0


@pytest.mark.slow
def test_a_copy_is_imported_under_read_only_data_too(
    drive: Drive, tmp_path: Path, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache itself is declared as data here, so the job cannot write to it; it only reads."""
    place = tmp_path / "site-packages"
    shutil.copytree(bundle.PACKAGE, place / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "other").mkdir()
    cache = isolated_environment["XDG_CACHE_HOME"]
    run = drive.create(sys.executable, "-S", "-c", IMPORT, data=(cache,))
    subprocess.run([sys.executable, "-S", "-c", START, str(place), run.run_dir], env=run.environ, check=True)
    assert run.ended().outcome is Outcome.SUCCEEDED, run.output()
    (made,) = os.listdir(f"{cache}/holdfast")
    assert f"from {cache}/holdfast/{made}/holdfast/training/__init__.py" in run.output().decode()


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_told_and_the_job_runs(drive: Drive, tmp_path: Path) -> None:
    place = tmp_path / "site-packages"
    shutil.copytree(bundle.PACKAGE, place / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "other").mkdir()
    (tmp_path / "file").touch()
    run = drive.create(*job("show"))
    environ = {**run.environ, "XDG_CACHE_HOME": f"{tmp_path}/file/cache"}
    subprocess.run([sys.executable, "-S", "-c", START, str(place), run.run_dir], env=environ, check=True)
    assert run.ended().outcome is Outcome.SUCCEEDED
    assert "PYTHONPATH" not in environment_of(run.output())
    (event,) = [item for item in run.events("environment") if item["data"]["finding"]["id"] == "library"]
    assert "cannot be offered" in event["data"]["finding"]["evidence"]


@pytest.mark.requirement("LIB-10")
def test_LIB_10_cards_grace_and_checkpoints_are_told(drive: Drive, tmp_path: Path) -> None:
    run = drive(
        *job("show"),
        environ={"HOLDFAST_SIMULATED_GPUS": "2x24GiB", "HOLDFAST_MIRROR_DIR": "/an/outer/runs"},
        gpus=GpuRequest(count=2),
        gpu=GpuOptions(idle_window_s=0.0, memory_share=0.9),
        checkpoints=Checkpoints("auto", 3, str(tmp_path / "mirror"), 3600.0),
        grace_s=45.0,
    )
    assert run.ended().outcome is Outcome.SUCCEEDED
    told = environment_of(run.output())
    assert (told["HOLDFAST_GPU_COUNT"], told["HOLDFAST_GPU_MEMORY_SHARE"], told["HOLDFAST_GRACE"]) == ("2", "0.9", "45")
    assert (told["HOLDFAST_CHECKPOINT_EVERY"], told["HOLDFAST_CHECKPOINT_KEEP"]) == ("auto", "3")
    assert told["HOLDFAST_MIRROR_DIR"] == f"{tmp_path}/mirror/{run.run_id}"
    assert told["HOLDFAST_MEAN_TIME_BETWEEN_INTERRUPTIONS"] == "3600"


def test_a_plain_job_is_told_its_grace_and_that_it_has_no_cards(drive: Drive) -> None:
    run = drive(*job("show"), environ={"HOLDFAST_CHECKPOINT_EVERY": "1s", "HOLDFAST_GRACE": "1"})
    run.ended()
    told = environment_of(run.output())
    assert (told["HOLDFAST_GRACE"], told["HOLDFAST_GPU_COUNT"]) == ("30", "0")
    assert "HOLDFAST_CHECKPOINT_EVERY" not in told


@pytest.mark.requirement("LIB-03")
def test_LIB_03_the_whole_runs_deadline_counts_from_its_creation(drive: Drive) -> None:
    run = drive.create(*job("show"), timeouts=Timeouts(total_s=3600.0))
    created = os.stat(run.run_dir).st_mtime
    run.start()
    run.ended()
    assert abs(int(environment_of(run.output())["HOLDFAST_DEADLINE"]) - created - 3600.0) <= 5


@pytest.mark.parametrize(
    ("plan", "cards", "expected"),
    [
        (RunPlan(), True, None),
        (RunPlan(run_s=100.0), False, 1100.0),
        (RunPlan(run_s=100.0, total_s=150.0, created_epoch_s=900.0), False, 1050.0),
        (RunPlan(run_s=100.0, max_hold_s=60.0), True, 1060.0),
        (RunPlan(run_s=100.0, max_hold_s=60.0), False, 1100.0),
    ],
)
def test_the_first_limit_that_will_be_reached_is_the_deadline(
    plan: RunPlan, cards: bool, expected: float | None
) -> None:
    assert find_deadline(plan, 1000.0, holds_cards=cards) == expected


def write_exit(run_dir: str, **facts: object) -> None:
    record = {**wire.encode(ended()), **facts}
    Path(run_dir, "attempts/1/exit.json").write_bytes(wire.to_bytes(record))


@pytest.mark.requirement("SPOT-03")
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"outcome": "preempted", "duration_s": 12.5}, 12.5),
        ({"outcome": "stopped", "duration_s": 12.5}, None),
        ({"outcome": "failed", "duration_s": 12.5}, None),
        ({"outcome": "preempted", "duration_s": None}, None),
        ({"outcome": "preempted", "duration_s": "long"}, None),
        ({"outcome": "preempted", "started_at": None, "duration_s": 3.0}, None),
        ({"outcome": "lost", "duration_s": 1e6}, 90.0),
        ({"outcome": "lost", "started_at": "yesterday"}, None),
        ({"outcome": ["lost"]}, None),
    ],
)
def test_SPOT_03_only_interruptions_count_and_a_lost_job_lived_until_its_last_sign(
    tmp_path: Path, facts: dict[str, object], expected: float | None
) -> None:
    run_dir = make_run(tmp_path, state=ended())
    write_exit(run_dir, **facts)
    log = Path(run_dir, "attempts/1/output.log")
    log.write_text("step 1\n")
    os.utime(log, (STARTED_EPOCH_S + 90, STARTED_EPOCH_S + 90))
    assert read_running_time(run_dir, 1) == expected


def test_an_attempt_without_a_readable_end_was_not_interrupted(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    assert read_running_time(run_dir, 7) is None
    Path(run_dir, "attempts/1/exit.json").write_bytes(b"{")
    assert read_running_time(run_dir, 1) is None


@pytest.mark.slow
def test_a_restart_of_a_run_that_was_not_interrupted_knows_no_mean(drive: Drive) -> None:
    run = drive(*job("show"))
    run.ended()
    run.attempt = next_attempt(run.run_dir, "restart")
    run.start("restart")
    run.ended()
    assert "HOLDFAST_MEAN_TIME_BETWEEN_INTERRUPTIONS" not in environment_of(run.output())
