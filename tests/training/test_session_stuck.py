"""A disk that stops answering keeps no run from leaving in the time that it is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast import training
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal, sys
from holdfast import training
with training.run(sys.argv[1], every=5) as run:
    run.track({"a": 1})
    run.on_stop(lambda why: print("told", why, flush=True))
    for step in run.steps(10**9):
        if step == 7:
            run._checkpoints.saver.wait(None)
            writer = run._checkpoints.saver._process.pid
            print(writer, flush=True)
            os.kill(writer, signal.SIGSTOP)
        if step == 11:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
@pytest.mark.requirement("LIB-03")
def test_a_writer_that_stands_still_does_not_keep_a_run_from_leaving_with_143(tmp_path: Path) -> None:
    """As on a mount that does not answer any more. Its save is given up, and the one before it continues."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "c")]
    environ = {**os.environ, "HOLDFAST_GRACE": "4"}
    # Into files: the writer, which outlives the run, would keep a pipe open.
    with open(tmp_path / "out", "w+") as out, open(tmp_path / "err", "w+") as err:
        try:
            code = subprocess.run(command, env=environ, stdout=out, stderr=err, check=False, timeout=LIMIT_S).returncode
        finally:
            out.seek(0)
            lines = out.read().split("\n")
            os.kill(int(lines[0]), signal.SIGKILL)
        err.seek(0)
        words = err.read()
    assert (code, lines[1]) == (143, "told signal"), words
    assert "the one before it is still under way" in words
    assert training.latest(tmp_path / "c") == str(tmp_path / "c" / "step-5")
