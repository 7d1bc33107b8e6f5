"""``holdfast restart``: stop, verified empty, the same command again; never two trees."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.restart import restart_run
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.view.observe import list_attempts, observe_run
from holdfast.agent.view.page.dossier import read_dossier
from holdfast.cli.render.run import print_dossier
from holdfast.cli.verbs import restart
from holdfast.desk.caller import CALLER
from holdfast.host.process.processes import identify, identify_self, is_alive
from holdfast.model import wire
from holdfast.model.errors import ResourceBusy, StorageError, UsageError
from holdfast.model.origin import CodeSnapshot, FileCopy
from holdfast.model.run import Running
from tests.cli.conftest import ENTRY
from tests.cli.live import STUBBORN, LiveRun, live_run, started
from tests.desk.route.terminal import answer_at_terminal
from tests.fakes.nvml import GIB
from tests.rundirs import ended, make_run, running, write
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command
    from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.cli


@pytest.mark.gotcha("U4")
@pytest.mark.requirement("PROC-27", "POST-10")
def test_PROC_27_a_live_run_is_stopped_and_started_again_never_both(holdfast: Command, tmp_path: Path) -> None:
    # A directory is a lock that two trees cannot hold; a second one would say so and end.
    body = f"mkdir {tmp_path}/only || exit 9; trap 'rmdir {tmp_path}/only; exit 0' TERM; echo ready; "
    with live_run(holdfast, job=("sh", "-c", body + "while :; do sleep 0.05; done")) as run:
        done = holdfast("restart", "--json", run.run_id)
        assert done.code == 0, done
        assert done.json()["attempt"] == 2
        run.wait_condition("running")
        run.wait_output("ready")
        assert list_attempts(run.run_dir) == (1, 2)
        assert holdfast("stop", run.run_id).code == 0
        assert run.look().attempt == 2
        shown = holdfast("show", "--json", run.run_id).json()
        assert [item["condition"] for item in shown["attempts"]] == ["stopped", "stopped"]


@pytest.mark.slow
@pytest.mark.gotcha("U4")
def test_a_terminal_that_ends_after_the_stop_leaves_no_run_that_is_not_started_again(holdfast: Command) -> None:
    """Also where there is more to be said of the stop, which nobody takes."""
    with live_run(holdfast, "--grace", "2s", job=STUBBORN) as run:
        with started("restart", run.run_id) as restart:
            assert restart.stderr is not None
            assert restart.stdout is not None
            while "TERM sent" not in restart.stderr.readline():
                assert restart.poll() is None
            restart.stderr.close()
            restart.stdout.close()
            restart.send_signal(signal.SIGHUP)
            assert restart.wait(LIMIT_S) == -signal.SIGHUP
            restart.stdout = restart.stderr = None
        assert list_attempts(run.run_dir) == (1, 2)
        run.wait_condition("running")


@pytest.mark.slow
def test_an_ended_run_is_started_again_with_its_artifacts(holdfast: Command) -> None:
    first = holdfast("run", "--json", "--", "sh", "-c", "date >> $HOLDFAST_ARTIFACT_DIR/log; exit 4")
    run_dir = first.json()["run_dir"]
    assert first.code == 4
    again = holdfast("restart", "-f", run_dir)
    assert again.code == 4
    assert "attempt 2" in again.err
    with open(f"{run_dir}/artifacts/log") as file:
        assert len(file.readlines()) == 2


def test_a_restart_of_what_succeeded_writes_over_no_results_unasked(holdfast: Command) -> None:
    begun = holdfast("run", "--json", "--", "sh", "-c", 'echo 1 >> "$HOLDFAST_ARTIFACT_DIR/score"').json()
    run_id, run_dir = begun["run_id"], begun["run_dir"]
    words = f"{run_id} succeeded (attempt 1), and attempt 2 may overwrite its 1 file in artifacts/"
    dry = holdfast("restart", "--dry-run", run_id)
    assert (dry.code, dry.err.count(words)) == (0, 1), dry
    assert f"a new run instead: holdfast run --like {run_id}" in dry.err
    for options in ((), ("--json",), ("-f",), ("--env", "EPOCHS=40")):
        refused = holdfast("restart", *options, run_id)
        assert (refused.code, "nothing was started" in refused.out + refused.err) == (64, True), refused
        assert (list_attempts(run_dir), holdfast("ls", "--state", "live", "--json").json()["runs"]) == ((1,), [])
        assert shlex.join(["holdfast", "restart", "--yes", *options, run_id]) in refused.out + refused.err
    said = holdfast("restart", "--yes", "-f", run_id)
    assert (said.code, said.err.count(words), list_attempts(run_dir)) == (0, 1, (1, 2)), said


def test_a_yes_to_start_again_stops_nothing_that_was_started_meanwhile(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    write(f"{run_dir}/artifacts/score", "1")

    def answer(*_words: object, **_options: object) -> None:
        make_run(isolated_environment["HOLDFAST_RUNS"], state=running(), attempt=2, supervisor=identify_self())

    monkeypatch.setattr(restart, "confirm", answer)
    for consent in (None, "0" * 64):  # at a desk the yes comes with the next call
        monkeypatch.setattr(CALLER, "consent", consent)
        with pytest.raises(ResourceBusy, match="as attempt 2: nothing was stopped"):
            restart._ask_about_results(run_dir, dry_run=False, yes=False, as_json=False)
    monkeypatch.setattr(CALLER, "consent", None)
    restart._ask_about_results(run_dir, dry_run=False, yes=False, as_json=False)  # what lives is not asked about


def test_at_a_place_a_follower_is_not_told_that_it_has_no_terminal(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    write(f"{run_dir}/artifacts/score", "1")
    for name, value in {"place": "gpu1", "follows": True, "words": ("restart", "-f", "digits")}.items():
        monkeypatch.setattr(CALLER, name, value)
    with pytest.raises(UsageError, match="nothing was started: with --follow at a place nobody is asked") as refused:
        restart._ask_about_results(run_dir, dry_run=False, yes=False, as_json=False)
    assert refused.value.hint == "holdfast restart --yes -f gpu1:digits"


@pytest.mark.slow
def test_a_question_about_results_is_asked_at_a_terminal(holdfast: Command, tmp_path: Path) -> None:
    begun = holdfast("run", "--json", "--", "sh", "-c", 'echo 1 >> "$HOLDFAST_ARTIFACT_DIR/score"').json()
    for answer, code, attempts in (("n", 64, (1,)), ("y", 0, (1, 2))):
        ended, text = answer_at_terminal("restart", "-f", begun["run_id"], cwd=tmp_path, answers=[answer])
        assert (ended, list_attempts(begun["run_dir"])) == (code, attempts), text
        assert "attempt 2 may overwrite its 1 file in artifacts/" in text


def test_an_attempt_is_compared_with_the_newest_of_its_own_run(holdfast: Command) -> None:
    run_id = holdfast("run", "--json", "--env", "LR=1", "--", "true").json()["run_id"]
    same = holdfast("show", run_id, "--against", run_id)
    assert (same.code, same.out, same.err) == (0, "", f"holdfast: both are attempt 1 of {run_id}\n")
    assert holdfast("restart", "-f", "--env", "LR=2", run_id).code == 0
    told = holdfast("show", run_id, "--attempt", "1", "--against", run_id)
    assert (told.code, "attempt 2 -> attempt 1" in told.err) == (0, True), told
    assert "LR" in told.out
    assert "2 -> 1" in told.out
    found = holdfast("show", run_id, "--attempt", "1", "--against", run_id, "--json").json()
    assert (found["attempt"], found["against_attempt"]) == (1, 2)
    same = holdfast("show", run_id, "--against", run_id)
    shown = holdfast("show", run_id, "--attempt", "1").out.splitlines()
    assert ["attempts", "1", "succeeded", "(this),", "2", "succeeded"] in [line.split() for line in shown]
    assert f"both are attempt 2 of {run_id}; what an earlier one had: holdfast show {run_id} --attempt N" in same.err
    other = holdfast("run", "--json", "--env", "LR=1", "--", "true").json()["run_id"]
    first = holdfast("show", run_id, "--attempt", "1", "--against", other)
    assert f"attempt 1 of {run_id} has the job and the code of {other}" in first.err
    none = holdfast("show", run_id, "--attempt", "9", "--against", run_id)
    assert (none.code, "has no attempt 9; it has 1, 2" in none.err) == (66, True), none


def test_a_restart_of_a_success_without_results_is_not_asked_about(holdfast: Command) -> None:
    run_id = holdfast("run", "--json", "--", "true").json()["run_id"]
    said = holdfast("restart", "-f", run_id)
    assert (said.code, said.err.count(f"{run_id} succeeded (attempt 1); a new run instead: ")) == (0, 1), said


@pytest.mark.slow
def test_a_restart_that_is_refused_at_its_start_says_so(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "input").touch()
    body = f"trap 'rm {tmp_path}/input; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    with live_run(holdfast, "--input", str(tmp_path / "input"), job=("sh", "-c", body)) as run:
        done = holdfast("restart", run.run_id)
        assert done.code == 78, done
        assert "ended already: failed, exit code 78" in done.err


def test_two_restarts_at_once_give_one_tree(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        command = [*ENTRY, "restart", run.run_id]
        quiet = subprocess.DEVNULL
        both = [subprocess.Popen(command, stdout=quiet, stderr=quiet) for _ in range(2)]
        codes = sorted(process.wait(LIMIT_S) for process in both)
        # Either the second came while the first was at it (busy), or after it, and restarted the second attempt: which
        # had begun, or was stopped (130) before the first could say that it had.
        assert codes in ([0, 75], [0, 0], [0, 130])
        expected = 2 if codes == [0, 75] else 3
        assert list_attempts(run.run_dir)[-1] == expected


@pytest.mark.slow
def test_a_restart_under_way_is_not_disturbed(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    with hold_run_lock(run_dir, what="restart"):
        for verb in ("restart", "adopt"):
            done = holdfast(verb, run_dir)
            assert done.code == 75
            assert "another holdfast" in done.err
    assert list_attempts(run_dir) == (1,)


def write_script(path: Path, version: int, code: int) -> None:
    path.write_text(f"#!/bin/sh\necho version {version}\nexit {code}\n")
    path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.gotcha("U42")
@pytest.mark.requirement("OBS-05", "PROC-20")
def test_a_fixed_shell_script_is_named_and_run_as_it_is_now(holdfast: Command, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    write_script(script, 1, 3)
    run_dir = holdfast("run", "--json", "--", str(script)).json()["run_dir"]
    unchanged = holdfast("restart", "-f", run_dir)
    assert (unchanged.code, "was changed" in unchanged.err) == (3, False)
    write_script(script, 2, 0)
    kept = holdfast("restart", "-f", "--recorded", run_dir)
    assert (kept.code, "version 1" in kept.out) == (3, True), kept
    assert f"{script} was changed: attempt 3 uses what was recorded" in kept.err
    fixed = holdfast("restart", "-f", run_dir)
    assert (fixed.code, "version 2" in fixed.out) == (0, True), fixed
    assert f"{script} was changed: attempt 4 uses it as it is now (as it was: restart --recorded)" in fixed.err
    # What ran is on record, and is what the next attempt is compared with.
    told = json.loads(Path(run_dir, "attempts/4/manifest.json").read_text())["code"]
    assert {item["sha256"] for item in told if item["role"] == "entry"} == {
        hashlib.sha256(script.read_bytes()).hexdigest()
    }
    again = holdfast("restart", "-f", run_dir)
    assert ("version 2" in again.out, "was changed" in again.err) == (True, False), again


@pytest.mark.slow
@pytest.mark.gotcha("U29", "U42")
@pytest.mark.requirement("OBS-05")
def test_a_changed_lock_file_or_program_is_named_and_cannot_be_run_from_a_copy(
    holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lock, program = tmp_path / "requirements.txt", tmp_path / "train.py"
    lock.write_text("torch==2.13.0\n")
    program.write_text("print('version 1')\n")
    run_dir = holdfast("run", "--json", "--", sys.executable, "-I", "-S", "train.py").json()["run_dir"]
    lock.write_text("torch==2.14.0\n")
    program.write_text("print('version 2')\n")
    refused = holdfast("restart", "--recorded", run_dir)
    assert refused.code == 64, refused
    assert f"cp {run_dir}/snapshot/entry/train.py {program}" in refused.err
    assert list_attempts(run_dir) == (1,)
    done = holdfast("restart", "-f", run_dir)
    assert (done.code, "version 2" in done.out) == (0, True), done
    assert f"{lock} was changed" in done.err
    assert f"{program} was changed" in done.err
    assert "--recorded" not in done.err


def git(repository: Path, *words: str) -> str:
    who = ("-c", "user.name=anna", "-c", "user.email=anna@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, "-C", str(repository), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_text(repository: Path, words: str) -> str:
    """Have ``t.py`` print these words, and commit it; the commit."""
    (repository / "t.py").write_text(f"print({words!r})\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", words)
    return git(repository, "rev-parse", "HEAD")


@pytest.mark.slow
@pytest.mark.requirement("OBS-05")
def test_OBS_05_each_attempt_has_the_commit_and_the_changes_that_it_ran(holdfast: Command, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    git(code, "init", "-q")
    command = ("--workdir", str(code), "--", sys.executable, "-I", "-S", "t.py")
    first = commit_text(code, "one")
    run = begun(holdfast, "--name", "pv", *command)
    second = commit_text(code, "two")
    planned = holdfast("restart", "--dry-run", run)
    moved = f"the repository was at {first[:12]} (clean), is at {second[:12]} (clean)"
    assert moved in planned.out, planned
    assert holdfast("restart", "--dry-run", "--json", run).json()["code_moved"] == moved
    again = holdfast("restart", "-f", run)
    assert (again.out, f"{moved}: attempt 2 runs what is there now" in again.err) == ("two\n", True), again
    (code / "t.py").write_text("print('three')\n")
    third = holdfast("restart", "-f", run)
    moved = f"the repository was at {second[:12]} (clean), is at {second[:12]} (with changes)"
    assert (third.out, f"{moved}: attempt 3 runs what is there now" in third.err) == ("three\n", True), third
    assert "the repository" not in holdfast("restart", "-f", run).err
    for attempt, words in (
        (1, f"{first} (main, clean)"),
        (2, f"{second} (main, clean)"),
        (3, f"{second} (main, with changes)"),
    ):
        assert words in holdfast("show", "--attempt", str(attempt), run).out
    assert f"{second} (main, with changes)" in holdfast("show", run).out
    shown = holdfast("show", "--json", run).json()
    assert (shown["git"]["commit"], shown["git"]["dirty"]) == (second, True)
    assert shown["origin"]["snapshot"]["git"]["commit"] == first
    assert "no difference was saved" in holdfast("show", "--attempt", "2", "--diff", run).out
    assert "+print('three')" in holdfast("show", "--attempt", "3", "--diff", run).out
    assert "+print('three')" in holdfast("show", "--diff", run).out
    # The same code began as another run, and other code that is called alike.
    same = holdfast("show", begun(holdfast, "--name", "pv2", *command), "--against", run)
    assert (same.out, "has the job and the code of" in same.err) == ("", True), same
    (code / "t.py").write_text("print('four')\n")
    other = holdfast("show", begun(holdfast, "--name", "pv4", *command), "--against", run)
    assert other.out.splitlines() == [
        f"entry {code}/t.py is another one",
        f"what differs from commit {second[:12]} is another one: show --diff",
    ]
    git(code, "checkout", "-q", "-f", first)
    earlier = holdfast("show", begun(holdfast, "--name", "pv3", *command), "--against", run)
    assert earlier.out.splitlines() == [
        f"entry {code}/t.py is another one",
        f"commit {second[:12]}, with changes -> {first[:12]}",
    ]


@pytest.mark.slow
@pytest.mark.requirement("OBS-05")
def test_OBS_05_a_module_that_was_changed_is_told_by_the_state_of_the_repository(
    holdfast: Command, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    git(code, "init", "-q")
    (code / ".gitignore").write_text("__pycache__\n")
    (code / "names.py").write_text("NAME = 'one'\n")
    (code / "main.py").write_text("import names; print(names.NAME)\n")
    first = commit_text(code, "one")
    run = begun(holdfast, "--workdir", str(code), "--", sys.executable, "-S", "main.py")
    (code / "names.py").write_text("NAME = 'other'\n")
    kept = holdfast("restart", "-f", "--recorded", run)
    moved = f"the repository was at {first[:12]} (clean), is at {first[:12]} (with changes)"
    told = f"{moved}: attempt 2 runs what is there now; only copies are as they were recorded"
    assert (kept.out, told in kept.err) == ("other\n", True), kept
    (code / "names.py").write_text("NAME = 'third'\n")
    again = holdfast("restart", "--dry-run", "--json", run).json()
    at = f"at {first[:12]}"
    assert again["code_moved"] == f"the repository was {at} (with changes), is {at} (with other changes)"


def write_job(tmp_path: Path, **lines: str) -> str:
    """A job file that prints what it is given, and ends with 3."""
    path = tmp_path / "job.yaml"
    keys = {"command": "[sh, -c, 'echo LR=$LR; exit 3']", "env": "{LR: '1'}", **lines}
    path.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    return str(path)


def begun(holdfast: Command, *arguments: str) -> str:
    """Run to the end; the run's directory."""
    return str(holdfast("run", "--json", *arguments).json()["run_dir"])


