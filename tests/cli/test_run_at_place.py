"""``holdfast run --on PLACE``, typed at a desk whose place is this machine, without a link in between."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.orders.journal import read_journal
from tests.desk.orders.ordering import PLACE, Desk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def desk(
    tmp_path: Path, isolated_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """A desk with a tree and a place, which has the bundle after the first test."""
    assert isolated_environment
    made = Desk(tmp_path, f"{tmp_path_factory.getbasetemp()}/near-box")
    yield made
    made.clear()


@pytest.mark.slow
def test_a_job_file_runs_there_from_a_copy_of_the_tree_and_is_followed_here(desk: Desk) -> None:
    (desk.tree / "jobs").mkdir()
    (desk.tree / "jobs" / "conf.yaml").write_text("lr: 1\n")
    (desk.tree / "train.py").write_text(
        "import os, sys; print(os.getcwd()); print(open('jobs/conf.yaml').read())\nsys.exit(4)\n"
    )
    (desk.tree / "jobs" / "job.yaml").write_text("command: [python3, train.py]\nworkdir: ..\nconfig: conf.yaml\n")
    done = desk.run("jobs/job.yaml")
    (run_id,) = desk.list_runs()
    assert (done.returncode, done.stdout) == (4, f"{desk.root}/{run_id}/work\nlr: 1\n\n"), done.stderr
    assert f"run {PLACE}:{run_id}" in done.stderr
    record = json.loads((desk.root / run_id / "run.json").read_text())
    assert record["job"]["config"] == str(desk.root / run_id / "work" / "jobs" / "conf.yaml")
    assert record["code"]["files"] == 3
    assert str(desk.tree) not in json.dumps({**record, "argv": []})


@pytest.mark.slow
def test_detached_it_returns_when_the_start_is_proven(desk: Desk) -> None:
    done = desk.run("-d", "--prove", "0", "--json", "--", "sh", "-c", "sleep 1")
    (run_id,) = desk.list_runs()
    answer = json.loads(done.stdout)
    assert (answer["place"], answer["run_id"], answer["fresh"]) == (PLACE, run_id, True)
    assert (done.returncode, answer["state"]["kind"], answer["exit_code"]) == (0, "running", None)


@pytest.mark.slow
def test_what_is_refused_there_before_the_start_is_said_here(desk: Desk) -> None:
    done = desk.run("-d", "--", "/no/such/program")
    assert done.returncode == 78
    assert "/no/such/program" in done.stderr
    # A hint of the box is one for this desk.
    refused = desk.run("-d", "--gpus", "9", "--", "true", environ={"HOLDFAST_SIMULATED_GPUS": "1"})
    assert (refused.returncode, f"`holdfast gpus --on {PLACE}`" in refused.stderr) == (78, True), refused.stderr
    assert done.stdout == f"{PLACE}:{min(desk.list_runs())}\n"


@pytest.mark.slow
@pytest.mark.requirement("POST-07", "VRFY-14")
def test_results_are_copied_there_again_and_gathered_there(desk: Desk, tmp_path: Path) -> None:
    mount, at_box = tmp_path / "mount", {"LASTING": str(tmp_path / "mount")}
    mount.mkdir()
    script = f'echo 42 > "$HOLDFAST_ARTIFACT_DIR/answer"; rmdir {mount}'
    wanted = ("--results-to", "$LASTING/results", "--results-tries", "1")
    done = desk.run("--no-code", "--name", "late", *wanted, "--", "sh", "-c", script, environ=at_box)
    assert (done.returncode, "results were not copied" in done.stderr) == (73, True), done.stderr
    (run_id,) = desk.list_runs()
    mount.mkdir()
    copied = desk.say("results", "copy", f"{PLACE}:{run_id}")
    assert copied.returncode == 0, copied.stderr
    assert (mount / "results" / run_id / "artifacts" / "answer").read_text() == "42\n"
    listed = json.loads(desk.say("ls", "--all", "--json").stdout)["runs"]
    assert [run["condition"] for run in listed if run["run_id"] == run_id] == ["succeeded"]
    gathered = desk.say("results", "collect", f"{PLACE}:{run_id}", "--to", str(tmp_path / "all"))
    assert (gathered.returncode, "1 of 1 complete" in gathered.stdout) == (0, True), gathered


@pytest.mark.slow
def test_a_named_run_is_one_run_however_often_it_is_typed(desk: Desk) -> None:
    named = ("--run-id", "20261122-104501-sh-3fa2", "-d", "--prove", "0")
    for fresh in (True, False):
        done = desk.run(*named, "--json", "--", "sh", "-c", "exit 0")
        assert json.loads(done.stdout)["fresh"] is fresh, done.stderr
    followed = json.loads(desk.run("--json", "--", "sh", "-c", "exit 0").stdout)
    assert (followed["place"], followed["condition"]) == (json.loads(done.stdout)["place"], "succeeded")
    (desk.tree / "train.py").write_text("print('changed')\n")
    done = desk.run(*named, "--", "sh", "-c", "exit 0")
    assert (done.returncode, "another code" in done.stderr) == (73, True), done.stderr


def test_a_dry_run_sends_and_writes_nothing(desk: Desk) -> None:
    done = desk.run("--dry-run", "--", "python3", "train.py")
    assert done.returncode == 0, done.stderr
    assert "python3 train.py" in done.stdout
    assert "1 file" in done.stdout
    assert "nothing was sent" in done.stdout
    told = json.loads(desk.run("--dry-run", "--json", "--", "python3", "train.py").stdout)
    assert (told["place"], told["code"]["files"], told["job"]["workdir"]) == (PLACE, 1, ".")
    assert desk.list_runs() == set()
    assert read_journal(PLACE) == ()


@pytest.mark.slow
def test_no_code_is_sent_where_none_is_wanted(desk: Desk) -> None:
    done = desk.run("--no-code", "--", "sh", "-c", "ls; pwd")
    (run_id,) = desk.list_runs()
    assert (done.returncode, done.stdout) == (0, f"{desk.root}/{run_id}/work\n"), done.stderr
    done = desk.run("--workdir", str(desk.tree), "--", "python3", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert json.loads((desk.root / max(desk.list_runs()) / "run.json").read_text())["code"] is None


@pytest.mark.parametrize(
    ("words", "code", "seen"),
    [
        (("--input", "../outside.txt", "--", "true"), 64, "not in the tree that is sent"),
        (("job.yaml",), 65, "job.yaml:2: data:"),
        (("--runs", "/x", "--", "true"), 64, "--runs and --on do not go together"),
        (("--no-code", "--input", "train.py", "--", "true"), 64, "no code is sent along"),
        (("--run-id", "../x", "--", "true"), 64, "not a run id"),
        (("--on", "nowhere", "--", "true"), 64, "nowhere"),
    ],
)
def test_what_cannot_be_ordered_is_said_before_anything_is_sent(
    desk: Desk, words: tuple[str, ...], code: int, seen: str
) -> None:
    (desk.tree / "job.yaml").write_text("command: [x]\ndata: ../data\n")
    done = desk.run(*words)
    assert (done.returncode, seen in done.stderr) == (code, True), done.stderr
    assert desk.list_runs() == set()


def test_options_of_places_are_for_places(desk: Desk) -> None:
    done = desk.say("run", "--on", "local", "--run-id", "20261122-104501-sh-3fa2", "--", "true")
    assert (done.returncode, "--run-id and --no-code are for a run at a place" in done.stderr) == (64, True)
    assert desk.list_runs() == set()


@pytest.mark.slow
def test_a_tree_that_was_there_and_is_not_any_more_is_sent_again(desk: Desk) -> None:
    assert desk.run("--", "python3", "train.py").returncode == 0
    trees = next(desk.root.glob(".code-*"))
    subprocess.run(["chmod", "-R", "u+w", trees], check=True)
    shutil.rmtree(trees)
    done = desk.run("--", "python3", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
