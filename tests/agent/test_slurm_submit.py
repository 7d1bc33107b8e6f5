"""From an order to one job of Slurm, by what its commands say: what is refused, and what is found again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.place.slurm import take_order
from holdfast.agent.scheduler.slurm import commands
from holdfast.agent.scheduler.slurm.scheduler import SlurmScheduler
from holdfast.agent.scheduler.slurm.submit import prepare, submit
from holdfast.core.job.job_hash import hash_job
from holdfast.model import wire
from holdfast.model.errors import InternalError, PreflightFailed, Unreachable, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.order import Order
from holdfast.model.record import replace
from holdfast.model.run import Outcome
from holdfast.model.slurm import SlurmRecord
from tests.rundirs import ended

if TYPE_CHECKING:
    from tests.slurm.programs import Programs

pytestmark = pytest.mark.process

AWAY = "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1"
ADVICE = {
    "Invalid account or account/partition combination specified": "sacctmgr show assoc",
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)": "fewer of your jobs",
    "Requested time limit is invalid (missing or exceeds some limit)": "--slurm time=MINUTES",
    "Job's account not permitted to use this partition (gpu allows abc not xyz)": "scontrol show partition",
    "Invalid partition name specified": "sinfo -s",
    "Invalid qos specification": "sacctmgr show qos",
    "Requested reservation is invalid": "scontrol show reservation",
    "Requested node configuration is not available": "what one node has",
    "Invalid generic resource (gres) specification": "%G",
}
PARTITIONS = "".join(
    f"PartitionName={name} Default={default} MaxTime={most} TotalNodes=2\n"
    for name, default, most in (
        ("short", "YES", "01:00:00"),
        ("long", "NO", "04:00:00"),
        ("endless", "NO", "UNLIMITED"),
    )
)


def test_what_slurm_refuses_is_advised_on_by_its_whole_message(programs: Programs) -> None:
    for message, words in ADVICE.items():
        programs.write("sbatch", f'echo "sbatch: error: Batch job submission failed: {message}" >&2; exit 1')
        with pytest.raises(PreflightFailed) as refused:
            commands.call(("sbatch",))
        assert words in refused.value.hint, message


def _order(programs: Programs, *after: str) -> Order:
    job = JobSpec("once", ("true",), str(programs.bin))
    return Order("20261123-101500-once-3fa2", job, hash_job(job), "0123456789abcdef", scheduler="slurm", after=after)


@pytest.mark.requirement("SLM-13")
def test_an_order_that_was_cut_off_goes_on_with_its_job_whatever_became_of_what_it_waits_for(
    programs: Programs,
) -> None:
    before = programs.make_run()
    programs.take_jobs()
    programs.list_job(before, "RUNNING")
    order, listed = _order(programs, Path(before).name), programs.bin / "squeue.txt"
    # The job is taken, and nothing more is heard of Slurm.
    taken = (programs.bin / "sbatch").read_text()
    (programs.bin / "sbatch").write_text(f"{taken}\nprintf '#!/bin/sh\\n%s\\n' \"{AWAY}\" > {programs.bin}/squeue\n")
    with pytest.raises(Unreachable):
        take_order(order, str(programs.runs))
    run_dir = programs.runs / order.run_id
    assert "dependency=afterok:7" in programs.read_script(1)

    failed = wire.encode(ended(Outcome.FAILED, 1))
    Path(before, "attempts/1/exit.json").write_bytes(wire.to_bytes({**failed, "outcome": "failed", "reason": ""}))
    programs.write("squeue", "echo 'squeue: error: Invalid user' >&2; exit 1")
    with pytest.raises(PreflightFailed, match="Invalid user"):
        take_order(order, str(programs.runs))
    assert run_dir.is_dir()

    programs.list_job(str(run_dir), "PENDING", job_id="1", reason="DependencyNeverSatisfied")
    assert take_order(order, str(programs.runs)).native_id == "1"
    listed.write_text("")
    assert take_order(order, str(programs.runs)).native_id == "1", "that it has ended by now is its run's to tell"
    assert programs.count("sbatch") == 1


def test_an_order_of_which_slurm_has_no_job_is_refused_and_leaves_no_run(programs: Programs) -> None:
    before = programs.make_run()
    programs.take_jobs()
    programs.list_job(before, "RUNNING")
    order = _order(programs, Path(before).name)
    programs.write("sbatch", "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(Unreachable):
        take_order(order, str(programs.runs))
    assert (programs.runs / order.run_id).is_dir()
    programs.list_job(before, "FAILED")
    with pytest.raises(PreflightFailed, match="was not proven done"):
        take_order(order, str(programs.runs))
    assert not (programs.runs / order.run_id).exists()


def _prepare(programs: Programs, name: str, **options: str) -> tuple[str, SlurmRecord]:
    run_dir = programs.runs / f"20261123-101500-{name}-3fa2"
    run_dir.mkdir(parents=True)
    return str(run_dir), prepare(str(run_dir), JobSpec(name, ("true",), "/"), options, "none")


def test_a_time_limit_is_refused_where_no_partition_that_is_named_has_it(programs: Programs) -> None:
    programs.take_jobs()
    programs.answer("scontrol", PARTITIONS)
    for number, (named, time, refused) in enumerate(
        (
            ("short", "60", ""),
            ("short", "120", "beyond that of partition short, 1h00m"),
            ("short,long", "120", ""),
            ("short,long", "300", "beyond that of partition long, 4h00m"),
            ("short,endless", "300", ""),
            ("", "300", "beyond that of partition short, 1h00m"),
        )
    ):
        options = {"time": time, **({"partition": named} if named else {})}
        run_dir, record = _prepare(programs, f"r{number}", **options)
        if refused:
            with pytest.raises(PreflightFailed, match=refused):
                submit(run_dir, record, os.environ, fresh=True)
        else:
            assert submit(run_dir, record, os.environ, fresh=True).job_id, named


def test_what_a_site_has_sbatch_say_beside_the_id_hides_no_job(programs: Programs) -> None:
    run_dir, record = _prepare(programs, "banner")
    programs.write("sbatch", "printf 'Welcome!\\n2 days to go\\n7;hf\\nYour quota is full\\n'")
    programs.write("squeue", "echo 'squeue: error: Invalid user' >&2; exit 1")
    assert submit(run_dir, record, os.environ, fresh=True).job_id == "7"
    run_dir, record = _prepare(programs, "nothing")
    programs.write("sbatch", "echo Welcome!")
    programs.list_job(run_dir, "PENDING")
    assert submit(run_dir, record, os.environ, fresh=True).job_id == "7"
    run_dir, record = _prepare(programs, "none")
    programs.answer("squeue", "")
    with pytest.raises(InternalError, match="names no job"):
        submit(run_dir, record, os.environ, fresh=True)


@pytest.mark.requirement("SLM-13")
def test_a_restart_gives_up_nothing_that_the_run_was_to_begin_after(programs: Programs) -> None:
    run_dir = programs.make_run(ended(Outcome.FAILED, 1))
    programs.take_jobs()
    job = JobSpec("train", ("true",), "/", slurm={"dependency": "singleton"})
    with pytest.raises(UsageError, match="--after of this run and --slurm dependency say the same"):
        SlurmScheduler().begin_again(run_dir, job, ("5",))
    assert programs.count("sbatch") == 0
    assert SlurmScheduler().begin_again(run_dir, job, ()) == "1"
    assert "#SBATCH --dependency=singleton" in programs.read_script(1)
    plain = replace(job, slurm={})
    assert SlurmScheduler().begin_again(run_dir, plain, ("5",)) == "2"
    assert "#SBATCH --dependency=afterok:5" in programs.read_script(2)
    assert SlurmScheduler().begin_again(run_dir, plain, ()) == "3"
    assert "dependency" not in programs.read_script(3), "what it waited for is done"
    # What was recorded before such a warning was refused is refused when it is handed in again.
    old = SlurmRecord("x", "y", {"signal": "USR1@300"}, job_id="9")
    Path(run_dir, "slurm.json").write_bytes(wire.to_bytes(old))
    with pytest.raises(UsageError, match="hears and goes on after"):
        SlurmScheduler().begin_again(run_dir, plain, ())
    assert SlurmScheduler().begin_again(run_dir, replace(job, slurm={"signal": "B:USR1@300"}), ()) == "4"
