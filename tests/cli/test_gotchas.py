"""Gotchas that only whole commands show: which program ran, which code ran, on how many cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import ENTRY
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.mark.slow
@pytest.mark.gotcha("U5")
def test_the_program_is_the_one_that_the_path_of_the_launch_names(holdfast: Command, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "interpreter"
        program.write_text(f"#!/bin/sh\necho {name}\n")
        program.chmod(0o755)
    path = f"{tmp_path}/second:{tmp_path}/first:{os.environ['PATH']}"
    done = holdfast("run", "--json", "--", "interpreter", env={"PATH": path})
    assert done.code == 0, done
    with open(f"{done.json()['run_dir']}/attempts/1/output.log", encoding="utf-8") as file:
        assert file.read() == "second\n"
    with open(f"{done.json()['run_dir']}/attempts/1/preflight.json", encoding="utf-8") as file:
        findings = json.load(file)["findings"]
    (said,) = (finding for finding in findings if finding["id"] == "command")
    assert said["subject"] == f"{tmp_path}/second/interpreter"
    gone = holdfast("run", "--", "interpreter", env={"PATH": os.environ["PATH"]})
    assert gone.code == 78
    assert "is in none of PATH" in gone.err


@pytest.mark.slow
@pytest.mark.gotcha("U42")
def test_the_code_that_ran_is_shown_after_the_code_has_changed(holdfast: Command, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=anna", "-c", "user.email=anna@example.org")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, capture_output=True, check=True)

    script = tmp_path / "train.py"
    script.write_text("print(0)\n")
    git("init", "-q")
    git("add", "train.py")
    git("commit", "-q", "-m", "first")
    script.write_text("print('the old code')\n")
    ran = holdfast("run", "--json", "--", "python3", "train.py", cwd=tmp_path)
    assert ran.code == 0, ran
    script.write_text("print('with the fix')\n")
    shown = holdfast("show", "--diff", ran.json()["run_dir"]).out
    assert "+print('the old code')" in shown
    assert "with the fix" not in shown


@pytest.mark.slow
@pytest.mark.gotcha("SLURM3")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="fewer cores than one's own need two of them")
def test_a_step_with_fewer_cores_gets_fewer_threads(isolated_environment: dict[str, str]) -> None:
    job = ("sh", "-c", "echo threads $OMP_NUM_THREADS")
    core = min(os.sched_getaffinity(0))
    narrow = f"import os, sys; os.sched_setaffinity(0, [{core}]); os.execv(sys.argv[1], sys.argv[1:])"
    environ = {**os.environ, **isolated_environment}
    environ = {name: value for name, value in environ.items() if not name.endswith("_NUM_THREADS")}

    def threads(*before: str) -> str:
        command = [*before, *ENTRY, "run", "--", *job]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert done.returncode == 0, done
        return done.stdout

    assert "threads 1\n" not in threads()
    assert "threads 1\n" in threads(sys.executable, "-c", narrow)


@pytest.mark.requirement("LOC-01")
def test_LOC_01_detaching_needs_no_other_program(holdfast: Command, tmp_path: Path) -> None:
    job = (sys.executable, "-S", "-c", f"open({str(tmp_path / 'done')!r}, 'w').close()")
    started = holdfast("run", "-d", "--json", "--", *job, env={"PATH": str(tmp_path / "none")})
    assert started.code == 0, started
    assert holdfast("wait", started.json()["run_id"]).code == 0
    assert (tmp_path / "done").exists()