@pytest.mark.slow
@pytest.mark.requirement("PROC-27")
def test_a_restart_changes_limits_and_keeps_run_checkpoints_and_attempts(holdfast: Command, tmp_path: Path) -> None:
    run_dir = begun(holdfast, write_job(tmp_path, limits="{memory: 100MB}", timeout="1m"))
    Path(run_dir, "checkpoints", "step-7").mkdir()
    done = holdfast("restart", "-f", run_dir, "--limit-memory", "300MB", "--timeout", "2h", "--env", "LR=2")
    assert done.code == 3
    assert "LR=2" in done.out
    assert "changed: limits.memory 100 MB -> 300 MB" in done.err
    assert "begins again" not in done.err
    record = json.loads(Path(run_dir, "run.json").read_text())
    assert record["job"]["limits"]["memory_bytes"] == 100_000_000
    manifest = json.loads(Path(run_dir, "attempts/2/manifest.json").read_text())
    assert {item["name"]: item["asked"] for item in manifest["limits"]} == {"memory": "300000000"}
    assert manifest["plan"]["total_s"] == 7200
    shown = holdfast("show", "--json", run_dir).json()
    assert {item["key"] for item in shown["changed"]} == {"limits.memory_bytes", "timeouts.total_s", "env.LR"}
    assert "limits.memory 100 MB -> 300 MB" in holdfast("show", run_dir).out
    assert holdfast("show", "--attempt", "1", "--json", run_dir).json()["changed"] == []
    # What was changed holds from then on.
    assert "LR=2" in holdfast("restart", "-f", run_dir).out
    assert json.loads(Path(run_dir, "attempts/3/manifest.json").read_text())["plan"]["total_s"] == 7200


