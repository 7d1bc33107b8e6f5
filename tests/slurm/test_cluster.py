"""The tests' own Slurm does what the others here rest on: cards, requeue, preemption, warnings, lost nodes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import NODES, TRACKERS, Slurm, on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster


def _submit(slurm: Slurm, tmp_path: Path, text: str, *words: str) -> str:
    script = tmp_path / "script.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    return slurm.sbatch(*words, str(script))


def test_a_job_gets_the_cards_that_it_asked_for_and_nodes_are_no_namespaces_of_ours(
    slurm: Slurm, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    text = f'echo "$CUDA_VISIBLE_DEVICES $(cat /proc/sys/kernel/random/boot_id) $(hostname)" > {out}'
    job = _submit(slurm, tmp_path, text, "--gres=gpu:2", "--nodelist=n2")
    slurm.wait_for(job, "COMPLETED")
    cards, boot_id, host = out.read_text().split()
    assert (cards, host) == ("0,1", "n2")
    assert boot_id == (slurm.root / "n2.boot_id").read_text().strip()


@pytest.mark.requirement("LEASE-17")
def test_LEASE_17_a_run_in_a_job_takes_its_cards_as_they_are_and_leases_none(slurm: Slurm, tmp_path: Path) -> None:
    out, area = tmp_path / "out", tmp_path / "area"
    places = f"HOME={tmp_path} HOLDFAST_RUNS={tmp_path}/runs HOLDFAST_LEASE_DIR={area} HOLDFAST_SIMULATED_GPUS=4"
    inner = f"echo $CUDA_VISIBLE_DEVICES > {out}"
    text = f"env {places} {sys.executable} -m holdfast run --gpus 2 -- sh -c '{inner}' > {tmp_path}/said 2>&1"
    job = _submit(slurm, tmp_path, text, "--gres=gpu:2", "--nodelist=n2")
    ended = slurm.wait_for(job, "COMPLETED", "FAILED")
    assert ended["JobState"] == "COMPLETED", (tmp_path / "said").read_text()
    assert out.read_text() == "0,1\n"
    assert os.listdir(area) == [], "no lock was taken"


@on(*TRACKERS)
def test_a_job_that_requeues_itself_is_started_again_under_its_id(slurm: Slurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    requeue = '[ -n "$SLURM_RESTART_COUNT" ] || scontrol requeue $SLURM_JOB_ID'
    text = f'echo "${{SLURM_RESTART_COUNT:-0}}" >> {out}\n{requeue}\n'
    job = _submit(slurm, tmp_path, text, "--requeue")
    slurm.wait_for(job, "COMPLETED")
    assert out.read_text().split() == ["0", "1"]
    assert slurm.show(job)["Restarts"] == "1"


def test_a_job_of_high_partition_takes_the_cards_of_a_low_one_which_goes_on_afterwards(
    slurm: Slurm, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    text = f'trap "echo TERM >> {out}; exit 1" TERM\necho "${{SLURM_RESTART_COUNT:-0}}" >> {out}\n'
    text += '[ -z "$SLURM_RESTART_COUNT" ] || exit 0\nwhile :; do sleep 0.1; done'
    low = _submit(slurm, tmp_path, text, "--requeue", "--gres=gpu:4", "--nodelist=n1")
    wait_until(out.exists, what="the low job runs")
    slurm.sbatch("--partition=high", "--gres=gpu:4", "--nodelist=n1", "--wrap", "true")
    slurm.wait_for(low, "COMPLETED")
    assert out.read_text().split()[0] == "0"
    assert out.read_text().split()[-1] == "1"


@pytest.mark.timeout(120)
def test_a_node_that_is_lost_has_its_job_started_on_another(
    tmp_path: Path, isolated_environment: dict[str, str]
) -> None:
    out = tmp_path / "out"
    with Slurm.started() as slurm:
        text = f'hostname >> {out}\n[ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
        job = _submit(slurm, tmp_path, text, "--requeue")
        wait_until(lambda: out.exists() and out.read_text(), what="the job runs")
        first = out.read_text().strip()
        slurm.stop_node(first)
        slurm.call("scontrol", "update", f"NodeName={first}", "State=DOWN", "Reason=test")
        slurm.wait_for(job, "COMPLETED")
        assert sorted(out.read_text().split()) == sorted(NODES)
