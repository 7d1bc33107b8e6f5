"""An exit code 0 that something speaks against: told where it is read, and no licence for what needs the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.each import each

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

# The pause: through a pipe the first line may otherwise come in the middle of the traceback.
RAISES = "import sys, time; print('step 1'); time.sleep(1); raise ValueError('bad batch')"
HANDLES = "import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()\nprint('went on')"
LOGS = "import logging\ntry: 1/0\nexcept Exception: logging.exception('left out')\nlogging.warning('went on')"
KILLS = "import os; os.kill(os.getpid()"
FORKS = "import os, time\nif os.fork() == 0:\n  os.setsid(); time.sleep(60)"
STAYS = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(6)"

DOUBTFUL = {
    "a pipe hides the exit code": (("bash", "-c", f'python3 -c "{RAISES}" | tee log'), "ValueError: bad batch"),
    "the next command hides it": (("bash", "-c", f'python3 -c "{RAISES}"; true'), "ValueError: bad batch"),
    "every loss is lost": (("sh", "-c", "for i in 1 2 3 4; do echo step $i loss: nan; done"), "not finite: nan, nan"),
    "it goes on in the background": (("python3", "-c", FORKS), "left processes behind"),
    "every loss is infinite": (
        ("python3", "-c", "for i in range(4): print({'loss': float('inf')})"),
        "not finite: inf",
    ),
    "in JSON": (("sh", "-c", """for i in 1 2 3 4; do echo '{"loss": Infinity}'; done"""), "not finite: Infinity"),
    "in a bar": (("sh", "-c", "for i in 1 2 3 4; do echo '10/10 [00:01, loss=inf]'; done"), "not finite: inf"),
    "a signal by its short name": (("python3", "-c", "print('got TERM, saving')"), "asked it to leave"),
    "the next command hides a kill": (
        ("bash", "-c", f'python3 -c "{KILLS}, 9)"; true'),
        "a signal killed a part of it",
    ),
    "a pipe hides a crash": (("bash", "-c", f'python3 -c "{KILLS}, 11)" | tee log; true'), "Fatal Python error"),
    "a signal asked it to leave": (("sh", "-c", "echo received SIGTERM, saving; exit 0"), "asked it to leave"),
}
SOUND = {
    "a traceback that was handled": ("python3", "-c", HANDLES),
    "an exception that was logged": ("python3", "-c", LOGS),
    "a test that shows one": ("sh", "-c", f'python3 -c "{RAISES}" 2>&1 || echo; echo 1 failed, 3 passed'),
    "one loss that was not finite": ("sh", "-c", "echo loss 0.3; echo loss nan; echo loss 0.2"),
    "a helper that ran all the time": ("python3", "-c", STAYS),
    "words of a kill": ("sh", "-c", "echo the old run was Killed; echo Killed 3 workers"),
    "nothing at all": ("true",),
}


@pytest.mark.slow
@pytest.mark.requirement("B-50")
@each("name", list(DOUBTFUL))
def test_a_success_in_doubt_is_told_and_stays_a_success(name: str, holdfast: Command) -> None:
    command, why = DOUBTFUL[name]
    done = holdfast("run", "--json", "--", *command)
    assert done.code == 0, done
    followed = done.json()
    assert why in followed["doubt"]
    assert followed["condition"] == "succeeded"
    assert "in doubt" in holdfast("show", followed["run_id"]).out
    waited = holdfast("wait", followed["run_id"])
    assert (waited.code, f"{followed['run_id']}: in doubt: " in waited.err, why in waited.err) == (0, True, True)
    listed = {run["run_id"]: run for run in holdfast("ls", "--json").json()["runs"]}
    assert listed[followed["run_id"]]["failure"] in ("suspicious_finish", "diverged")
    assert why in holdfast("diagnose", followed["run_id"]).out
    exit_record = json.loads(Path(followed["run_dir"], "attempts/1/exit.json").read_text())
    assert (exit_record["outcome"], exit_record["exit_code"]) == ("succeeded", 0)


@pytest.mark.slow
def test_who_followed_a_success_in_doubt_hears_of_it_with_what_to_do(holdfast: Command) -> None:
    done = holdfast("run", "--", "sh", "-c", "for i in 1 2 3; do echo loss nan; done")
    assert done.code == 0
    assert "in doubt: diverged (likely): the last losses that it printed are not finite" in done.err
    assert "  do: judge it yourself" in done.err


@pytest.mark.slow
@each("name", list(SOUND))
def test_what_only_looks_like_it_is_no_doubt(name: str, holdfast: Command) -> None:
    done = holdfast("run", "--json", "--", *SOUND[name])
    assert done.code == 0, done
    assert done.json()["doubt"] == ""
    assert not json.loads(Path(done.json()["run_dir"], "attempts/1/exit.json").read_text())["failure_class"]
