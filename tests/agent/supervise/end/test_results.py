"""Results are copied to storage that lasts after a success; a copy that fails is a failure of its own."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.checks import disk
from holdfast.agent.control.results.copy import copy_run, read_record
from holdfast.agent.patrol.reconcile import reconcile
from holdfast.agent.view.observe import observe_run
from holdfast.diagnosis.ended.judgement import read_judgement
from holdfast.host.files.copies.proven import prove_all
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.finding import Level
from holdfast.model.job import DiskNeeds, Results
from holdfast.model.results import ROSTER
from holdfast.model.run import CopyState, Outcome
from holdfast.model.verdict import FailureClass
from tests.agent.killing import SCENARIOS, Killer, build_library, find_faults, settle
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.driving import Drive, Driven

pytestmark = pytest.mark.process

SCRIPT = (
    'cd "$HOLDFAST_ARTIFACT_DIR"; for name in answer latest.tmp scrap.tmp; do echo 42 > $name; done; '
    'echo {} > "${HOLDFAST_HEARTBEAT%/*}/metrics.jsonl"'
)
WRITE = ("sh", "-c", SCRIPT)
LEFT = ["answer", "latest.tmp"]
"""What pruning leaves: what is named so may be all that there is to go on from."""
NO_DISK = DiskNeeds(min_free_bytes=0, min_free_inodes=0, scratch=("artifacts/*.tmp",))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[str]:
    """A disk of two pages, of which one is taken."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    path = tmp_path / "small"
    path.mkdir()
    libc.mount("tmpfs", str(path), kind="tmpfs", options="size=8k,nr_inodes=20")
    (path / "taken").write_bytes(b"x" * 4096)
    yield str(path)
    with contextlib.suppress(OSError):
        libc.umount(str(path), flags=libc.MNT_DETACH)


def see(run: Driven) -> tuple[str, int | None]:
    view = observe_run(run.run_dir)
    return view.condition, view.exit_code


@pytest.mark.requirement("POST-07", "POST-08", "OBS-14")
def test_POST_07_results_are_proven_where_they_last_before_the_run_has_succeeded(drive: Drive, tmp_path: Path) -> None:
    results = Results(to=str(tmp_path / "lasting"), prune_scratch=True)
    run = drive(*WRITE, artifacts=("artifacts/answer",), results=results, disk=NO_DISK)
    ended = run.ended()
    assert (ended.outcome, ended.exit_code) == (Outcome.SUCCEEDED, 0)
    assert "results copied to" in ended.evidence
    record = read_record(run.run_dir, 1)
    assert record is not None
    assert (record.state, record.files_done, record.pruned.partition(",")[0]) == (CopyState.COPIED, 4, "1 file")
    assert record.to == f"{tmp_path}/lasting/{run.run_id}"
    assert os.path.exists(f"{record.to}/{ROSTER}")
    assert prove_all(record.files, record.to) == []
    assert "attempts/1/metrics.jsonl" in [file.path for file in record.files]
    assert sorted(os.listdir(f"{run.run_dir}/artifacts")) == LEFT
    again = copy_run(run.run_dir, None, lambda _: None)
    assert (again.exit_code, again.made_good) == (0, False)
    with open(f"{run.run_dir}/artifacts/answer", "a", encoding="utf-8") as file:
        file.write("43")
    changed = copy_run(run.run_dir, None, lambda _: None)
    assert (changed.exit_code, changed.problem.partition(",")[0]) == (
        73,
        "artifacts/answer is not what it was at the end",
    )
    kept = read_record(run.run_dir, 1)
    assert kept is not None
    assert (kept.state, kept.files) == (CopyState.COPIED, record.files)


@pytest.mark.requirement("POST-07", "POST-08", "FAIL-10", "VRFY-08", "B-24")
@pytest.mark.gotcha("U33")
def test_POST_07_a_full_disk_fails_the_copy_and_not_the_training(drive: Drive, tmp_path: Path, small: str) -> None:
    results = Results(to=f"{small}/lasting", tries=2, wait_s=0.01, prune_scratch=True)
    run = drive(*WRITE, artifacts=("artifacts/answer",), results=results, disk=NO_DISK)
    ended = run.ended()
    assert (ended.outcome, ended.exit_code) == (Outcome.FAILED, 73)
    assert "training succeeded" in ended.evidence
    assert "No space left on device" in ended.evidence or "are free" in ended.evidence
    judged = read_judgement(run.run_dir, 1)
    assert judged is not None
    assert judged.verdict is not None
    assert judged.verdict.kind is FailureClass.SYNC_FAILED
    assert "holdfast results copy" in judged.verdict.action
    assert sorted(os.listdir(f"{run.run_dir}/artifacts")) == [*LEFT, "scrap.tmp"], "the source is kept"
    assert not os.path.exists(f"{small}/lasting/{run.run_id}/{ROSTER}")
    before = (run.read(wire.EXIT), len(os.listdir(f"{run.run_dir}/attempts")))

    done = copy_run(run.run_dir, f"{tmp_path}/other", lambda _: None)
    assert (done.exit_code, done.made_good) == (0, True)
    assert see(run) == ("succeeded", 0)
    assert "copied later" in observe_run(run.run_dir).note
    assert (run.read(wire.EXIT), len(os.listdir(f"{run.run_dir}/attempts"))) == before
    assert sorted(os.listdir(f"{run.run_dir}/artifacts")) == LEFT
    assert copy_run(run.run_dir, f"{tmp_path}/other", lambda _: None).exit_code == 0


