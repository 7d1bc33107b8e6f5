"""``submit --on`` a place of Slurm: one job, handed in and left, that may wait for the proven end of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rundirs import dead_process, make_run, running
from tests.slurm.lab import LabRun
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.slurm.lab import Lab

pytestmark = pytest.mark.cluster


def _submit(lab: Lab, *words: str) -> LabRun:
    return LabRun(lab, lab("submit", "--on", "lab", *words, "--", "sh", "-c", "echo $HOLDFAST_REASON").stdout.strip())


@pytest.mark.timeout(180)
@pytest.mark.requirement("SLM-13")
def test_SLM_13_a_warned_run_that_goes_on_satisfies_a_dependency_only_when_it_is_done(lab: Lab) -> None:
    run = lab.submit()
    run.wait_begun()
    after = _submit(lab, "--after", run.name, "--name", "after")
    assert lab.slurm.show(after.job)["Dependency"].startswith(f"afterok:{run.job}(")
    assert after.state == "pending (Dependency)"
    lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    run.wait_begun(2)
    # It has ended with 143, and was put back: that was no end.
    assert run.exit(1)["exit_code"] == 143
    assert after.state == "pending (Dependency)"
    run.finish()
    assert lab("wait", run.name, after.name).returncode == 0
    assert after.output() == "start\n"
    done = _submit(lab, "--after", run.name, "--wait")
    assert done.output() == "start\n", "what is proven done is not waited for"


@pytest.mark.timeout(180)
@pytest.mark.requirement("SLM-13", "SLM-03")
def test_what_waits_for_a_preempted_run_that_the_site_does_not_requeue_waits_for_its_restart(lab: Lab) -> None:
    run = lab.submit()
    run.wait_begun()
    after = _submit(lab, "--after", run.name)
    lab.slurm.call("scontrol", "update", f"JobId={run.job}", "Requeue=0")
    lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    assert lab.slurm.wait_for(run.job, "FAILED")["ExitCode"] == "143:0"
    assert "was not put back into the queue" in run.log()
    assert lab("wait", run.name, code=143).returncode == 143
    wait_until(lambda: after.state == "pending (DependencyNeverSatisfied)", what="Slurm says that it will never begin")

    refused = lab("submit", "--on", "lab", "--after", run.name, "--", "true", code=78)
    assert f"--after {run.run_id}: it has ended, and was not proven done: preempted" in refused.stderr
    assert f"holdfast restart lab:{run.run_id}, then say it again" in refused.stderr

    blocker = lab.slurm.sbatch("--nodes=2", "--exclusive", "--wrap", "sleep 600")
    lab.slurm.wait_for(blocker, "RUNNING")
    lab("restart", run.name)
    lab("stop", after.name)
    lab("restart", after.name)
    assert lab.slurm.show(after.job)["Dependency"].startswith(f"afterok:{run.job}(")
    run.finish()
    lab.slurm.call("scancel", blocker)
    assert lab("wait", run.name, after.name).returncode == 0
    assert run.output(2).startswith(f"begin {run.output(1).split()[-1]} 2 restart")
    assert after.output(2) == "restart\n"


def test_a_job_that_waits_is_held_with_slurm_and_let_go(lab: Lab) -> None:
    blocker = lab.slurm.sbatch("--nodes=2", "--exclusive", "--wrap", "sleep 600")
    lab.slurm.wait_for(blocker, "RUNNING")
    run = lab.submit(steps=1)
    held = lab("queue", "pause", "--on", "lab", run.run_id)
    assert held.stdout == f"held: {run.name}\n"
    assert f"holdfast queue resume --on lab {run.name}" in held.stderr
    assert lab.slurm.show(run.job)["Reason"] == "JobHeldUser"
    assert "pending (JobHeldUser)" in lab("ls", "--on", "lab").stdout
    assert "keeps no reason" in lab("queue", "pause", "--on", "lab", run.run_id, "--reason", "x", code=64).stderr
    lab.slurm.call("scancel", blocker)
    lab("queue", "resume", "--on", "lab", run.name)
    assert lab("wait", run.name).returncode == 0
    assert "only a job that waits" in lab("queue", "pause", "--on", "lab", run.run_id, code=64).stderr


@pytest.mark.requirement("SLM-01")
def test_what_only_a_queue_of_our_own_has_is_refused_with_slurms_word_for_it(lab: Lab) -> None:
    for words, said in (
        (("--not-before", "22:00"), "--slurm begin=TIME"),
        (("--priority", "5"), "--slurm nice=N"),
        (("--paused",), "--slurm begin=TIME"),
        (("--max-parallel", "2"), "sweep submit --on lab"),
        (("--group", "night"), "Slurm's queue has no groups"),
        (("--after", "night/"), "--slurm dependency=afterok:JOB"),
        (("--after", "nobody"), "nobody"),
        (("--after", "x", "--slurm", "dependency=singleton"), "say the same"),
    ):
        done = lab("submit", "--on", "lab", *words, "--", "true", code=None)
        assert done.returncode in (64, 66), (words, done.stderr)
        assert said in done.stderr, words
    make_run(str(lab.root), "20261123-101500-here-3fa2", running(), supervisor=dead_process())
    refused = lab("submit", "--on", "lab", "--after", "here", "--", "true", code=64)
    assert "it is no run of slurm" in refused.stderr
    assert [path.name for path in lab.root.iterdir() if path.name[0] != "."] == ["20261123-101500-here-3fa2"]
    assert "#SBATCH --time=5" in lab("submit", "--on", "lab", "--slurm", "time=5", "--dry-run", "--", "true").stdout
    assert lab.list_jobs() == []
