"""``holdfast run`` end to end: a real supervisor, a real job, in the test's own directories."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

SIMULATED = {"HOLDFAST_SIMULATED_GPUS": "1x24GiB"}
FOREVER = ("sh", "-c", "echo up; exec sleep 600")


@pytest.fixture
def root(isolated_environment: dict[str, str]) -> Path:
    return Path(isolated_environment["HOLDFAST_RUNS"])


@pytest.fixture
def stops(holdfast: Command, root: Path) -> Iterator[None]:
    """Stop what a test started detached."""
    yield
    for run in sorted(root.iterdir()):
        holdfast("stop", run.name, "--now")


def only_run(root: Path) -> Path:
    (run,) = root.iterdir()
    return run


@pytest.mark.slow
def test_run_follows_the_job_and_returns_its_code(holdfast: Command, root: Path) -> None:
    ended = holdfast("run", "--name", "three", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert ended.code == 3, ended
    # One log: the job's standard output and standard error, in the order in which they were written.
    assert ended.out == "out\nerr\n"
    run = only_run(root)
    assert f"holdfast: run {run.name}\n" in ended.err
    assert json.loads((run / "attempts/1/exit.json").read_text())["exit_code"] == 3


def test_run_of_a_job_file_resolves_what_stands_in_it(holdfast: Command, root: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(
        "name: filed\ncommand: [sh, -c, 'pwd; echo $GREETING $EXPORTED; cat input']\n"
        "env: {GREETING: hello}\ninputs: [input]\n"
    )
    (tmp_path / "jobs" / "input").write_text("content\n")
    ended = holdfast("run", "jobs/job.yaml", "--env", "GREETING=hi", env={"EXPORTED": "there"})
    assert (ended.code, ended.out) == (0, f"{tmp_path}/jobs\nhi there\ncontent\n"), ended
    job = json.loads((only_run(root) / "run.json").read_text())["job"]
    assert job["env"] == {"GREETING": "hi"}
    assert job["inputs"] == [f"{tmp_path}/jobs/input"]


@pytest.mark.slow
def test_run_as_json_prints_one_object_and_not_the_jobs_output(holdfast: Command, root: Path) -> None:
    ended = holdfast("run", "--json", "--", "sh", "-c", "echo noise; exit 4")
    run = only_run(root)
    assert ended.code == 4, ended
    facts = {"run_id": run.name, "run_dir": str(run), "attempt": 1, "exit_code": 4}
    how = {"condition": "failed", "note": "the job ended with exit code 4", "doubt": "", "failure": "unknown"}
    told = ended.json()
    assert told["action"]
    assert told == {"schema": 1, **facts, **how, "cause": "", "action": told["action"], "place": None}
    assert (run / "attempts/1/output.log").read_text() == "noise\n"


@pytest.mark.slow
@pytest.mark.usefixtures("stops")
def test_detached_run_returns_when_the_job_lives(holdfast: Command, root: Path) -> None:
    ended = holdfast("run", "-d", "--prove", "0.1s", "--", *FOREVER)
    run = only_run(root)
    assert (ended.code, ended.out) == (0, f"{run.name}\n"), ended
    assert ended.err == (
        f"holdfast: running\nholdfast: follow: holdfast attach {run.name}    stop: holdfast stop {run.name}\n"
    )
    assert json.loads((run / "attempts/1/state.json").read_text())["state"]["kind"] == "running"


@pytest.mark.slow
@pytest.mark.usefixtures("stops")
def test_detached_run_as_json(holdfast: Command, root: Path) -> None:
    value = holdfast("run", "-d", "--prove", "0", "--json", "--", *FOREVER).json()
    assert value["run_id"] == only_run(root).name
    assert (value["attempt"], value["exit_code"], value["state"]["kind"]) == (1, None, "running")


@pytest.mark.slow
def test_that_nobody_can_be_told_is_said_at_the_start(holdfast: Command, root: Path) -> None:
    way = ("--notify-command", "/nope/x")
    said = "warning: notify: command: there is no program /nope/x that can be run; look at it, then: holdfast notify"
    ended = holdfast("run", "-d", "--prove", "0", *way, "--", "true")
    assert said in ended.err, ended
    ended = holdfast("run", *way, "--", "sleep", "1")
    assert said in ended.err, ended


@pytest.mark.slow
@pytest.mark.usefixtures("stops")
def test_what_was_asked_for_and_a_name_that_lives_are_warned_of_at_the_start(holdfast: Command) -> None:
    first = holdfast("run", "-d", "--prove", "0", "--name", "dup", "--limit-memory", "900TiB", "--", *FOREVER)
    assert "warning: memory: limits.memory: asks for a limit of 900 TiB" in first.err, first
    assert "named 'dup'" not in first.err
    second = holdfast("run", "-d", "--prove", "0", "--name", "dup", "--", *FOREVER)
    assert "holdfast: 2 runs named 'dup' have not ended: " in second.err, second
    assert "warning: memory" not in second.err


def test_a_job_that_ends_while_it_is_being_proven_is_told_with_its_code(holdfast: Command) -> None:
    ended = holdfast("run", "-d", "--prove", "20s", "--", "sh", "-c", "exit 5")
    assert ended.code == 5, ended
    assert "holdfast: ended already: failed, exit code 5\n" in ended.err
    done = holdfast("run", "-d", "--prove", "20s", "--json", "--", "true")
    assert (done.code, done.json()["exit_code"], done.json()["state"]["outcome"]) == (0, 0, "succeeded")


@pytest.mark.slow
def test_a_command_that_does_not_exist_is_refused_before_it_starts(holdfast: Command, root: Path) -> None:
    for args in (["run"], ["run", "-d"]):
        ended = holdfast(*args, "--", "no-such-program-here")
        assert ended.code == 78, ended
        assert "no-such-program-here" in ended.err
    for run in root.iterdir():
        assert not (run / "attempts/1/status.json").exists()


@pytest.mark.usefixtures("stops")
@pytest.mark.requirement("LEASE-03")
def test_LEASE_03_a_busy_card_is_refused_at_once_and_its_holder_is_named(holdfast: Command, root: Path) -> None:
    first = holdfast(
        "run",
        "-d",
        "--prove",
        "0",
        "--gpus",
        "1",
        "--idle-window",
        "0",
        "--name",
        "first",
        "--",
        *FOREVER,
        env=SIMULATED,
    )
    assert first.code == 0, first
    assert "running on card 0 (" in first.err
    assert "simulated" in first.err.lower()
    holder = only_run(root).name
    second = holdfast("run", "--gpus", "1", "--idle-window", "0", "--name", "second", "--", "true", env=SIMULATED)
    assert (second.code, second.out) == (75, ""), second
    assert holder in second.err


@pytest.mark.slow
@pytest.mark.usefixtures("stops")
def test_a_detached_run_that_stands_in_line_says_who_is_in_front(holdfast: Command, root: Path) -> None:
    assert (
        holdfast("run", "-d", "--prove", "0", "--gpus", "1", "--idle-window", "0", "--", *FOREVER, env=SIMULATED).code
        == 0
    )
    holder = only_run(root).name
    line = holdfast(
        "run", "-d", "--gpus", "1", "--idle-window", "0", "--wait", "1h", "--name", "next", "--", "true", env=SIMULATED
    )
    assert line.code == 0, line
    assert "holdfast: in line for cards: " in line.err
    assert holder in line.err
    (waiting,) = (run for run in root.iterdir() if run.name != holder)
    holdfast("stop", holder, "--now")
    ended = waiting / "attempts/1/exit.json"
    wait_until(ended.exists)
    assert json.loads(ended.read_text())["exit_code"] == 0


@pytest.mark.slow
def test_dry_run_starts_nothing(holdfast: Command, root: Path, isolated_environment: dict[str, str]) -> None:
    ended = holdfast(
        "run",
        "--dry-run",
        "--gpus",
        "1",
        "--idle-window",
        "0",
        "--name",
        "dry",
        "--",
        "sh",
        "-c",
        "exit 3",
        env=SIMULATED,
    )
    assert (ended.code, ended.err) == (0, ""), ended
    assert re.search(r"^  command +sh -c 'exit 3'$", ended.out, re.MULTILINE)
    assert "(simulated)" in ended.out
    assert re.search(r"^  CUDA_VISIBLE_DEVICES +GPU-", ended.out, re.MULTILINE)
    assert ended.out.endswith("nothing was started (dry run)\n")
    assert list(root.iterdir()) == []
    value = holdfast("run", "--dry-run", "--json", "--", "no-such-program-here").json()
    assert value["job"]["command"] == ["no-such-program-here"]
    assert "fail" in {finding["level"] for finding in value["findings"]}


@pytest.mark.slow
def test_dry_run_of_a_job_that_would_fail_is_78(holdfast: Command) -> None:
    assert holdfast("run", "--dry-run", "--", "no-such-program-here").code == 78


@pytest.mark.slow
def test_runs_can_be_kept_elsewhere_and_are_found_again(holdfast: Command, root: Path, tmp_path: Path) -> None:
    ended = holdfast("run", "--runs", "elsewhere", "--name", "far", "--", "true")
    assert ended.code == 0, ended
    run = only_run(tmp_path / "elsewhere")
    assert list(root.iterdir()) == []
    assert holdfast("show", "far", "--json").json()["run_id"] == run.name


@pytest.mark.slow
def test_a_runs_root_that_cannot_be_made_is_an_error(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = holdfast("run", "--runs", "file/runs", "--", "true")
    assert ended.code == 74, ended
    assert f"{tmp_path}/file" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("prove", ["soon", "-1s", ""])
def test_a_bad_proof_is_a_usage_error(prove: str, holdfast: Command, root: Path) -> None:
    ended = holdfast("run", "-d", "--prove", prove, "--", "true")
    assert ended.code == 64
    assert "--prove: " in ended.err
    assert list(root.iterdir()) == []


@pytest.mark.slow
@pytest.mark.requirement("OBS-04")
def test_OBS_04_exported_secrets_reach_the_job_and_are_stored_nowhere(
    holdfast: Command, root: Path, isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    values = {"WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567", "HF_TOKEN": "hf_" + "AbCdEfGhIj" * 3}
    check = f"import os, sys; sys.exit(0 if {set(values)} <= set(os.environ) else 9)"
    ended = holdfast("run", "--", sys.executable, "-c", check, env=values)
    assert ended.code == 0, ended
    assert holdfast("show", only_run(root).name, "--json", env=values).code == 0
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for name, value in values.items():
                assert value.encode() not in content, (name, path)


@pytest.mark.slow
def test_a_secret_on_the_command_line_is_refused_unrepeated(holdfast: Command, root: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    for args in (["--env", f"GH_TOKEN={secret}", "--", "true"], ["--", "true", "--token", secret]):
        ended = holdfast("run", *args)
        assert ended.code == 64, ended
        assert secret not in ended.err + ended.out
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_the_recorded_command_line_is_what_was_typed(holdfast: Command, root: Path) -> None:
    assert holdfast("run", "--seed", "7", "--", "true", "--gpus", "9").code == 0
    text = (only_run(root) / "run.json").read_text()
    typed = json.dumps(["run", "--seed", "7", "--", "true", "--gpus", "9"])[1:-1]
    assert typed in " ".join(text.split()), shlex.quote(text)


@pytest.mark.slow
def test_a_working_directory_that_is_gone_is_an_error(holdfast: Command, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m holdfast run -- true"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, check=False, env=environ, cwd=tmp_path
    )
    assert done.returncode == 74, done.stderr
    assert done.stderr.startswith("holdfast: the current directory cannot be found")


@pytest.mark.slow
def test_the_summary_of_each_failed_run_names_its_failure_note(holdfast: Command) -> None:
    """The note is written after the end is on record; a follower that leaves between the two would not name it."""
    for _ in range(5):
        ended = holdfast("run", "--", "sh", "-c", "exit 3")
        assert ended.code == 3
        note = re.search(r"^  more: (\S+)$", ended.err, re.MULTILINE)
        assert note is not None, ended.err
        assert "\n  why: unknown (possible)" in ended.err
        assert "\n  do: investigate before anything is run again" in ended.err
        assert "class: `unknown`" in Path(note[1]).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_summary_shows_warnings(holdfast: Command) -> None:
    ended = holdfast("run", "--expected", "1h", "--", "sh", "-c", "sleep 0.3")
    assert ended.code == 0
    assert re.search(r"^  warning: .*1h", ended.err, re.MULTILINE), ended.err


@pytest.mark.slow
def test_detached_in_line_names_the_card_by_its_number(holdfast: Command, stops: None) -> None:
    assert holdfast("run", "-d", "--prove", "0", "--gpus", "1", "--", *FOREVER, env=SIMULATED).code == 0
    waiting = holdfast("run", "-d", "--gpus", "1", "--wait", "1h", "--", "true", env=SIMULATED)
    assert waiting.code == 0
    assert "in line for cards: card 0 is held by " in waiting.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "command"), [("train.py", "python3 train.py"), ("go.sh", "bash go.sh"), ("go", "./go")]
)
def test_a_program_in_place_of_a_job_file_gets_the_command_to_type(
    holdfast: Command, tmp_path: Path, name: str, command: str
) -> None:
    (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
    ended = holdfast("run", name)
    assert (ended.code, ended.out) == (65, "")
    assert (
        f"{name}: is a program, not a job file\n  to run it, write the command behind all options: -- {command}\n"
        in ended.err
    )