@pytest.mark.requirement("POST-07")
def test_POST_07_a_mount_that_is_lost_while_the_job_runs_is_not_made_up_on_this_disk(
    drive: Drive, tmp_path: Path, small: str
) -> None:
    results = Results(to=f"{small}/lasting", tries=1)
    command = f'echo 42 > "$HOLDFAST_ARTIFACT_DIR/answer"; until test -e {tmp_path}/go; do sleep 0.02; done'
    run = drive("sh", "-c", command, results=results, disk=NO_DISK)
    run.running()
    libc.umount(small, flags=libc.MNT_DETACH)
    (tmp_path / "go").touch()
    ended = run.ended()
    assert (ended.outcome, ended.exit_code) == (Outcome.FAILED, 73)
    assert f"mount that is gone (tmpfs on {small})" in ended.evidence
    assert os.listdir(small) == [], "nothing is made on the disk below"
    refused = copy_run(run.run_dir, None, lambda _: None)
    assert (refused.exit_code, "is gone" in refused.problem, os.listdir(small)) == (73, True, [])
    (finding,) = disk._check_mount(run.run_dir, f"{small}/lasting")
    assert (finding.level, "is gone" in finding.evidence) == (Level.FAIL, True), "nor does another attempt begin"
    libc.mount("tmpfs", small, kind="tmpfs", options="size=64k")
    assert copy_run(run.run_dir, None, lambda _: None).exit_code == 0
    assert see(run) == ("succeeded", 0)


@pytest.mark.slow
@pytest.mark.requirement("POST-07")
def test_a_copy_that_waits_is_seen_and_can_be_stopped(drive: Drive, tmp_path: Path) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    results = Results(to=f"{place}/lasting", tries=3, wait_s=600)
    run = drive("sh", "-c", f'echo 42 > "$HOLDFAST_ARTIFACT_DIR/answer"; rmdir {place}', results=results)
    wait_until(lambda: run.events("results_copying"), what="the copy has begun")
    assert run.kind() == "finalizing"
    assert "its results are copied to" in observe_run(run.run_dir).note
    with pytest.raises(UsageError, match="has not ended"):
        copy_run(run.run_dir, None, lambda _: None)
    run.ask(by="anna")
    ended = run.ended()
    assert (ended.outcome, ended.exit_code) == (Outcome.FAILED, 73)
    assert "asked to stop by anna" in ended.evidence


@pytest.mark.slow
@pytest.mark.requirement("POST-07")
def test_a_supervisor_that_is_killed_while_it_copies_is_followed_by_one_that_does(drive: Drive, tmp_path: Path) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    results = Results(to=f"{place}/lasting", tries=3, wait_s=600)
    run = drive("sh", "-c", f'echo 42 > "$HOLDFAST_ARTIFACT_DIR/answer"; rmdir {place}', results=results)
    wait_until(lambda: run.events("results_copying"), what="the copy has begun")
    run.kill_supervisor()
    place.mkdir()
    reconcile([os.path.dirname(run.run_dir)])
    ended = run.ended()
    assert (ended.outcome, ended.exit_code) == (Outcome.SUCCEEDED, 0)
    assert os.path.exists(f"{place}/lasting/{run.run_id}/{ROSTER}")


def test_what_has_no_proven_results_is_not_copied(drive: Drive, tmp_path: Path) -> None:
    run = drive("sh", "-c", 'echo 1 > "$HOLDFAST_ARTIFACT_DIR/half"; exit 3', results=Results(to=str(tmp_path / "to")))
    assert run.ended().exit_code == 3
    with pytest.raises(UsageError, match="no proven results"):
        copy_run(run.run_dir, None, lambda _: None)
    assert not os.path.exists(tmp_path / "to")


@pytest.mark.requirement("POST-07", "PROC-14")
@pytest.mark.parametrize(
    ("who", "at"), [("supervisor", 120), ("supervisor", 135), ("copier", 2), ("copier", 12), ("copier", 20)]
)
def test_a_kill_while_it_copies_leaves_nothing_half_that_is_called_done(
    drive: Drive, tmp_path: Path, who: str, at: int
) -> None:
    killer = Killer(drive, build_library(tmp_path))
    run = killer.start(who, SCENARIOS["copies"], at)
    assert run is not None
    settle(run)
    assert find_faults(run, SCENARIOS["copies"]) == []