def test_a_live_job_is_not_stopped_for_less_memory_than_it_uses(holdfast: Command) -> None:
    job = (sys.executable, "-c", "import time; kept = bytearray(8 << 20); print('ready', flush=True); time.sleep(600)")
    with live_run(holdfast, "--limit-memory", "200MiB", job=job) as run:
        run.wait_output("ready")
        done = holdfast("restart", run.run_id, "--limit-memory", "2MiB")
        assert done.code == 78
        assert re.search(r": it uses [\d.]+ MiB of memory, so a limit of 2 MiB would kill it", done.err), done
        assert (
            f"nothing was stopped; ask for more, or where it will need less, first: holdfast stop {run.run_id}"
            in done.err
        )
        assert run.look().condition == "running"
        # What it uses is no reason where the limit stays, or it has none any more.
        assert holdfast("restart", "--dry-run", run.run_id, "--limit-memory", "none").code == 0


@pytest.mark.slow
def test_an_edited_job_file_is_named_and_taken_up_when_asked(holdfast: Command, tmp_path: Path) -> None:
    path = write_job(tmp_path)
    run_dir = begun(holdfast, path)
    unchanged = holdfast("restart", "-f", run_dir)
    assert "has changed since" not in unchanged.err
    write_job(tmp_path, env="{LR: '5'}", command="[sh, -c, 'echo LR=$LR; exit 4']")
    left = holdfast("restart", "-f", run_dir)
    assert left.code == 3
    assert f"{path} has changed since; --job {path} takes it up" in left.err
    planned = holdfast("restart", "--dry-run", "--job", path, run_dir)
    assert "env.LR 1 -> 5" in planned.out
    assert (
        "it would begin attempt 4; no checkpoint is known here: the command begins as it does by itself" in planned.err
    )
    assert list_attempts(run_dir)[-1] == 3
    taken = holdfast("restart", "-f", "--job", path, run_dir)
    assert taken.code == 4
    assert "LR=5" in taken.out
    assert "has changed since" not in holdfast("restart", "-f", run_dir).err
    assert "has changed since" not in holdfast("restart", "-f", run_dir, "--env", "LR=6").err
    assert "has changed since" not in holdfast("restart", "-f", run_dir).err


