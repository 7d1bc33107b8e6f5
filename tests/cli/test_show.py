"""``holdfast show``: everything that is known, and what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.render.run import Facts, describe_stall
from holdfast.core.moments import show_times
from holdfast.host.box import FIRST_NAMESPACE, read_box
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.record import replace
from holdfast.model.requeue import AttemptPlacement, Requeue, RequeueAction
from holdfast.model.run import Outcome, StopCause, StopRecord, StopRequest
from tests.agent.test_leaving import library
from tests.cli.live import live_run
from tests.rundirs import dead_process, ended, make_run, running, write

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def run_id(number: int) -> str:
    return f"2026112{number}-100000-x-0a1{number}"


@pytest.fixture
def runs(isolated_environment: dict[str, str]) -> str:
    return isolated_environment["HOLDFAST_RUNS"]


@pytest.mark.slow
@pytest.mark.requirement("POST-02", "OBS-02", "OBS-06", "OBS-09")
def test_POST_02_an_ended_run_tells_code_duration_phases_and_limits(holdfast: Command) -> None:
    arguments = ("--limit-open-files", "512", "--", "sh", "-c", "exit 3")
    run_dir = holdfast("run", "--json", *arguments).json()["run_dir"]
    done = holdfast("show", run_dir)
    assert done.code == 0
    for words in ("failed (exit 3)", "job ran", "exit code 3", "PHASE", "running", "512", "not stated", "contained by"):
        assert words in done.out
    value = holdfast("show", "--json", run_dir).json()
    assert (value["condition"], value["exit_code"], value["seed"]) == ("failed", 3, "not stated")
    assert [item["phase"] for item in value["phases"]][-2:] == ["finalizing", "ended"]
    assert value["manifest"]["limits"][0]["mechanism"] == "rlimit"
    assert value["status"]["code"] == 3


@pytest.mark.slow
@pytest.mark.requirement("OBS-09")
def test_OBS_09_a_live_run_keeps_wish_record_and_sight_apart(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "live"):
        value = holdfast("show", "--json", "live").json()
        assert value["desired"] is None
        assert value["committed"]["state"]["kind"] == "running"
        assert value["observed"]["job"] == value["observed"]["supervisor"] == "alive"
        assert value["reachability"] == {"reach": "here", "host": os.uname().nodename}
        assert "alive (pid" in holdfast("show", "live").out


def test_a_run_of_another_host_is_last_seen(holdfast: Command, runs: str) -> None:
    make_run(runs, state=running(), supervisor=dead_process(), boot="theirs", host="otherbox")
    done = holdfast("show", "digits")
    assert done.code == 0
    assert "otherbox" in done.out
    assert "lost" not in done.out


@pytest.mark.requirement("PROC-15")
def test_PROC_15_a_vanished_run_is_shown_as_lost_and_left_as_it_is(holdfast: Command, runs: str) -> None:
    make_run(runs, state=running(), supervisor=dead_process())
    value = holdfast("show", "--json", "digits").json()
    assert (value["condition"], value["ended"]) == ("lost", False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [wire.STATE, wire.MANIFEST, wire.EXIT, wire.HEARTBEAT, wire.DESIRED, wire.STATUS])
def test_an_unreadable_file_is_named_and_the_rest_is_shown(holdfast: Command, runs: str, name: str) -> None:
    run_dir = make_run(runs, state=ended(Outcome.FAILED, 3))
    path = f"{run_dir if name == wire.DESIRED else wire.attempt_dir(run_dir, 1)}/{name}"
    write(path, b"\x00\xff{")
    done = holdfast("show", "digits")
    assert done.code == 0
    assert path in done.out
    assert "failed" in done.out or name == wire.STATE
    assert [item["path"] for item in holdfast("show", "--json", "digits").json()["unreadable"]] == [path]


def test_an_unreadable_run_json_is_named(holdfast: Command, runs: str) -> None:
    run_dir = make_run(runs, state=ended())
    os.unlink(f"{run_dir}/{wire.RUN}")
    done = holdfast("show", "digits")
    assert done.code == 0
    assert f"{run_dir}/{wire.RUN}: it does not exist" in done.out


def test_findings_that_are_not_passes_are_shown(holdfast: Command, runs: str) -> None:
    run_dir = make_run(runs, state=running(), supervisor=identify_self())
    findings = [
        {"id": "disk.bytes", "level": "pass", "subject": "/", "evidence": "9 GB free", "remedy": ""},
        {"id": "gpu.idle", "level": "unknown", "subject": "card 0", "evidence": "not answered", "remedy": "look"},
    ]
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.PREFLIGHT}", wire.to_bytes({"findings": findings}))
    done = holdfast("show", "digits")
    assert "preflight: 1 pass, 1 unknown" in done.out
    assert "not answered" in done.out
    assert "9 GB free" not in done.out


@pytest.mark.slow
def test_what_a_check_said_of_a_run_that_was_refused_stands_there_once(holdfast: Command) -> None:
    refused = holdfast("run", "--name", "no", "--data", "/no/data", "--input", "/no/input", "--", "true")
    assert refused.code == 78
    shown = holdfast("show", "no").out
    for once in ("/no/data: does not exist", "/no/input: does not exist", "correct `data`", "correct `inputs`"):
        assert shown.count(once) == 1, shown


@pytest.mark.slow
def test_a_size_is_shown_in_the_units_in_which_it_was_asked_for(holdfast: Command) -> None:
    asked = ("--limit-memory", "300MB", "--", "true")
    assert "300 MB" in holdfast("run", "--dry-run", *asked).out
    holdfast("run", "--name", "small", *asked)
    shown = holdfast("show", "small").out
    assert "300 MB by " in shown
    assert "286 MiB" not in shown


def test_control_characters_of_a_job_do_not_reach_the_terminal(holdfast: Command, runs: str) -> None:
    run_dir = make_run(runs, state=running(), supervisor=identify_self())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}", b'{"phase": "\\u001b]0;owned\\u0007\\u202edetser"}')
    done = holdfast("show", "digits")
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out
    assert "owned" in done.out
    assert "\\u202edetser" in done.out


@pytest.mark.slow
def test_attempts_are_chosen(holdfast: Command, runs: str) -> None:
    make_run(runs, state=ended(Outcome.FAILED, 1))
    make_run(runs, state=ended(), attempt=2)
    assert "1 failed, 2 succeeded (this)" in holdfast("show", "digits").out
    assert holdfast("show", "--attempt", "1", "--json", "digits").json()["condition"] == "failed"
    assert holdfast("show", "--attempt", "7", "digits").code == 66


@pytest.mark.slow
@pytest.mark.requirement("OBS-05")
def test_OBS_05_diff_reproduces_the_change(holdfast: Command, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*args: str) -> str:
        identity = ("-c", "user.name=anna", "-c", "user.email=anna@example.org")
        done = subprocess.run(["git", *identity, *args], cwd=repository, capture_output=True, text=True, check=True)
        return done.stdout

    git("init", "-q")
    (repository / "train.py").write_text("print(1)\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    (repository / "train.py").write_text("print(2)\n")
    started = holdfast("run", "--json", "--", "python3", "train.py", cwd=repository)
    assert started.code == 0
    run_dir = started.json()["run_dir"]
    diff = holdfast("show", "--diff", run_dir).out
    assert "+print(2)" in diff
    git("checkout", "-q", "train.py")
    subprocess.run(["git", "apply", "-"], cwd=repository, input=diff, text=True, check=True)
    assert (repository / "train.py").read_text() == "print(2)\n"
    assert holdfast("show", "--diff", "--json", run_dir).json()["git"]["dirty"] is True


def test_no_difference_is_said(holdfast: Command, runs: str) -> None:
    make_run(runs, state=ended())
    done = holdfast("show", "--diff", "digits")
    assert done.code == 0
    assert "no difference was saved" in done.out


def test_a_difference_outside_of_the_run_is_not_read(holdfast: Command, runs: str, tmp_path: Path) -> None:
    run_dir = make_run(runs, state=ended())
    (tmp_path / "secret").write_text("secret words")
    with open(f"{run_dir}/{wire.RUN}") as file:
        text = file.read()
    write(f"{run_dir}/{wire.RUN}", text.replace('"diff": null', '"diff": "../../../secret"'))
    done = holdfast("show", "--diff", "digits")
    assert done.code == 74
    assert "secret words" not in done.out + done.err


@pytest.mark.slow
@pytest.mark.requirement("OBS-04")
def test_OBS_04_the_environment_is_shown_without_secrets(holdfast: Command) -> None:
    secret = {"WANDB_API_KEY": "abc123secretvalue", "HF_TOKEN": "xyz789secretvalue"}
    run_dir = holdfast("run", "--json", "--", "true", env=secret).json()["run_dir"]
    for arguments in (("show", "--env", run_dir), ("show", "--json", run_dir), ("logs", "--events", run_dir)):
        done = holdfast(*arguments)
        assert done.code == 0
        assert "secretvalue" not in done.out
    assert "HOLDFAST_RUN_ID" in holdfast("show", "--env", run_dir).out


@pytest.mark.slow
@pytest.mark.requirement("POST-03")
def test_POST_03_show_says_why_a_run_failed_and_what_to_do(holdfast: Command) -> None:
    run_dir = holdfast("run", "--json", "--", "sh", "-c", "echo no luck today; exit 3").json()["run_dir"]
    done = holdfast("show", run_dir)
    assert "\nfailure\n  class   unknown (possible)\n" in done.out
    assert "its last line: no luck today" in done.out
    assert "holdfast logs -n 20 " in done.out
    failure = holdfast("show", "--json", run_dir).json()["failure"]
    assert (failure["kind"], failure["retry"], bool(failure["action"])) == ("unknown", "never", True)


@pytest.mark.slow
def test_what_refused_a_run_is_told_once_and_its_values_that_are_nothing_are_not(holdfast: Command) -> None:
    run_dir = holdfast("run", "--json", "--", "no-such-program").json()["run_dir"]
    shown = holdfast("show", run_dir).out
    assert shown.count("is in none of") <= 2  # why, and the finding of the preflight
    assert "[]" not in shown


@pytest.mark.slow
def test_what_did_not_fail_has_no_failure(holdfast: Command) -> None:
    run_dir = holdfast("run", "--json", "--", "true").json()["run_dir"]
    assert "\nfailure\n" not in holdfast("show", run_dir).out
    assert holdfast("show", "--json", run_dir).json()["failure"] is None


@pytest.mark.slow
@pytest.mark.requirement("LIB-18")
@pytest.mark.parametrize(
    ("why", "outcome", "words"),
    [
        ("signal", "preempted (exit 143)", "saved step 120, stopped by SIGTERM from outside"),
        ("deadline", "timed_out (exit 124)", "saved step 120 before the deadline (SIGTERM)"),
        ("nonfinite", "failed (exit 143)", "saved step 120, a value was not finite (SIGTERM)"),
        ("operator", "stopped (exit 130)", "saved step 120, asked to stop (SIGTERM)"),
    ],
)
def test_LIB_18_why_a_training_left_and_what_is_durable_are_shown(
    holdfast: Command, why: str, outcome: str, words: str
) -> None:
    record = {"why": why, "detail": "SIGTERM", "checkpoint_step": 120, "saved": True, "traceback": "deep\nin it\n"}
    ended = holdfast("run", "--json", "--", *library("leave", 143, json.dumps(record), "now"))
    run_dir = ended.json()["run_dir"]
    shown = holdfast("show", run_dir).out
    assert outcome in shown
    assert words in shown
    assert "120: a restart goes on from here" in shown
    assert "traceback deep" not in shown, "a traceback is for the failure note"
    value = holdfast("show", "--json", run_dir).json()
    assert value["exit"]["stop"]["checkpoint_step"] == value["committed"]["state"]["stop"]["checkpoint_step"] == 120


@pytest.mark.skipif(
    os.geteuid() != 0 or read_box().pid_namespace != FIRST_NAMESPACE, reason="needs root outside of any container"
)
def test_from_inside_of_its_job_a_run_is_outside_and_not_on_another_box(holdfast: Command) -> None:
    verbs = ("show inner", "diagnose inner", "stop inner", "patrol", "reconcile")
    script = "; ".join(f"{sys.executable} -m holdfast {verb}" for verb in verbs)
    done = holdfast("run", "--name", "inner", "--containment", "pid_namespace", "--", "sh", "-c", f"{script}; exit 0")
    assert done.code == 0, done
    said = done.out + done.err
    assert said.count("outside of this container or job") >= len(verbs), said
    assert "type it outside of this container or job" in said
    for wrong in ("another box", "was begun on another", "--gone", "ssh "):
        assert wrong not in said, said


def test_a_run_that_stands_still_says_so_until_it_goes_on() -> None:
    run_id = "20261120-100000-digits-0a1b"
    stalled: Facts = {"utc": "2026-11-20T10:00:00Z", "event": "stalled", "data": {"what": "no step for 9 min"}}
    found: Facts = {
        "event": "diagnosed",
        "data": {"class": "deadlock", "confidence": "likely", "action": "see the stacks"},
    }
    recovered: Facts = {"event": "recovered", "data": {}}

    def told(*events: Facts) -> dict[str, object]:
        return dict(describe_stall(run_id, events, ended=False))

    assert told(stalled, found) == {
        "seen": "no step for 9 min, at 2026-11-20T10:00:00Z",
        "class": "deadlock (likely)",
        "do": "see the stacks",
        "look": "holdfast diagnose 20261120-100000-digits-0a1b",
    }
    assert "class" not in told(stalled, found, recovered, stalled)
    assert told(stalled, found, recovered) == {}
    assert told() == {}


def test_disks_of_the_last_sample_are_lines_of_their_own(runs: str, holdfast: Command) -> None:
    run_dir = make_run(runs, "20261120-100000-digits-0a1b", state=running(), supervisor=identify_self())
    full = {"mount_point": "/", "free_bytes": 2**30, "total_bytes": 2**33, "full_in_s": 600}
    sample = {"utc": "2026-11-20T10:00:00Z", "disks": [full, {"mount_point": "/net", "unread": "no answer"}]}
    with open(f"{run_dir}/attempts/1/health.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps(sample) + "\n")
    shown = holdfast("show", run_dir).out
    assert "/: 1 GiB of 8 GiB free, full in 10m00s at this rate" in shown
    assert "/net: not known: no answer" in shown


def test_files_that_a_run_left_are_lines_of_their_own(runs: str, holdfast: Command) -> None:
    run_dir = make_run(runs, "20261120-100000-digits-0a1b", ended())
    path = Path(run_dir, "attempts", "1", wire.EXIT)
    left = [{"name": f"f{number}", "bytes": 2048, "modified": 1_795_000_000.5} for number in range(25)]
    path.write_bytes(wire.to_bytes({**json.loads(path.read_bytes()), "artifacts": [*left[:19], "odd", *left[19:]]}))
    lines = holdfast("show", run_dir).out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  artifacts "))
    told = [line.removeprefix("  artifacts").strip() for line in lines[first : first + 21]]
    assert told[:2] == [f"f{number}  2 KiB  {show_times('2026-11-18T11:06:40.500Z')}" for number in (0, 1)]
    assert told[20] == "and 5 more: holdfast files 20261120-100000-digits-0a1b artifacts"


@pytest.mark.slow
def test_a_run_of_the_queue_tells_its_job_where_it_was_placed_and_what_follows(holdfast: Command) -> None:
    run_dir = holdfast("run", "--json", "--", "false").json()["run_dir"]
    plain = holdfast("show", run_dir).out
    assert "holdfast queue" not in plain
    assert "\n  placed" not in plain
    with open(f"{run_dir}/run.json", encoding="utf-8") as file:
        record = json.load(file)
    job = {"queue": "q", "key": "k", "group": "night", "name": "lr=1"}
    write(f"{run_dir}/run.json", json.dumps({**record, "queued": job}))
    write(
        f"{run_dir}/attempts/1/placement.json", wire.to_bytes(AttemptPlacement(alone=True, why="it was out of memory"))
    )
    write(f"{run_dir}/attempts/1/requeue.json", wire.to_bytes(Requeue(RequeueAction.SAME, "it was preempted", 5.0)))
    said = holdfast("show", run_dir).out
    assert "night/lr=1 of the queue  (holdfast queue show night/lr=1)" in said
    assert "on cards that it shares with nobody: it was out of memory" in said
    assert "another attempt after 5.0 s: it was preempted" in said


def test_what_a_run_has_other_than_an_earlier_one_is_shown_alone(holdfast: Command, runs: str) -> None:
    spec = JobSpec("x", ("python", "train.py"), "/w", env={"LR": "1"})
    file = {"role": "entry", "source": "/w/train.py", "sha256": "a" * 64}
    made = {"version": "1", "host": "n1", "snapshot": {"files": [file], "git": {"commit": "1" * 40, "dirty": False}}}
    for number, job, changed in (
        (1, spec, made),
        (2, spec, made),
        (
            3,
            replace(spec, env={"LR": "5"}, command=("python", "train.py", "--x")),
            {
                "version": "1",
                "host": "n2",
                "snapshot": {"files": [{**file, "sha256": "b" * 64}], "git": {"commit": "2" * 40, "dirty": True}},
                "code": {"tree": "c" * 64, "files": 1, "bytes": 9, "commit": "2" * 40, "dirty": True},
            },
        ),
    ):
        make_run(runs, run_id(number), ended())
        path = Path(runs, run_id(number), wire.RUN)
        path.write_text(json.dumps({**json.loads(path.read_text()), "job": wire.encode(job), **changed}))
    same = holdfast("show", run_id(2), "--against", run_id(1))
    assert (same.code, same.out, "has the job and the code of" in same.err) == (0, "", True), same
    other = holdfast("show", run_id(3), "--against", run_id(1))
    assert other.out.splitlines()[-5:] == [
        "env.LR 1 -> 5",
        "entry /w/train.py is another one",
        f"commit {'1' * 12} -> {'2' * 12}, with changes",
        f"code sent - -> {'c' * 12}",
        "host n1 -> n2",
    ], other
    assert "command" in other.out.splitlines()[0]
    found = holdfast("show", run_id(3), "--against", run_id(1), "--json").json()
    assert [change["key"] for change in found["changed"]] == ["command", "env.LR"]
    assert holdfast("show", run_id(3), "--against", "nobody").code == 66


def write_environment(run_dir: str, python: str | None = None, *, library: str = "/lib/h", **variables: str) -> None:
    """The manifest of a run's first attempt, with what every run's environment has of its own."""
    name = os.path.basename(run_dir)
    own = {"HOLDFAST_RUN_DIR": run_dir, "HOLDFAST_RUN_ID": name, "HOLDFAST_ATTEMPT": "1", "HOLDFAST_LIBRARY": library}
    own |= {"MASTER_PORT": name[6:8], "SLURM_JOB_ID": name[6:8], "PYTHONPATH": f"/mine:{library}"}
    own |= {"TORCH_FR_DUMP_TEMP_FILE": f"{run_dir}/attempts/1/flight/rank_", "TMPDIR": f"/scratch/{name}"}
    body = {"python": python, "environment": {**own, **variables}}
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.MANIFEST}", wire.to_bytes(body))


def test_variables_and_the_python_that_are_other_ones_are_shown_and_what_is_of_each_run_is_not(
    holdfast: Command, runs: str
) -> None:
    first, second, third = (make_run(runs, run_id(number), ended()) for number in (1, 2, 3))
    fourth = make_run(runs, run_id(4), ended())
    write_environment(first, "/env/a/bin/python", OMP_NUM_THREADS="4", CUDA_VISIBLE_DEVICES="0")
    write_environment(second, "/env/a/bin/python", OMP_NUM_THREADS="4", CUDA_VISIBLE_DEVICES="0", PWD="/elsewhere")
    write_environment(third, "/env/b/bin/python", OMP_NUM_THREADS="8", NCCL_DEBUG="INFO", library="/lib/i")
    write_environment(fourth, **{f"NCCL_{number:02}": "1" for number in range(25)})
    same = holdfast("show", run_id(2), "--against", run_id(1))
    assert (same.out, "has the job and the code of" in same.err) == ("", True), same
    other = holdfast("show", run_id(3), "--against", run_id(1))
    assert "of the code of" in other.err, "what was not compared is said beside what differs, too"
    assert other.out.splitlines() == [
        "python /env/a/bin/python -> /env/b/bin/python",
        "environment CUDA_VISIBLE_DEVICES 0 -> not set",
        "environment NCCL_DEBUG not set -> INFO",
        "environment OMP_NUM_THREADS 4 -> 8",
    ], other
    told = holdfast("show", run_id(3), "--against", run_id(1), "--json").json()["environment"]
    assert told[1] == {"key": "NCCL_DEBUG", "before": None, "after": "INFO"}
    many = holdfast("show", run_id(4), "--against", run_id(1)).out.splitlines()
    assert (len(many), many[-1]) == (21, "environment: and 7 more (--json has all)")


@pytest.mark.requirement("OBS-06")
def test_OBS_06_the_seed_in_use_and_the_one_that_the_job_states_are_both_said(holdfast: Command, runs: str) -> None:
    for number, stated, used in ((1, 3, 0), (2, 4, 0), (3, 4, 4), (4, None, 7)):
        run_dir = make_run(runs, run_id(number), ended())
        path = Path(run_dir, wire.RUN)
        job = wire.encode(JobSpec("x", ("true",), "/w", seed=stated))
        path.write_text(json.dumps({**json.loads(path.read_text()), "job": job}))
        write(f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}", json.dumps({"step": 1, "seed": used}))
    lines = [
        next(line.split(maxsplit=1)[1] for line in holdfast("show", run_id(number)).out.splitlines() if "seed" in line)
        for number in (1, 3, 4)
    ]
    assert lines == ["0, which the script gave; the job states 3, which was not used", "4", "7"]
    for number, against, words in (
        (2, 1, ["seed 3 -> 4", "both trained with seed 0, whatever their jobs state"]),
        (3, 2, ["seed in use 0 -> 4"]),
        (4, 3, ["seed 4 -> none", "seed in use 4 -> 7"]),
    ):
        assert holdfast("show", run_id(number), "--against", run_id(against)).out.splitlines() == words


@pytest.mark.requirement("LIB-18")
def test_LIB_18_a_stop_that_was_asked_for_is_not_told_as_a_signal_from_outside(holdfast: Command, runs: str) -> None:
    request = StopRequest(StopCause.SIGNAL, "SIGINT")
    left = StopRecord("signal", "SIGTERM", step=56, checkpoint_step=56, saved=True)
    make_run(runs, run_id(1), replace(ended(Outcome.STOPPED, 130), request=request, stop=left))
    shown = holdfast("show", run_id(1)).out
    assert "saved step 56, stopped by SIGTERM, sent by holdfast\n" in shown
