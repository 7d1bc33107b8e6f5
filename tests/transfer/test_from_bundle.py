"""Jobs, readers and clock entries of a holdfast that runs from a bundle: it has click and nothing else of anybody's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.host.formats.own_bundle import build_own_command, find_own_bundle
from tests.transfer.boxes import bundle_of
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.transfer.box import Box

pytestmark = pytest.mark.process

JOB = """
import importlib.util, os, sys
import holdfast.training
click = importlib.util.find_spec("click")
print("LIB", os.path.dirname(os.path.dirname(holdfast.training.__file__)))
print("CLICK", click and click.origin)
"""


@pytest.mark.slow
@pytest.mark.requirement("BSSH-01")
@pytest.mark.timeout(300)
def test_a_job_gets_our_library_and_not_our_click(box: Box, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    assert box.facts is not None
    python = box.facts.python
    done = box.run(("run", "--gpus", "0", "--", python, "-S", str(script)), limit_s=LONG_S)
    assert done.code == 0, done.err
    said = dict(line.split(" ", 1) for line in done.out.decode().splitlines() if line.startswith(("LIB", "CLICK")))
    assert said == {"LIB": f"{bundle_of(box)}/lib/holdfast", "CLICK": "None"}
    listed = json.loads(box.run(("ls", "--json"), limit_s=LONG_S).out)
    (run,) = listed["runs"]
    origin = json.loads((bundle_of(box).parents[1] / run["run_id"] / "run.json").read_text())
    assert (origin["bundle"], origin["code"]) == (box.facts.bundle, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["job.yaml", "job.toml"])
def test_a_job_file_that_a_bundle_cannot_read_is_refused_with_what_to_do(box: Box, tmp_path: Path, name: str) -> None:
    job = tmp_path / name
    job.write_text("command: [true]\n" if name == "job.yaml" else 'command = ["true"]\n')
    assert box.facts is not None
    done = box.run(("run", "--dry-run", str(job)), limit_s=LONG_S)
    if name == "job.toml" and not box.facts.python_version.startswith("3.10"):
        assert done.code == 0, done.err
        return
    assert done.code == 64, done.err
    assert b"has no " in done.err
    assert b"--on PLACE" in done.err
    assert b"bug" not in done.err


@pytest.mark.slow
def test_it_can_be_called_by_a_clock(box: Box) -> None:
    """The words that cron and systemd get: no terminal, no connection, an empty environment."""
    package = bundle_of(box) / "lib/holdfast"
    assert find_own_bundle(str(package)) == bundle_of(box).name
    words = build_own_command("--version", package=str(package))
    done = subprocess.run(words, env={}, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout.startswith(b"holdfast ")
    assert build_own_command("ls")[1:] == ("-m", "holdfast", "ls")
    assert (find_own_bundle(), build_own_command("ls")[0]) == (None, sys.executable)


@pytest.mark.slow
def test_BSSH_01_readers_work_from_the_bundle(box: Box) -> None:
    for argv in (("ls",), ("queue", "ls"), ("patrol",), ("gpus", "--json"), ("show", "nobody")):
        done = box.run(argv, limit_s=LONG_S, env={"HOLDFAST_QUEUE": f"{os.environ['HOME']}/queue"})
        assert done.code in {0, 66}, (argv, done.code, done.err)
        assert b"Traceback" not in done.err