@pytest.mark.slow
def test_a_changed_command_runs_from_a_copy_of_its_own(holdfast: Command, tmp_path: Path) -> None:
    scripts = [tmp_path / "a.sh", tmp_path / "b.sh"]
    for number, script in enumerate(scripts):
        script.write_text(f"echo script {number}\n")
    run_dir = begun(holdfast, "--", "sh", str(scripts[0]))
    again = holdfast("restart", "-f", run_dir, "--", "sh", str(scripts[1]))
    assert "script 1" in again.out
    assert "was changed" not in holdfast("restart", "--dry-run", run_dir).out
    scripts[1].write_text("echo edited\n")
    assert f"{scripts[1]} was changed" in holdfast("restart", "--dry-run", run_dir).out
    assert "script 1" in holdfast("restart", "-f", "--recorded", run_dir).out
    assert "edited" in holdfast("restart", "-f", run_dir).out
    refused = holdfast("restart", "--recorded", run_dir, "--", "sh", str(scripts[0]))
    assert (refused.code, "--recorded runs what the last attempt ran" in refused.err) == (64, True)


@pytest.mark.slow
def test_files_that_cannot_be_compared_stop_nothing(holdfast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> None:
        raise StorageError("whether the files were changed cannot be told: no answer within 10 s", hint="look at it")

    monkeypatch.setattr("holdfast.agent.control.restart.find_file_changes_within", hang)
    with live_run(holdfast, job=("sh", "-c", "echo ready; sleep 60")) as run:
        with pytest.raises(StorageError, match="no answer within"):
            restart_run(run.run_dir, environ=os.environ, by="a test", wait_s=10, tell=lambda _view: None)
        assert observe_run(run.run_dir).condition == "running"


REFUSED = (
    (("--env", "HOLDFAST_CHECKPOINT_DIR=/elsewhere"), "holdfast's own"),
    (("--env", "HOLDFAST_RUN_ID=other"), "holdfast's own"),
    (("--name", "other"), "a run keeps its name"),
    (("--env", "API_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789"), "looks like a secret"),
    (("--limit-memory", "much"), "limit-memory"),
)


@pytest.mark.slow
def test_what_a_restart_cannot_change_is_refused_with_words(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    for words, why in REFUSED:
        done = holdfast("restart", run_dir, *words)
        assert (done.code, why in done.err) == (64, True), done
    assert list_attempts(run_dir) == (1,)


@pytest.mark.slow
def test_a_command_that_is_not_there_stops_nothing(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        done = holdfast("restart", run.run_id, "--", "no-such-program")
        assert (done.code, "nothing was stopped" in done.err) == (78, True), done
        assert "no-such-program" in done.err
        gone = holdfast("restart", run.run_id, "--workdir", "/nowhere/at/all", "--json")
        assert (gone.code, gone.json()["error"]["code"]) == (78, "preflight")
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))


NEVER = (
    (("--gpus", "999"), "999 asked for"),
    (("--image", "/nowhere/at/all.sif"), "image"),
    (("--secret", "NOWHERE_TO_BE_FOUND"), "secrets: NOWHERE_TO_BE_FOUND"),
    (("--config", "/nowhere/at/all.yaml"), "config: /nowhere/at/all.yaml: cannot be read"),
    (("--input", "/nowhere/at/all.txt"), "inputs: /nowhere/at/all.txt: does not exist"),
    (("--data", "/nowhere/at/all"), "data: /nowhere/at/all: does not exist"),
    (("--results-to", "/nowhere/at/all"), "results.to: /nowhere/at/all"),
    (("--checkpoint-mirror", "/proc/nowhere"), "checkpoint mirror"),
    (("--disk-min-free", "900TB"), "disk.bytes"),
    (("--caches", "/proc/nowhere"), "used for caches"),
    (("--smoke", "false"), "smoke: false: ended with exit code 1"),
)
"""Changes with which no attempt could start here, and what is said of each."""


@pytest.mark.parametrize(
    ("change", "why"),
    [pytest.param(*item, id=item[0][0], marks=[] if at < 5 else [pytest.mark.slow]) for at, item in enumerate(NEVER)],
)
def test_a_change_that_can_never_start_here_stops_nothing(holdfast: Command, change: tuple[str, ...], why: str) -> None:
    with live_run(holdfast) as run:
        done = holdfast("restart", run.run_id, *change)
        assert (done.code, "nothing was stopped" in done.err, why in done.err) == (78, True, True), done
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))


