"""Removing runs: only ended ones, only what holdfast made, never through a link."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent import acting, removal
from holdfast.host.processes import identify_self
from holdfast.model.errors import HoldfastError, ResourceBusy, StorageError, UsageError
from tests.rundirs import ended, make_run, own_run_id, running, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

RUN_ID = "20261120-100000-digits-0a1b"


def test_an_ended_run_is_measured_and_removed_whole(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    os.makedirs(f"{run_dir}/checkpoints/deep/er")
    write(f"{run_dir}/checkpoints/deep/er/model.bin", b"x" * 100_000)
    candidate = removal.examine(run_dir, root=str(tmp_path))
    assert candidate.size_bytes >= 100_000
    assert candidate.files == 4
    removal.remove(candidate, root=str(tmp_path))
    assert os.listdir(tmp_path) == ["isolated"]


@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_links_inside_are_removed_not_followed(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "runs", state=ended())
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "weights.bin").write_text("years of work")
    os.symlink(outside, f"{run_dir}/artifacts/link")
    os.symlink(outside / "weights.bin", f"{run_dir}/checkpoints/latest")
    removal.remove(removal.examine(run_dir, root=str(tmp_path / "runs")), root=str(tmp_path / "runs"))
    assert (outside / "weights.bin").read_text() == "years of work"
    assert not os.path.exists(run_dir)


@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_a_link_in_the_place_of_a_run_is_refused(tmp_path: Path) -> None:
    real = make_run(tmp_path / "elsewhere", state=ended())
    (tmp_path / "runs").mkdir()
    os.symlink(real, tmp_path / "runs" / RUN_ID)
    with pytest.raises(StorageError, match="symbolic link"):
        removal.examine(f"{tmp_path}/runs/{RUN_ID}", root=f"{tmp_path}/runs")
    assert os.path.exists(f"{real}/run.json")


@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_a_path_outside_of_the_root_is_refused(tmp_path: Path) -> None:
    real = make_run(tmp_path / "elsewhere", state=ended())
    (tmp_path / "runs").mkdir()
    for path in (real, f"{tmp_path}/runs/../elsewhere/{RUN_ID}"):
        with pytest.raises(StorageError, match="refused"):
            removal.examine(path, root=f"{tmp_path}/runs")
    os.symlink(tmp_path / "elsewhere", tmp_path / "runs" / "shortcut")
    with pytest.raises(StorageError, match="refused"):
        removal.examine(f"{tmp_path}/runs/shortcut/{RUN_ID}", root=f"{tmp_path}/runs")


def test_a_live_run_is_refused(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    with pytest.raises(UsageError, match="has not ended"):
        removal.examine(run_dir, root=str(tmp_path))


def test_an_ended_run_with_a_living_process_is_refused(tmp_path: Path) -> None:
    run_id = own_run_id()
    run_dir = make_run(tmp_path, run_id, ended())
    environment = {**os.environ, "HOLDFAST_RUN_ID": run_id}
    code = "import sys; print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=environment)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(UsageError, match=str(process.pid)):
            removal.examine(run_dir, root=str(tmp_path))
    finally:
        process.communicate(b"")


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / RUN_ID).mkdir()
    (tmp_path / RUN_ID / "thesis.tex").write_text("...")
    with pytest.raises(HoldfastError, match="not known to be a run"):
        removal.examine(f"{tmp_path}/{RUN_ID}", root=str(tmp_path))
    assert (tmp_path / RUN_ID / "thesis.tex").exists()


def test_removing_and_restarting_at_once_exclude_each_other(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    candidate = removal.examine(run_dir, root=str(tmp_path))
    with acting.hold(run_dir, what="restart"), pytest.raises(ResourceBusy):
        removal.remove(candidate, root=str(tmp_path))
    assert os.path.exists(f"{run_dir}/run.json")


def test_a_run_that_was_started_again_meanwhile_stays(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    candidate = removal.examine(run_dir, root=str(tmp_path))
    make_run(tmp_path, attempt=2)
    with pytest.raises(UsageError, match="meanwhile"):
        removal.remove(candidate, root=str(tmp_path))
    assert os.path.exists(f"{run_dir}/run.json")


def test_an_interrupted_removal_is_finished_by_the_next(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "runs", state=ended())
    os.rename(run_dir, tmp_path / "runs" / f".removing-{RUN_ID}")
    (tmp_path / "runs" / ".removing-thesis").mkdir()
    assert removal.sweep(str(tmp_path / "runs")) == 1
    assert os.listdir(tmp_path / "runs") == [".removing-thesis"]
