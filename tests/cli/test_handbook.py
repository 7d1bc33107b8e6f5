"""``holdfast handbook``: made from the present, and what it says can be pasted into a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.live import live_run
from tests.rundirs import dead_process, ended, make_run, running
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def first_command(text: str) -> str:
    """The command to begin with, in a shell that may not know `holdfast`."""
    lines = text.partition("First command:\n\n")[2].partition("\n\n")[0].splitlines()
    return next(line.strip() for line in lines if not line.strip().startswith("alias "))


@pytest.mark.slow
@pytest.mark.requirement("MON-04")
def test_its_resume_command_resumes_when_it_is_pasted(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "job") as run:
        assert first_command(holdfast("handbook", "job").out) == f"holdfast attach {run.run_dir}"
        assert holdfast("stop", "job").code == 0
        text = holdfast("handbook", "job").out
        assert "stopped" in text.partition("First command:")[0]
        command = first_command(text)
        assert command == f"holdfast restart {run.run_dir}"
        assert command in text.partition("## Go on")[2]
        fresh = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]}
        places = {name: os.environ[name] for name in ("HOLDFAST_LEASE_DIR", "HOLDFAST_RULES", "XDG_RUNTIME_DIR")}
        alias = f'holdfast() {{ {sys.executable} -m holdfast "$@"; }}'
        pasted = subprocess.run(
            ["sh", "-c", f"{alias}\n{command}"],
            env={**fresh, **places},
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert pasted.returncode == 0, pasted
        assert run.look().attempt == 2
        run.wait_condition("running")


@pytest.mark.slow
@pytest.mark.requirement("MON-04")
def test_it_tells_how_to_begin_in_each_state(holdfast: Command) -> None:
    root = os.environ["HOLDFAST_RUNS"]
    gone = make_run(root, "20261120-100000-gone-0a1b", running(), supervisor=dead_process())
    assert first_command(holdfast("handbook", gone).out) == "holdfast reconcile"
    done = make_run(root, "20261120-100001-done-0a1b", ended())
    assert first_command(holdfast("handbook", done).out) == f"holdfast show {done}"
    far = make_run(root, "20261120-100002-far-0a1b", running(), host="b17")
    assert first_command(holdfast("handbook", far).out) == f"ssh b17 holdfast show {far}"
    value = holdfast("handbook", "--json", done).json()
    assert value["condition"] == "succeeded"
    assert "holdfast diagnose" in value["text"]


def test_a_run_without_its_record_has_no_handbook(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"])
    os.unlink(f"{run_dir}/run.json")
    done = holdfast("handbook", run_dir)
    assert done.code == 74
    assert "run.json" in done.err