def read_running(run: LiveRun) -> Running:
    """The state of a run whose job runs."""
    state = run.look().state
    assert state is not None
    assert isinstance(state.state, Running)
    return state.state


def test_cards_of_another_run_stop_nothing_and_its_own_count_as_free(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(3)
    cards = ("--idle-window", "0s", "--min-free", "20GiB", "--gpus")
    with live_run(holdfast, *cards, "1") as other, live_run(holdfast, *cards, "1") as run:
        state = read_running(run)
        (card,), job = state.devices, state.job
        assert job is not None
        pid = job.process.pid
        fake_nvml.run_on(card.index, (pid, 12 * GIB))
        fake_nvml.set(card.index, **{"memory.used": 70 * GIB, "utilisation": 97})
        done = holdfast("restart", run.run_id, "--gpus", "3")
        assert (done.code, "nothing was stopped" in done.err, other.run_id in done.err) == (75, True, True), done
        assert "--gpu-wait 2h" in done.err
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))
        for processes in ([(pid, 12 * GIB)], [(4_194_302, 12 * GIB)], []):
            # Inside a container its own processes have other numbers, or none.
            fake_nvml.run_on(card.index, *processes)
            assert holdfast("restart", run.run_id, "--gpus", "2", "--dry-run").code == 0
        fake_nvml.set(card.index, **{"memory.used": 0, "utilisation": 0})
        assert holdfast("restart", run.run_id, "--gpus", "2").code == 0
        run.wait_condition("running")
        assert len(read_running(run).devices) == 2
        fake_nvml.fail("nvmlInit_v2", 999)
        fake_nvml.fail("nvmlInitWithFlags", 999)
        done = holdfast("restart", run.run_id)
        assert (done.code, "nothing was stopped" in done.err) == (78, True), done
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1, 2))


