"""The batch script: what a job asks for stands in it, and nothing that a user wrote can be more than a value."""

from __future__ import annotations

import pytest

from holdfast.core.slurm.options import check_options, lay_over
from holdfast.core.slurm.script import ScriptPlan, list_directives, mark_job, name_job, render_script
from holdfast.core.slurm.warning_lead import choose_lead_s, find_lead_warning, judge_lead, read_lead_s
from holdfast.model.errors import UsageError
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import JobSpec, Limits, Timeouts
from holdfast.model.record import replace
from holdfast.model.slurm import SlurmRecord

pytestmark = pytest.mark.pure

RUN_ID = "20261123-101500-train-3fa2"
RUN_DIR = f"/scratch/me/runs/{RUN_ID}"
COMMAND = ("/usr/bin/python3", "-I", "-S", "/scratch/me/it's here/__main__.py", "slurm-batch", "--run", RUN_DIR)


def _plan(job: JobSpec, **options: str) -> ScriptPlan:
    return ScriptPlan(RUN_ID, RUN_DIR, SlurmRecord(name_job(RUN_ID), mark_job(RUN_ID), options), job, COMMAND)


@pytest.mark.requirement("SLM-01")
def test_SLM_01_the_script_says_all_that_the_job_asks_for() -> None:
    job = JobSpec(
        "train",
        ("true",),
        ".",
        gpus=GpuRequest(count=2),
        limits=Limits(memory_bytes=8 << 30, cpus=3.5),
        timeouts=Timeouts(total_s=3600),
    )
    assert render_script(_plan(job, partition="gpu", constraint="a100|h100")) == (
        "#!/bin/sh\n"
        f"# Run {RUN_ID} of holdfast; its supervisor is the batch process.\n"
        "#SBATCH --job-name=train-3fa2\n"
        f"#SBATCH --comment=holdfast:{RUN_ID}\n"
        f"#SBATCH --chdir={RUN_DIR}\n"
        f"#SBATCH --output={RUN_DIR}/slurm-%j.log\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks=1\n"
        "#SBATCH --requeue\n"
        "#SBATCH --cpus-per-task=4\n"
        "#SBATCH --mem=8192M\n"
        "#SBATCH --gres=gpu:2\n"
        "#SBATCH --time=62\n"
        "#SBATCH --signal=B:USR1@120\n"
        "#SBATCH --partition=gpu\n"
        '#SBATCH --constraint="a100|h100"\n'
        "\n"
        "exec /usr/bin/python3 -I -S '/scratch/me/it'\\''s here/__main__.py' slurm-batch --run "
        f"{RUN_DIR}\n"
    )


def test_what_was_asked_for_by_sbatchs_own_name_wins() -> None:
    job = JobSpec("train", ("true",), ".", gpus=GpuRequest(count=2), limits=Limits(memory_bytes=8 << 30))
    found = list_directives(_plan(job, gpus="a100:2", signal="B:USR1@300", **{"mem-per-cpu": "4G"}))
    assert (found["gpus"], found["signal"], found["mem-per-cpu"]) == ("a100:2", "B:USR1@300", "4G")
    assert not {"gres", "mem"} & found.keys()


@pytest.mark.requirement("SLM-04", "B-36")
def test_SLM_04_the_lead_of_the_warning_follows_from_the_time_of_a_save() -> None:
    assert choose_lead_s(JobSpec("train", ("true",), ".", grace_s=90)) == 240
    assert choose_lead_s(JobSpec("train", ("true",), ".")) == 120
    assert choose_lead_s(JobSpec("train", ("true",), "."), 2.0) == 64
    assert choose_lead_s(JobSpec("train", ("true",), ".", grace_s=90), 100.0) == 260
    plan = replace(_plan(JobSpec("train", ("true",), ".")), save_s=90.0)
    assert "#SBATCH --signal=B:USR1@240\n" in render_script(plan)


