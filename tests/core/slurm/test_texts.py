"""What Slurm prints is read as it is meant, also where somebody else chose the words in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.slurm.reasons import NEVER, WAITS, advise
from holdfast.core.slurm.states import STATES, find_meaning
from holdfast.core.slurm.texts import (
    list_ids,
    read_cards,
    read_config,
    read_duration,
    read_fields,
    read_job,
    read_moment,
    read_sacct,
    read_size,
    read_squeue,
)
from holdfast.model.run import StopCause
from holdfast.model.scheduler import Phase

pytestmark = pytest.mark.files

FIXTURES = Path(__file__).parents[2] / "fixtures" / "slurm"


def _read(name: str) -> str:
    return (FIXTURES / "22.05.8" / f"{name}.txt").read_text()


def _read_version(name: str) -> str:
    """A text of another version, without the line that names its source."""
    source, _, text = (FIXTURES / "versions" / f"{name}.txt").read_text().partition("\n")
    assert source.startswith("# "), source
    return text


def _mark(text: str) -> str:
    """What squeue prints with a mark before its format."""
    return "".join(f"a1b2|{line}\n" for line in text.splitlines())


def test_squeue_is_read_line_by_line() -> None:
    jobs = {line.job_id: line for line in read_squeue(_mark(_read("squeue")), "a1b2")}
    assert (jobs["1"].state, jobs["1"].nodes) == ("RUNNING", "n1")
    assert (jobs["3"].state, jobs["3"].reason, jobs["3"].nodes) == ("PENDING", "Resources", "")
    assert (jobs["2"].state, jobs["2"].reason) == ("FAILED", "NonZeroExitCode")
    line = "7_3|PENDING|N/A|0:00|1:00|ReqNodeNotAvail, UnavailableNodes:n2|()|/a|b c/batch.sh\n"
    (odd,) = read_squeue(f"slurm_load: some remark\na1b2|{line}", "a1b2")
    assert (odd.job_id, odd.reason, odd.command) == ("7_3", "ReqNodeNotAvail, UnavailableNodes:n2", "/a|b c/batch.sh")


def test_what_somebody_wrote_into_the_arguments_of_a_script_is_no_line_of_squeue() -> None:
    mine = "a1b2|7|RUNNING|N/A|0:01|1:00|None|n1|/runs/mine/batch.sh\n"
    forged = "7|COMPLETED|N/A|0:01|1:00|None|n1|/runs/mine/batch.sh"
    for end in ("\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028"):
        command = f"/theirs.sh x{end}{forged}{end}a1|{forged}{end}a1b2{forged}"
        one, other = read_squeue(f"{mine}a1b2|8|RUNNING|N/A|0:01|1:00|None|n1|{command}\n", "a1b2")
        assert (one.job_id, one.state, other.job_id, other.state) == ("7", "RUNNING", "8", "RUNNING")
        assert other.command == command.partition("\n")[0], "no other character ends a line"


def test_jobs_of_other_versions_are_read_line_by_line() -> None:
    jobs = {line.job_id: line for line in read_squeue(_mark(_read_version("squeue-24.11")), "a1b2")}
    assert list(jobs) == [
        "21",
        "21+1",
        *(f"2_{n}" for n in range(3, 8)),
        *(f"30_{n}" for n in (1, 2, 9, 13, 17)),
        "31",
        "32",
    ]
    assert (jobs["21"].used_s, jobs["21"].limit_s, jobs["21"].starts_at) == (46, 86_400, 1_756_128_037)
    assert (jobs["2_5"].starts_at, jobs["2_5"].limit_s, jobs["2_5"].nodes) == (None, 300, "")
    assert (jobs["30_9"].limit_s, jobs["30_9"].command) == (None, "/home/ünï/a|b c/batch.sh")
    assert (find_meaning(jobs["31"].state).phase, jobs["31"].used_s, jobs["31"].limit_s) == (Phase.ENDING, None, None)
    assert find_meaning(jobs["32"].state).cause is StopCause.SIGNAL


def test_ids_stand_for_the_jobs_that_they_name() -> None:
    assert list_ids("123") == ("123",)
    assert list_ids("123_[4-7%2]") == ("123_4", "123_5", "123_6", "123_7")
    assert list_ids("123_4") == ("123_4",)
    assert (list_ids("123+0"), list_ids("123+2")) == (("123",), ("123+2",))
    assert len(list_ids("1_[0-999999999999]")) == 100_000
    for odd in ("", "123.batch", "a", "123_x", "12_[3-", "123_[a-b]", "-1"):
        assert list_ids(odd) == (), odd


def test_accounts_are_read_by_job_with_the_peak_of_its_steps() -> None:
    found = read_sacct(_read_version("sacct"))
    assert (found["239023"].state, found["239023"].peak_bytes) == ("COMPLETED", 3 << 29)
    assert find_meaning(found["2041"].state).cause is StopCause.SIGNAL
    assert (found["2042"].state, found["2042"].exit_code, found["2042"].peak_bytes) == (
        "OUT_OF_MEMORY",
        "0:125",
        8 << 30,
    )
    assert [found[job].state for job in ("2043_7", "2043_8", "2043_9", "2044")] == [
        "TIMEOUT",
        *["PENDING"] * 2,
        "NODE_FAIL",
    ]
    assert read_sacct("Slurm accounting storage is disabled\n") == {}
    assert (read_size("1234K"), read_size("0"), read_size(""), read_size("16?")) == (1234 << 10, 0, None, None)


def test_a_comment_cannot_say_what_state_a_job_is_in() -> None:
    fields = read_job(_read("job-running"), "1")
    assert (fields["JobState"], fields["Restarts"], fields["NodeList"]) == ("RUNNING", "0", "n1")
    assert fields["Dependency"] == fields["Command"] == ""
    assert fields["EndTime"].isdigit()
    assert read_job(_read("job-failed"), "2")["ExitCode"] == "3:0"
    assert read_job(_read("job-failed"), "1") == {}


def test_nor_can_a_name_and_one_that_could_makes_all_of_it_doubtful() -> None:
    assert read_job(_read_version("job-forged-22.05"), "1") == {}
    text = _read("job-running")
    for name in ("a b", "x JobState=COMPLETED Restarts=7", "ünï JobId=9", "JobName=y", ""):
        fields = read_job(text.replace("JobName=wrap", f"JobName={name}"), "1")
        assert (fields["JobState"], fields["Restarts"], fields["JobName"]) == ("RUNNING", "0", name)
    assert read_job(text + text, "1") == {}
    assert read_job("scontrol: some remark\n" + text, "1")["JobState"] == "RUNNING"


def test_jobs_of_other_versions() -> None:
    old, middle, new = (
        read_job(_read_version(f"job-{name}"), job)
        for name, job in (("19.05", "1539172"), ("20.11", "10804568"), ("25.05", "1"))
    )
    assert (old["JobState"], old["PreemptTime"], old["TRES"].split(",")[0]) == ("RUNNING", "None", "cpu=4")
    assert (middle["Restarts"], read_moment(middle["EndTime"]), middle["Command"]) == (
        "2",
        1_628_685_018,
        "/scratch/anna/Run/sims_A=900/python.slurm",
    )
    assert (new["JobState"], new["StepMgrEnabled"], new["OOMKillStep"]) == ("CANCELLED", "Yes", "0")
    tasks = _read_version("jobs-array-22.05")
    assert [read_job(tasks, job).get("JobState") for job in ("2", "5", "2_2", "2_1")] == [
        "PENDING",
        "RUNNING",
        "RUNNING",
        None,
    ]
    assert read_moment(read_job(tasks, "2")["EndTime"]) is None


def test_configurations_partitions_and_nodes_of_other_versions() -> None:
    old, new = (read_config(_read_version(f"config-{name}")) for name in ("20.11", "25.11"))
    assert (old["KillWait"], old["JobRequeue"], old["PreemptType"]) == ("60 sec", "0", "preempt/qos")
    assert (new["AccountingStorageType"], new["PreemptType"], new["MaxArraySize"]) == ("", "", "1001")
    batch, debug = (read_fields(line) for line in _read_version("partitions-20.11").splitlines())
    assert (batch["MaxTime"], batch["State"], batch["Nodes"]) == ("7-00:00:00", "INACTIVE", "o[0002-0006,0008-0824]")
    assert (debug["PreemptMode"], debug["GraceTime"], debug["TotalNodes"]) == ("REQUEUE", "120", "154")
    gpu = read_fields(_read_version("partitions-25.11"))
    assert (read_duration(gpu["MaxTime"]), gpu["Nodes"], gpu["TotalNodes"]) == (None, "", "0")
    nodes = [read_fields(line) for line in _read_version("nodes").splitlines()]
    assert [read_cards(node["Gres"]) for node in nodes] == [{}, {"H100": 8}]
    assert nodes[0]["OS"].startswith("Linux 6.10")


@pytest.mark.requirement("SLM-08")
def test_a_reason_is_told_in_words_with_what_to_change() -> None:
    assert "never starts" in advise("QOSMaxWallDurationPerJobLimit")
    assert "drained" in advise(
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    )
    assert advise("ReqNodeNotAvail, UnavailableNodes:n2") == WAITS["ReqNodeNotAvail"]
    assert "all jobs of the account together use as much cards" in advise("AssocGrpGRES")
    assert "its user has as much nodes as the QOS gives" in advise("QOSMaxNodePerUserLimit")
    assert "never starts so: it asks for more memory than the QOS gives one job" in advise("QOSMaxMemoryPerJob2")
    assert "wants a job to ask for more cards" in advise("QOSMinGRES")
    assert advise("SomethingNew") == advise("") == ""
    assert all(WAITS.values())


def test_configuration_partitions_and_nodes_are_read() -> None:
    config = read_config(_read("config"))
    assert (config["SLURM_VERSION"], config["ClusterName"], config["KillWait"]) == ("22.05.8", "hf", "5 sec")
    low, high = (read_fields(line) for line in _read("partitions").splitlines())
    assert (low["PartitionName"], low["MaxTime"], low["PreemptMode"]) == ("low", "01:00:00", "REQUEUE")
    assert high["PartitionName"] == "high"
    nodes = [read_fields(line) for line in _read("nodes").splitlines() if line]
    assert [read_cards(node["Gres"]) for node in nodes] == [{"": 4}, {"": 4}]
    assert read_cards("gpu:a100:4(S:0-1),gpu:h100:2,nic:1") == {"a100": 4, "h100": 2}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30 sec", 30),
        ("01:00:00", 3600),
        ("5:30", 330),
        ("2-00:00:00", 172_800),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("90", 5400),
        ("UNLIMITED", None),
        ("NONE", None),
        ("a while", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert read_duration(text) == seconds


@pytest.mark.requirement("SLM-08")
def test_each_state_has_a_meaning_and_an_unknown_one_means_nothing() -> None:
    assert find_meaning("CANCELLED by 1000").cause is StopCause.SIGNAL
    assert find_meaning("timeout").cause is StopCause.DEADLINE
    assert find_meaning("OUT_OF_MEMORY").cause is StopCause.MEMORY
    assert find_meaning("PREEMPTED").cause is StopCause.PREEMPTION
    assert find_meaning("RUNNING+CLOUD").phase is Phase.RUNNING
    assert find_meaning("NODE_FAIL").cause is None
    odd = find_meaning("DREAMING")
    assert (odd.phase, odd.cause) == (Phase.UNKNOWN, None)
    assert "DREAMING" in odd.words
    assert all(meaning.cause is None or meaning.phase is Phase.OVER for meaning in STATES.values())
    assert all(NEVER.values())