def test_a_run_that_shares_may_reserve_more_than_is_free_beside_itself(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    shared = ("--gpus", "1", "--share", "--idle-window", "0s", "--min-free", "1GiB")
    with live_run(holdfast, *shared, "--gpu-memory", "50GiB") as run:
        job = read_running(run).job
        assert job is not None
        fake_nvml.run_on(0, (job.process.pid, 50 * GIB))
        fake_nvml.set(0, **{"memory.used": 50 * GIB})
        assert holdfast("restart", run.run_id, "--gpu-memory", "60GiB", "--dry-run").code == 0
        done = holdfast("restart", run.run_id, "--gpu-memory", "90GiB")
        assert (done.code, "nothing was stopped" in done.err) == (78, True), done


def test_who_stands_in_line_for_the_card_of_a_run_is_named_before_it_is_stopped(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    cards = ("--gpus", "1", "--idle-window", "0s")
    with (
        live_run(holdfast, *cards) as run,
        started("run", "--name", "waiter", *cards, "--wait", "10m", "--", "sleep", "600") as waiter,
    ):
        assert waiter.stderr is not None
        while "in line" not in (line := waiter.stderr.readline()):
            assert line
        done = holdfast("restart", run.run_id, "--env", "A=1")
        assert (done.code, "nothing was stopped" in done.err, "stands in line" in done.err) == (75, True, True), done
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))
        done = holdfast("restart", run.run_id, "--gpu-wait", "10m")
        assert (done.code, list_attempts(run.run_dir)) == (0, (1, 2)), done
        run.wait_condition("waiting")
        assert holdfast("stop", "--now", "waiter").code == 0


