"""What a look at runs asks of Slurm: one call, or two, however many runs there are, and never without an end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.agent.patrol.reconcile import reconcile
from holdfast.agent.queue.wait.run import wait_for_run
from holdfast.agent.scheduler.slurm import commands
from holdfast.agent.scheduler.slurm.facts import read_facts
from holdfast.agent.scheduler.slurm.files import read_record, write_record
from holdfast.agent.scheduler.slurm.scheduler import SlurmScheduler
from holdfast.agent.scheduler.slurm.submit import find_job, prepare
from holdfast.agent.view import follow
from holdfast.host.clock import monotonic_s
from holdfast.model.errors import CutOff, Unreachable
from holdfast.model.job import JobSpec
from holdfast.model.record import replace
from holdfast.model.run import StopCause
from holdfast.model.scheduler import Phase
from holdfast.model.slurm import SlurmRecord
from tests.rundirs import dead_process, make_run, running
from tests.slurm.programs import Programs

pytestmark = pytest.mark.process


def _build_line(job_id: str, state: str = "RUNNING", reason: str = "None") -> str:
    return f"{job_id}|{state}|1795403039|1:05|1:00:00|{reason}|n1|(null)\n"


@pytest.mark.requirement("SLM-08", "SLM-09", "SLM-10", "SLM-17")
def test_a_look_at_hundreds_of_runs_is_one_call_or_two_and_none_per_job(programs: Programs) -> None:
    queued = [programs.add_run(job) for job in [str(7000 + n) for n in range(150)] + [f"900_{n}" for n in range(50)]]
    programs.answer(
        "squeue", "".join(_build_line(str(7000 + n)) for n in range(150)) + _build_line("900_[0-49%2]", "PENDING")
    )
    found = SlurmScheduler().look(queued)
    assert programs.list_calls() == ["squeue"]
    assert {word.phase for word in found.values()} == {Phase.RUNNING, Phase.WAITING}
    assert found[queued[0]].evidence == "Slurm: job 7000 runs: RUNNING, 1m05s of its 1h00m used"
    assert found[queued[-1]].native_id == "900_49"

    forgotten = [programs.add_run(str(10 + n)) for n in range(60)]
    programs.answer("sacct", "10|OUT_OF_MEMORY|0:125|\n10.batch|OUT_OF_MEMORY|0:125|1048576K\n11|RUNNING|0:0|\n")
    found = SlurmScheduler().look(queued + forgotten)
    assert programs.list_calls() == ["squeue", "squeue", "sacct"]
    memory, still, unknown = (found[one] for one in forgotten[:3])
    assert (memory.phase, memory.cause) == (Phase.OVER, StopCause.MEMORY)
    assert "--limit-memory 1.2GiB or more" in memory.advice
    assert "sampled" in memory.advice
    assert "smaller batch does not help" in memory.advice
    assert (still.phase, still.cause, unknown.phase) == (Phase.OVER, None, Phase.OVER)
    assert "its accounts still say RUNNING" in still.evidence
    assert "does not know job 12 any more" in unknown.evidence


def test_of_a_job_that_ended_before_an_attempt_began_the_nodes_own_words_are_told(programs: Programs) -> None:
    run_dir = programs.make_run()
    programs.list_job(run_dir, "FAILED", reason="NonZeroExitCode")
    look = SlurmScheduler().look
    assert ".log" not in look([run_dir])[run_dir].evidence
    log = Path(run_dir, "slurm-7.log")
    log.write_bytes(b"\x1b[31m/opt/conda/bin/python3: not found\n\n")
    assert look([run_dir])[run_dir].evidence.endswith(f"; {log} ends with: \\x1b[31m/opt/conda/bin/python3: not found")
    log.unlink()
    log.symlink_to("/etc/passwd")
    assert ".log" not in look([run_dir])[run_dir].evidence
    begun = programs.make_run(running(), name="begun")
    Path(begun, "attempts/1/native.json").touch()
    Path(begun, "slurm-7.log").write_text("something\n")
    programs.list_job(begun, "FAILED")
    assert ".log" not in look([begun])[begun].evidence


def test_a_job_that_was_never_recorded_is_found_by_its_script_in_the_same_call(programs: Programs) -> None:
    runs = [programs.add_run(None, f"run{n}") for n in range(20)]
    lines = [
        f"{9 - n}|{state}|N/A|0:00|1:00|None|()|{runs[0]}/batch.sh\n"
        for n, state in enumerate(("PENDING", "RUNNING", "CANCELLED"))
    ]
    programs.answer("squeue", "".join(lines))
    found = SlurmScheduler().look(runs)
    assert programs.list_calls() == ["squeue"]
    assert (found[runs[0]].native_id, found[runs[0]].phase) == ("8", Phase.RUNNING)
    assert {found[run].phase for run in runs[1:]} == {Phase.UNKNOWN}


def test_a_job_that_has_the_id_and_not_the_script_is_another_and_is_not_cancelled(programs: Programs) -> None:
    # As after a Slurm was set up anew, which gives its ids again; or in a copy of another run's slurm.json.
    one = programs.add_run("7", "mine")
    programs.write("scancel", "")
    programs.answer("squeue", "7|RUNNING|N/A|0:00|1:00|None|n1|/other/runs/mine-2/batch.sh\n")
    assert SlurmScheduler().look([one])[one].phase is Phase.OVER
    SlurmScheduler().cancel([one])
    assert "scancel" not in programs.list_calls()
    programs.answer("squeue", "7|RUNNING|N/A|0:00|1:00|None|n1|/other/runs/mine/batch.sh\n")
    assert SlurmScheduler().look([one])[one].phase is Phase.RUNNING
    SlurmScheduler().cancel([one])
    assert "scancel" in programs.list_calls()


def test_a_task_that_slurm_forgot_and_that_never_began_was_cancelled_as_long_as_its_array_is_known(
    programs: Programs,
) -> None:
    array, script = programs.runs / ".sweeps-0/rates/1", "/other/runs/.sweeps-0/rates/1/batch.sh"
    array.mkdir(parents=True)
    (array / "slurm.json").write_text(json.dumps({"name": "x", "comment": "y", "job_id": "9"}))
    waiting, begun = programs.add_run(None, "waiting"), programs.add_run(None, "begun")
    for task, run_dir in enumerate((waiting, begun)):
        record = {"name": "", "comment": "", "array": ".sweeps-0/rates/1", "task": task}
        (Path(run_dir) / "slurm.json").write_text(json.dumps(record))
        (Path(run_dir) / "attempts/1").mkdir(parents=True)
    (Path(begun) / "attempts/1/native.json").touch()
    for left in ("9_[2-3]|PENDING", "9|CANCELLED"):
        programs.answer("squeue", f"{left}|N/A|0:00|1:00|Resources|()|{script}\n")
        words = SlurmScheduler().look([waiting, begun])
        assert {words[one].phase for one in (waiting, begun)} == {Phase.OVER}
        assert (words[waiting].cause, words[begun].cause) == (StopCause.SIGNAL, None)
    programs.answer("squeue", "")
    assert SlurmScheduler().look([waiting])[waiting].cause is None


@pytest.mark.requirement("SLM-09")
def test_accounts_that_do_not_answer_take_nothing_from_a_look(programs: Programs) -> None:
    one = programs.add_run("7")
    assert SlurmScheduler().look([one])[one].phase is Phase.OVER
    (programs.bin / "sacct").unlink()
    assert SlurmScheduler().look([one])[one].phase is Phase.OVER
    assert SlurmScheduler().look([]) == {}


def test_a_job_that_slurm_has_given_the_id_of_another_run_is_none_of_this_one(programs: Programs) -> None:
    one = programs.add_run("7")
    mine = f"7|RUNNING|1795403039|1:05|1:00:00|None|n1|/elsewhere/{os.path.basename(one)}/batch.sh\n"
    programs.answer("squeue", mine)
    assert SlurmScheduler().look([one])[one].phase is Phase.RUNNING
    programs.answer("squeue", mine.replace(os.path.basename(one), "20261123-101500-other-3fa2"))
    assert "does not know job 7" in SlurmScheduler().look([one])[one].evidence


def test_a_job_that_waits_says_why_and_when_and_what_to_change(programs: Programs) -> None:
    one = programs.add_run("7")
    programs.answer("squeue", "7|PENDING|4000000000|0:00|1:00:00|Priority|(Priority)|/x/7/batch.sh\n")
    word = SlurmScheduler().look([one])[one]
    assert word.evidence.startswith("Slurm: job 7 waits: PENDING (Priority), expected to start in ")
    assert word.evidence.endswith("(2096-10-02 07:06 UTC)")
    assert "higher priority go first" in word.advice


def test_a_squeue_that_never_ends_is_no_answer_in_bounded_time_and_memory(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = programs.add_run("7")
    # A wrapper whose child keeps the output open, also when the wrapper itself is killed.
    programs.write("squeue", "sleep 600; true")
    with pytest.raises(CutOff, match="no answer within"):
        commands.call(("squeue",), limit_s=0.2)
    monkeypatch.setattr(commands, "MOST_BYTES", 1 << 20)
    programs.write("squeue", "exec yes '1|RUNNING|no end in sight'")
    with pytest.raises(CutOff, match="more than 1 MiB"):
        SlurmScheduler().look([one])
    programs.write("squeue", "head -c 1000000 /dev/zero >&2; echo hello")
    assert commands.call(("squeue",)) == "hello\n"


def test_an_order_that_comes_again_after_a_restart_was_cut_off_keeps_the_jobs_before(programs: Programs) -> None:
    run_dir = programs.add_run(None)
    known = read_record(run_dir)
    assert known is not None
    write_record(run_dir, replace(known, earlier=("7",)))
    assert prepare(run_dir, JobSpec("x", ("true",), "/"), {}, "none").earlier == ("7",)


def test_of_two_jobs_the_older_is_on_record_before_the_other_is_cancelled(programs: Programs) -> None:
    run_dir = programs.add_run(None)
    known = read_record(run_dir)
    assert known is not None
    lines = (f"{job}|PENDING|N/A|0:00|1:00:00|Priority|(Priority)|{run_dir}/batch.sh" for job in (8, 7))
    programs.answer("squeue", "\n".join(lines))
    programs.write("scancel", "echo 'scancel: error: Invalid job id specified' >&2; exit 1")
    found = find_job(run_dir, known)
    assert found is not None
    assert found.job_id == "7"

    programs.write("scancel", "echo 'slurm_kill_job2: Unable to contact slurm controller' >&2; exit 1")
    write_record(run_dir, known)
    with pytest.raises(Unreachable):
        find_job(run_dir, known)
    told = read_record(run_dir)
    assert told is not None
    assert told.job_id == "7"


def test_a_run_of_which_nobody_is_left_is_waited_for_and_not_settled_while_slurm_does_not_say_that_it_is_over(
    programs: Programs, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(programs.runs, "20261123-101500-train-3fa2", running(), supervisor=dead_process())
    origin = Path(run_dir, "run.json")
    origin.write_text(json.dumps({**json.loads(origin.read_text()), "scheduler": "slurm"}))
    write_record(run_dir, SlurmRecord("x", "y", job_id="7"))
    monkeypatch.setattr(follow, "GONE_S", 0.0)
    again = f"7|PENDING|N/A|0:00|1:00:00|BeginTime|(BeginTime)|{run_dir}/batch.sh\n"
    for answer in (again, None):
        if answer is None:
            programs.write("squeue", "echo 'error: Unable to contact slurm controller' >&2; exit 1")
        else:
            programs.answer("squeue", answer)
        view, code = wait_for_run(run_dir, deadline=monotonic_s() + 0.1)
        assert (view.vanished, code) == (True, None)
        assert reconcile([str(programs.runs)], dry_run=True).repairs == ()


@pytest.mark.requirement("SLM-05")
@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("SlurmctldParameters     = idle_on_node_suspend,preempt_send_user_signal", True),
        ("PreemptParameters       = youngest_first,send_user_signal", True),
        ("PreemptParameters       = youngest_first", False),
        ("SlurmctldParameters     = (null)", False),
    ],
)
def test_whether_a_preemption_is_warned_of_is_read_by_the_older_and_the_newer_name(
    programs: Programs, line: str, warned: bool
) -> None:
    programs.write("scontrol", f'[ "$2" != config ] || echo "{line}"')
    assert read_facts().preempt_warned == warned
