"""The entry ``remains``: what is only on the box of runs that ended; it changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agent.place.remains import look
from holdfast.model import wire
from tests.rundirs import ended, make_run
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.process
MAIN = f"{os.path.dirname(os.path.abspath(holdfast.__file__))}/agent/__main__.py"
RUN = "20261120-100000-digits-0a1b"
FOREVER = float("inf")


def ask(*words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", MAIN, "remains", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> Path:
    return Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))


def change_run(run_dir: Path, **fields: Any) -> None:
    path = run_dir / wire.RUN
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_runs_that_are_there_are_answered_and_nothing_is_written(run_dir: Path) -> None:
    before = sorted((str(path), path.stat().st_mtime_ns) for path in run_dir.rglob("*"))
    code, answer = ask(RUN, "20261120-100000-none-0a1b")
    assert (code, list(answer["runs"])) == (0, [RUN])
    assert answer["runs"][RUN]["run_dir"] == str(run_dir)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in run_dir.rglob("*")) == before
    assert ask("../x")[0] == 64


def test_offline_runs_of_wandb_are_found_until_they_are_synced(run_dir: Path, tmp_path: Path) -> None:
    inside = run_dir / "work/wandb/offline-run-20261120_1-a"
    inside.mkdir(parents=True)
    beside = tmp_path / "project/wandb/offline-run-20261120_2-b"
    beside.mkdir(parents=True)
    job = json.loads((run_dir / wire.RUN).read_text())["job"]
    change_run(run_dir, job={**job, "workdir": str(tmp_path / "project")})
    assert look(str(run_dir), FOREVER).offline == (str(inside), str(beside))
    (inside / "run-a.wandb.synced").touch()
    (beside / "run-b.wandb.synced").touch()
    assert look(str(run_dir), FOREVER).offline == ()


def test_code_and_results_are_as_the_run_recorded_them(run_dir: Path) -> None:
    code = {"tree": "a" * 16, "files": 1, "bytes": 1, "commit": "c" * 40, "dirty": True}
    job = json.loads((run_dir / wire.RUN).read_text())["job"]
    change_run(run_dir, code=code, job={**job, "results": {"to": "/durable"}})
    found = look(str(run_dir), FOREVER)
    assert (found.tree, found.commit, found.dirty) == ("a" * 16, "c" * 40, True)
    assert (found.results, found.results_state) == ("/durable", "")
    (run_dir / "attempts/1/results.json").write_text('{"state": "failed", "problem": "disk full"}')
    found = look(str(run_dir), FOREVER)
    assert (found.results_state, found.results_problem) == ("failed", "disk full")
    (run_dir / "attempts/1/results.json").write_text("{")
    assert look(str(run_dir), FOREVER).results_state == "unreadable"


@pytest.mark.requirement("VRFY-06")
def test_a_commit_that_is_only_here_is_told_from_one_that_a_remote_has(run_dir: Path, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    found = {"commit": git("rev-parse", "HEAD"), "dirty": False}
    job = json.loads((run_dir / wire.RUN).read_text())["job"]
    change_run(run_dir, snapshot={"git": found}, job={**job, "workdir": str(tmp_path)})
    assert ask(RUN)[1]["runs"][RUN]["pushed"] == ""
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert ask(RUN)[1]["runs"][RUN]["pushed"] == "origin/main"


@pytest.mark.requirement("VRFY-06")
def test_of_the_commits_of_its_attempts_the_one_that_is_only_here_is_told(run_dir: Path, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    commits = list[str]()
    for words in ("one", "two"):
        git("commit", "-q", "--allow-empty", "-m", words)
        commits.append(git("rev-parse", "HEAD"))
    git("update-ref", "refs/remotes/origin/main", "HEAD~1")
    job = json.loads((run_dir / wire.RUN).read_text())["job"]
    change_run(run_dir, snapshot={"git": {"commit": commits[0], "dirty": False}}, job={**job, "workdir": str(tmp_path)})
    found = look(str(run_dir), FOREVER)
    assert (found.commit, found.pushed) == (commits[0], "origin/main")
    (run_dir / "attempts/2").mkdir()
    state = {"commit": commits[1], "dirty": True, "diff": "snapshot/git.diff"}
    (run_dir / "attempts/2/code.json").write_text(json.dumps({"schema": 1, "command": ["true"], "git": state}))
    found = look(str(run_dir), FOREVER)
    assert (found.commit, found.dirty, found.diff, found.pushed) == (commits[1], True, True, "")
    (run_dir / "attempts/2/code.json").write_text("{")
    assert "what code its attempts ran cannot be read" in look(str(run_dir), FOREVER).problem


@pytest.mark.requirement("VRFY-06")
def test_the_state_that_shuts_the_gate_most_is_told_whichever_attempt_had_it(run_dir: Path, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    pushed = git("rev-parse", "HEAD")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "two")
    only_here = git("rev-parse", "HEAD")
    job = json.loads((run_dir / wire.RUN).read_text())["job"]
    lost = {"commit": pushed, "dirty": True, "note": "git diff said more than 4 MiB"}
    change_run(run_dir, snapshot={"git": lost}, job={**job, "workdir": str(tmp_path)})
    for number, state in ((2, {"commit": only_here, "dirty": False}), (3, {"commit": pushed, "dirty": False})):
        (run_dir / f"attempts/{number}").mkdir()
        body = {"schema": 1, "command": ["true"], "git": state}
        (run_dir / f"attempts/{number}/code.json").write_text(json.dumps(body))
    found = look(str(run_dir), FOREVER)
    assert (found.commit, found.dirty, found.diff) == (pushed, True, False), "nothing opens the gate for it"
    copy = {"role": "entry", "source": "/a", "copy": "snapshot/entry/a"}
    change_run(run_dir, snapshot={"git": lost, "files": [copy]})
    assert look(str(run_dir), FOREVER).commit == only_here, "now that one is lost the most"
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    found = ask(RUN)[1]["runs"][RUN]
    assert (found["commit"], found["dirty"], found["pushed"]) == (pushed, False, "origin/main"), (
        "all are safe: the newest"
    )
    (run_dir / "attempts/2/code.json").write_text(json.dumps({"schema": 1, "command": ["true"], "git": {"dirty": "x"}}))
    assert "code.json cannot be read: git.dirty" in look(str(run_dir), FOREVER).problem


def test_what_takes_too_long_or_cannot_be_read_is_said(run_dir: Path) -> None:
    (run_dir / "work/deep").mkdir(parents=True)
    assert "too many directories" in look(str(run_dir), 0.0).problem
    (run_dir / wire.RUN).write_text("{")
    assert "cannot be read" in look(str(run_dir), FOREVER).problem