@pytest.mark.slow
def test_what_changed_on_the_box_since_its_start_stops_nothing(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    with live_run(holdfast, "--gpus", "1", "--idle-window", "0s") as run:
        rules = tmp_path / "rules.toml"
        rules.write_text("[share]\nhours_per_week_max = 0.0000001\n")
        monkeypatch.setenv("HOLDFAST_RULES", str(rules))
        done = holdfast("restart", run.run_id)
        assert (done.code, "nothing was stopped" in done.err, "rules.share" in done.err) == (75, True, True), done
        monkeypatch.delenv("HOLDFAST_RULES")
        assert holdfast("restart", run.run_id, "--dry-run").code == 0
        assert holdfast("gpus", "quarantine", "0", "--reason", "broken").code == 0
        done = holdfast("restart", run.run_id)
        assert (done.code, "nothing was stopped" in done.err, "quarantined" in done.err) == (78, True, True), done
        done = holdfast("restart", run.run_id, "--gpus", "0", "--nodes", "2")
        assert (done.code, "2 nodes" in done.err) == (64, True), done
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))


def test_a_run_of_a_queue_waits_for_cards_and_so_is_restarted_for_more(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "2x24GiB")
    with live_run(holdfast, "--gpus", "1", "--idle-window", "0s"), live_run(holdfast, "--gpus", "1") as run:
        assert holdfast("restart", run.run_id, "--gpus", "2", "--dry-run").code == 75
        path = Path(run.run_dir, wire.RUN)
        path.write_text(json.dumps({**json.loads(path.read_text()), "gpu_wait_s": 600.0}))
        assert holdfast("restart", run.run_id, "--gpus", "2", "--dry-run").code == 0


@pytest.mark.slow
def test_code_that_was_edited_is_tried_again_before_anything_is_stopped(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "try.sh").write_text("echo fine\n")
    with live_run(holdfast, "--smoke", f"sh {tmp_path}/try.sh") as run:
        (tmp_path / "try.sh").write_text("echo broken; exit 3\n")
        done = holdfast("restart", run.run_id)
        assert (done.code, "it said last: broken" in done.err, "nothing was stopped" in done.err) == (78, True, True)
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "whole"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGKILL, False)])
def test_a_smoke_test_of_a_restart_that_is_interrupted_leaves_nothing(
    holdfast: Command, tmp_path: Path, number: signal.Signals, *, whole: bool
) -> None:
    smoke = f"sh -c 'sleep 600 & echo $! > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; wait'"
    with live_run(holdfast) as run, started("restart", run.run_id, "--smoke", smoke) as restart:
        wait_until((tmp_path / "pid").exists, what="the smoke test runs")
        left = identify(int((tmp_path / "pid").read_text()))
        assert left is not None
        (os.killpg if whole else os.kill)(restart.pid, number)
        restart.wait(LIMIT_S)
        wait_until(lambda: not is_alive(left), what="nothing is left of the smoke test")
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))


@pytest.mark.slow
def test_a_dry_run_tries_no_smoke_test(holdfast: Command, tmp_path: Path) -> None:
    with live_run(holdfast) as run:
        words = ("restart", run.run_id, "--smoke", f"touch {tmp_path}/tried")
        assert holdfast(*words, "--dry-run").code == 0
        assert not (tmp_path / "tried").exists()
        assert holdfast(*words).code == 0
        assert (tmp_path / "tried").exists()
        assert run.look().attempt == 2


@pytest.mark.slow
def test_a_run_that_is_over_and_cannot_be_started_again_says_that_it_is_over(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise StorageError("attempts/2: No space left on device", hint="see df")

    monkeypatch.setattr("holdfast.agent.control.restart.next_attempt", refuse)
    with live_run(holdfast) as run:
        with pytest.raises(StorageError, match=f"{run.run_id} is over now, and was not started again: attempts/2"):
            restart_run(run.run_dir, environ=os.environ, by="anna", wait_s=LIMIT_S, tell=lambda _: None)
        assert run.look().over


@pytest.mark.slow
def test_a_working_directory_that_is_gone_stops_nothing_also_with_what_was_recorded(
    holdfast: Command, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    with live_run(holdfast, "--workdir", str(tmp_path / "code")) as run:
        (tmp_path / "code").rename(tmp_path / "moved")
        for words in ((), ("--recorded",)):
            done = holdfast("restart", run.run_id, *words)
            assert (done.code, f"{tmp_path}/code" in done.err, "nothing was stopped" in done.err) == (78, True, True), (
                done
            )
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))


