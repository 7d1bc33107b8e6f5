"""The runner of the tests: noise gets a second chance, nothing else does, and what a test does is told by its name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leaks import find_processes
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.process

RUNNER = Path(__file__).parents[2] / "scripts/run_tests.py"

CONFTEST = """
import hypothesis
hypothesis.settings.register_profile("repeatable", derandomize=True)
"""

# Passes in its own second process only.
NOISE = """
import os, pytest

def test_needs_a_second_try():
    assert os.environ.get("HOLDFAST_TEST_PATIENCE") == "4"
"""

SIGNALS = """
import signal

def test_signals_are_those_of_a_login():
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""

TROUBLE = """
import os, resource, signal, subprocess, sys, time

def test_crashes():
    os.kill(os.getpid(), signal.SIGKILL)

def test_hangs():
    while True:
        signal.pause()

def test_takes_all_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytes(1 << 40)

def test_leaves_a_process():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)

def test_is_skipped_the_second_time():
    if "HOLDFAST_TEST_PATIENCE" in os.environ:
        import pytest
        pytest.skip("not this time")
    raise AssertionError

def test_is_well():
    pass
"""


def run(place: Path, *options: str, **files: str) -> tuple[int, str]:
    """Run the runner on some files of tests; answer its status and all that was said."""
    (place / "pytest.ini").write_text("[pytest]\ntimeout = 5\naddopts = -p no:cacheprovider\n")
    for name, text in {"conftest": CONFTEST, **files}.items():
        (place / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(RUNNER), *options],
        cwd=place, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_who_passes_only_alone_is_listed_and_fails_nothing_also_under_nohup(tmp_path: Path) -> None:
    old = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        code, said = run(tmp_path, test_noise=NOISE + SIGNALS)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    assert code == 0, said
    assert "passed only alone: test_noise.py::test_needs_a_second_try\n" in said
    assert said.endswith("2 passed, 0 failed, 0 skipped, 0 not reached; 1 of them passed only alone\n")


@pytest.mark.slow
def test_a_folder_of_its_own_and_a_seed(tmp_path: Path) -> None:
    heavy = tmp_path / "heavy"
    heavy.mkdir()
    (heavy / "test_heavy.py").write_text("import sys\ndef test_alone():\n    assert 'test_noise' not in sys.modules\n")
    code, said = run(tmp_path, "--apart=heavy", "--seed=7", test_noise=NOISE)
    assert code == 0, said
    assert said.startswith("order and examples of seed 7; once more: --seed=7\n")
    assert "Using --randomly-seed=7\n" in said
    assert said.endswith("2 passed, 0 failed, 0 skipped, 0 not reached; 1 of them passed only alone\n")


def test_a_seed_that_is_no_number_is_refused(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--seed=seven")
    assert code == 1
    assert said == "--seed=seven is not a number; for a seed that is drawn: --seed\n"


@pytest.mark.slow
def test_trouble_is_told_by_name_and_stops_nothing_else(tmp_path: Path) -> None:
    code, said = run(tmp_path, test_trouble=TROUBLE, test_noise=NOISE)
    assert code == 1, said
    failed = ["crashes", "hangs", "takes_all_memory", "is_skipped_the_second_time"]
    assert {line for line in said.splitlines() if line.startswith("did not pass: ")} == {
        f"did not pass: test_trouble.py::test_{name}" for name in failed
    }
    assert said.endswith("3 passed, 4 failed, 0 skipped, 0 not reached; 1 of them passed only alone\n")
    assert find_processes(str(tmp_path)) == {}, "the process that a test left has ended with the run"


@pytest.mark.slow
def test_more_failures_than_noise_makes_end_the_run_at_once(tmp_path: Path) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(300))\ndef test_fails(n):\n    assert n < 0\n"
    code, said = run(tmp_path, test_many=many)
    assert code != 0
    assert "once more, alone" not in said
    assert "0 of them passed only alone" in said
    assert "was not reached: test_many.py::test_fails[" in said


@pytest.mark.slow
def test_files_that_cannot_be_read_have_no_second_chance(tmp_path: Path) -> None:
    code, said = run(
        tmp_path, test_import="import nothing_of_that_name\n", test_syntax="def test_x(\n", test_noise=NOISE
    )
    assert code not in (0, 5), said
    assert "once more, alone" not in said
    assert "was not reached: test_import.py\n" in said
    assert "was not reached: test_syntax.py\n" in said


@pytest.mark.slow
def test_no_tests_at_all_is_no_success(tmp_path: Path) -> None:
    assert run(tmp_path, "-k", "nothing_of_that_name", test_noise=NOISE)[0] == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_interruption_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    slow = 'import subprocess\ndef test_slow():\n    subprocess.run(["setsid", "sleep", "1000"])\n'
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_slow.py").write_text(slow)
    command = [sys.executable, str(RUNNER), "-p", "no:cacheprovider"]
    runner = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: "sleep 1000" in find_processes(str(tmp_path)).values(), what="the test is under way")
        os.kill(runner.pid, number)
        said, _ = runner.communicate(timeout=LIMIT_S)
    finally:
        runner.kill()
    assert runner.returncode == 128 + number, said
    assert f"ended by {number.name}" in said
    assert find_processes(str(tmp_path)) == {}