@pytest.mark.requirement("SLM-04")
@pytest.mark.gotcha("SLURM2")
def test_SLM_04_a_lead_that_does_not_fit_is_said_with_what_to_change() -> None:
    assert judge_lead(240, 3600, 90) is None
    assert judge_lead(240, None, None) is None
    job = JobSpec("train", ("true",), ".", grace_s=90)
    assert "the job has 3m00s in all" in find_lead_warning(job, {"time": "3"})
    for fine in ({"time": "3", "signal": "B:USR1@60"}, {"time": "1-00:00"}, {}):
        assert not find_lead_warning(job, fine), fine
    tight = judge_lead(240, 180, None)
    assert tight is not None
    assert "the job has 3m00s in all" in tight[0]
    assert "--slurm time=MINUTES" in tight[1]
    assert judge_lead(120, 180, 10) is not None, "the warning may come a minute early"
    grown = judge_lead(120, 3600, 90)
    assert grown is not None
    assert "a save took 1m30s" in grown[0]
    assert "holdfast restart" in grown[1]
    assert [read_lead_s(one) for one in ("B:USR1@240", "RB:USR1", "USR1@90", "B:TERM@90")] == [240, 60, None, None]


@pytest.mark.requirement("SLM-02", "SLM-04")
def test_SLM_04_a_signal_that_is_no_warning_to_the_supervisor_is_refused() -> None:
    for heard in ("B:USR1@300", "B:10@300", "BR:USR2@60", "RB:12@60", "b:sigusr1@60", "B:USR1"):
        assert check_options({"signal": heard, "sig": heard}) == {"signal": heard}
    # Without B Slurm signals the steps alone; after another signal nothing is put back.
    for unheard in (
        "USR1@300",
        "R:USR1@300",
        "10",
        "B:TERM@300",
        "B:INT@60",
        "B:15@60",
        "B:USR1@",
        "B:USR1@5m",
        "@",
        "",
    ):
        for name in ("signal", "sig"):
            with pytest.raises(UsageError, match=r"hears and goes on after") as refused:
                check_options({name: unheard})
            assert "signal=B:USR1@SECONDS" in refused.value.hint, unheard


def test_a_requeue_can_be_switched_off_and_on_again_for_one_job() -> None:
    never = check_options({"no-requeue": ""})
    job = JobSpec("train", ("true",), ".")
    assert "requeue" not in list_directives(_plan(job, **never))
    assert "#SBATCH --no-requeue\n" in render_script(_plan(job, **never))
    with pytest.raises(UsageError, match="holdfast's own"):
        check_options({"no-req": ""})
    for word in ("requeue", "--requeue", "req"):
        again = render_script(_plan(replace(job, slurm=check_options({word: ""})), **never))
        assert again.count("requeue\n") == again.count("#SBATCH --requeue\n") == 1
    later = render_script(_plan(replace(job, slurm=never), **check_options({"requeue": ""})))
    assert later.count("requeue\n") == later.count("#SBATCH --no-requeue\n") == 1


@pytest.mark.requirement("SLM-01")
def test_both_in_one_place_contradict_each_other_in_any_order_and_of_two_the_upper_one_counts() -> None:
    never, again = check_options({"no-requeue": ""}), check_options({"requeue": ""})
    for both in ({**never, **again}, {**again, **never}, {"req": "", **never}):
        with pytest.raises(UsageError, match="requeue and no-requeue contradict each other") as refused:
            check_options(both)
        assert refused.value.hint == "leave one of them out"
    for below, above in ((never, again), (again, never)):
        assert lay_over({"time": "5", **below}, above) == {"time": "5", **above}
        assert lay_over({**below, "time": "5"}, {"time": "7"}) == {**below, "time": "7"}


def test_options_are_checked_before_slurm_hears_of_them() -> None:
    assert check_options({"p": "gpu", "--qos": "high", "mem_per_cpu": "4G"}) == {
        "partition": "gpu",
        "qos": "high",
        "mem-per-cpu": "4G",
    }
    for name, value in (("array", "1-3"), ("wrap", "x"), ("export", "ALL"), ("a b", "1"), ("qos", "a\nb"), ("", "1")):
        with pytest.raises(UsageError):
            check_options({name: value})
    # Another cluster's job would not be found again, and sbatch takes any clear beginning of a name.
    for name in ("clusters", "cluster", "arra", "tasks-per-node"):
        with pytest.raises(UsageError, match="holdfast's own"):
            check_options({name: "0"})
    assert check_options({"begin": "22:00", "exclusive": ""}) == {"begin": "22:00", "exclusive": ""}