@pytest.mark.slow
def test_a_script_that_is_gone_stops_nothing(holdfast: Command, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("echo ready; while :; do sleep 0.1; done\n")
    with live_run(holdfast, job=("sh", str(script))) as run:
        script.unlink()
        done = holdfast("restart", run.run_id)
        assert (done.code, str(script) in done.err, "nothing was stopped" in done.err) == (78, True, True), done
        assert (run.look().condition, list_attempts(run.run_dir)) == ("running", (1,))
        assert holdfast("restart", run.run_id, "--recorded").code == 0
        assert run.look().attempt == 2


@pytest.mark.slow
def test_a_run_whose_attempts_were_removed_while_its_job_lives_names_the_processes(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"])
    shutil.rmtree(f"{run_dir}/attempts")
    sleeper = subprocess.Popen(["sleep", "600"], env={**os.environ, "HOLDFAST_RUN_ID": os.path.basename(run_dir)})
    try:
        for verb in ("restart", "stop", "adopt"):
            done = holdfast(verb, run_dir)
            assert (done.code, f"live: {sleeper.pid}" in done.err) == (74, True), done
    finally:
        sleeper.kill()
        sleeper.wait()
    assert "nothing was ever started" in holdfast("restart", run_dir).err


@pytest.mark.slow
def test_a_reserved_variable_is_refused_by_a_first_run_too(holdfast: Command) -> None:
    done = holdfast("run", "--env", "HOLDFAST_CHECKPOINT_DIR=/elsewhere", "--", "true")
    assert done.code == 64
    assert "holdfast restart RUN" in done.err


@pytest.mark.slow
def test_a_restart_says_whether_there_is_a_checkpoint(holdfast: Command) -> None:
    run_dir = begun(holdfast, "--", "sh", "-c", "kill -9 $$")
    note = Path(run_dir, "attempts/1/failure.md").read_text()
    assert "begins again, as the command does: no checkpoint is known" in note
    unknown = "attempt 2; no checkpoint is known here: the command begins as it does by itself"
    assert unknown in holdfast("restart", "-f", run_dir).err
    Path(run_dir, "checkpoints", "model.pt").write_text("weights")
    assert "attempt 3, from its last checkpoint\n" in holdfast("restart", "-f", run_dir).err
    note = Path(run_dir, "attempts/3/failure.md").read_text()
    assert f"holdfast restart {Path(run_dir).name} goes on from the last checkpoint" in note, note
    for step in (20, 100):
        Path(run_dir, "checkpoints", f"step-{step}").mkdir()
    assert "attempt 4, from its checkpoint of step 100\n" in holdfast("restart", "--dry-run", run_dir).err
    assert "as attempt 4, from its checkpoint of step 100\n" in holdfast("restart", "-f", run_dir).err


@pytest.mark.slow
def test_time_limits_are_in_show_and_handbook(holdfast: Command) -> None:
    with live_run(holdfast, "--timeout", "1h", "--timeout-run", "30m") as run:
        shown = holdfast("show", run.run_id).out
        assert "timeout 1h00m, until " in shown
        assert "timeouts.run 30m00s, until " in shown
        assert (
            "Time limit: 1h00m for this attempt from its start, 30m00s for the job"
            in holdfast("handbook", run.run_id).out
        )


@pytest.mark.requirement("OBS-05")
def test_an_attempt_is_shown_with_the_files_that_it_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(tmp_path, state=ended())
    record = json.loads(Path(run_dir, wire.RUN).read_text())
    record["snapshot"] = wire.encode(CodeSnapshot((FileCopy("entry", "/w/job.sh", "snapshot/a", "a" * 64),)))
    write(f"{run_dir}/{wire.RUN}", json.dumps(record))
    make_run(tmp_path, state=ended(), attempt=2)
    write(f"{run_dir}/{wire.RUN}", json.dumps(record))
    changed = FileCopy("entry", "/w/job.sh", "snapshot/b", "b" * 64)
    write(f"{wire.attempt_dir(run_dir, 2)}/{wire.MANIFEST}", wire.to_bytes({"code": [changed]}))
    for attempt, digest, other in ((1, "a" * 64, "b" * 64), (2, "b" * 64, "a" * 64)):
        print_dossier(read_dossier(run_dir, attempt), environment=False, every_event=False)
        shown = capsys.readouterr().out
        assert (digest in shown, other in shown) == (True, False)
