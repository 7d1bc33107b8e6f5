"""The runner of the tests: noise gets a second chance, nothing else does, and what a test does is told by its name."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.run_tests import split
from tests.leaks import find_processes
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "scripts/run_tests.py"

CONFTEST = """
import hypothesis
pytest_plugins = ["tests.limits"]
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

def test_kills_its_process_group():
    os.killpg(0, signal.SIGKILL)

def test_hangs():
    while True:
        signal.pause()

def test_takes_all_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytes(1 << 40)

def test_fails_and_leaves_a_process():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    raise AssertionError

def test_fails_and_blocks_when_it_is_torn_down(request):
    request.addfinalizer(signal.pause)
    raise AssertionError

def test_is_skipped_the_second_time():
    if "HOLDFAST_TEST_PATIENCE" in os.environ:
        import pytest
        pytest.skip("not this time")
    raise AssertionError

def test_is_well():
    pass
"""


LEFT = """
import subprocess

def test_leaves_a_process():
    subprocess.Popen(["sleep", "1001"], start_new_session=True)

def test_leaves_a_process_of_which_nobody_can_say_whose_it_is():
    subprocess.Popen(["sleep", "1002"], start_new_session=True, env={})
"""


def write(place: Path, **files: str) -> None:
    """Write some files of tests."""
    ini = f"[pytest]\ntimeout = 3\naddopts = -p no:cacheprovider\npythonpath = {ROOT}\n"
    (place / "pytest.ini").write_text(ini)
    for name, text in {"conftest": CONFTEST, **files}.items():
        (place / f"{name}.py").write_text(text)


def run(place: Path, *options: str, variables: Mapping[str, str] | None = None, **files: str) -> tuple[int, str]:
    """Run the runner on some files of tests; answer its status and all that was said."""
    write(place, **files)
    done = subprocess.run(
        [sys.executable, str(RUNNER), *options],
        cwd=place, env={**os.environ, **(variables or {})}, capture_output=True, text=True, timeout=4 * LIMIT_S,
        check=False,
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
@pytest.mark.timeout(240)
def test_trouble_is_told_by_name_and_stops_nothing_else(tmp_path: Path) -> None:
    code, said = run(tmp_path, test_trouble=TROUBLE, test_noise=NOISE)
    assert code == 1, said
    failed = [name for name in re.findall(r"def (test_\w+)", TROUBLE) if name != "test_is_well"]
    assert sorted(line for line in said.splitlines() if line.startswith("did not pass: ")) == sorted(
        f"did not pass: test_trouble.py::{name}" for name in failed
    )
    assert said.endswith(f"2 passed, {len(failed)} failed, 0 skipped, 0 not reached; 1 of them passed only alone\n")
    assert find_processes(str(tmp_path)) == {}, "the process that a test left has ended with the run"


@pytest.mark.slow
def test_a_process_that_outlives_the_tests_fails_the_run(tmp_path: Path) -> None:
    code, said = run(tmp_path, test_left=LEFT)
    assert code == 1, said
    told = re.findall(r"^left behind: process \d+ of (.*)$", said, re.MULTILINE)
    assert sorted(told) == ["an unknown test: sleep 1002", "test_left.py::test_leaves_a_process: sleep 1001"]
    assert said.endswith("2 passed, 0 failed, 0 skipped, 0 not reached; 0 of them passed only alone\n")
    assert find_processes(str(tmp_path)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ("def test_x():\n    os.kill(os.getpid(), signal.SIGSTOP)\n", "under way: test_blocks.py::test_x"),
        ("signal.pause()\n", "being read: test_blocks.py\n0 passed, 0 failed, 0 skipped, 1 not reached;"),
    ],
    ids=["stopped", "at-import"],
)
def test_a_run_of_which_nothing_is_heard_ends_by_name(tmp_path: Path, blocks: str, told: str) -> None:
    code, said = run(tmp_path, "--hang=5", test_blocks=f"import os, signal\n{blocks}", test_well="def test_y(): pass")
    assert code == 124, said
    assert "nothing was heard of any test for 6 s" in said
    assert told in said
    assert find_processes(str(tmp_path)) == {}


@pytest.mark.slow
def test_more_failures_than_noise_makes_end_the_run_at_once(tmp_path: Path) -> None:
    # Those that are not for want of time are told before the others have had theirs.
    many = """
import pytest, time

@pytest.mark.parametrize("n", range(600))
def test_fails(n):
    assert n > 20
    time.sleep(1)
"""
    code, said = run(tmp_path, test_many=many)
    assert code == pytest.ExitCode.INTERRUPTED, said
    assert "more than 15 tests failed" in said
    assert "once more, alone" not in said
    assert "0 of them passed only alone" in said
    assert "not reached: test_many.py::test_fails[" in said


@pytest.mark.slow
def test_files_that_cannot_be_read_have_no_second_chance(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        test_import="import nothing_of_that_name\n",
        test_syntax="def test_x(\n",
        test_well="def test_y(): pass",
    )
    assert code == pytest.ExitCode.INTERRUPTED, said
    assert "once more, alone" not in said
    assert "unreadable: test_import.py\n" in said
    assert "unreadable: test_syntax.py\n" in said
    assert "not reached: test_well.py::test_y\n" in said, "none of the others is begun"


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["import os; os._exit(0)", "raise SystemExit(0)", "import os; os.abort()"])
@pytest.mark.parametrize("folder", ["", "heavy"])
def test_a_file_that_ends_its_process_while_it_is_read_is_told_and_no_success(
    tmp_path: Path, leave: str, folder: str
) -> None:
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy/test_heavy.py").write_text("def test_alone(): pass\n")
    name = f"{folder}/test_leaves.py".lstrip("/")
    (tmp_path / name).write_text(leave)
    code, said = run(tmp_path, "--apart=heavy", test_well="def test_y(): pass")
    assert code == pytest.ExitCode.INTERNAL_ERROR, said
    assert f"being read: {name}\n" in said


@pytest.mark.slow
def test_a_start_that_ends_its_process_is_no_success(tmp_path: Path) -> None:
    code, said = run(tmp_path, conftest=f"{CONFTEST}\nraise SystemExit(0)\n", test_well="def test_y(): pass")
    assert code == pytest.ExitCode.INTERNAL_ERROR, said
    assert "left with status 0" in said


@pytest.mark.slow
def test_a_run_that_only_looks_is_no_success_and_the_options_of_other_runs_do_not_count(tmp_path: Path) -> None:
    assert run(tmp_path, "--collect-only", test_well="def test_y(): pass")[0] == pytest.ExitCode.INTERNAL_ERROR
    code, said = run(tmp_path, variables={"PYTEST_ADDOPTS": "--collect-only"}, test_well="def test_y(): pass")
    assert code == 0, said
    assert "1 passed" in said


@pytest.mark.slow
def test_without_workers_it_is_the_same(tmp_path: Path) -> None:
    code, said = run(tmp_path, "-n", "0", test_well="def test_y(): pass", test_bad="def test_z(): assert False")
    assert code == 1, said
    assert said.endswith("1 passed, 1 failed, 0 skipped, 0 not reached; 0 of them passed only alone\n")


def test_paths_are_run_once_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("light", "heavy", "heavier"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_x.py").touch()
    light, heavy, apart = "light/test_x.py::test_y", "./heavy/test_x.py", ["heavy"]
    assert split(["-q"], []) == [["-q"]]
    assert split(["-q"], apart) == [["-q", "--ignore=heavy"], ["-q", "heavy"]]
    assert split(["-q", light, heavy], apart) == [["-q", light, "--ignore=heavy"], ["-q", heavy]]
    assert split(["-q", light], apart) == [["-q", light, "--ignore=heavy"]]
    assert split(["-q", "heavier"], apart) == [["-q", "heavier", "--ignore=heavy"]]
    assert split(["-q", heavy], apart) == [["-q", heavy]]
    assert split(["-q", "."], apart) == [["-q", ".", "--ignore=heavy"], ["-q", "heavy"]]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--apart=heavy")
    assert code == 1
    assert said == "--apart=heavy is not a folder\n"


def test_the_order_of_sets_is_that_of_the_seed(tmp_path: Path) -> None:
    one = "import os\ndef test_x():\n    assert os.environ['PYTHONHASHSEED'] == '%s'\n"
    assert run(tmp_path, test_one=one % 0)[0] == 0
    code, said = run(tmp_path, "--seed=7", test_one=one % 7)
    assert code == 0, said


@pytest.mark.slow
def test_no_tests_at_all_is_no_success(tmp_path: Path) -> None:
    assert run(tmp_path, "-k", "nothing_of_that_name", test_noise=NOISE)[0] == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_interruption_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path, test_slow='import subprocess\ndef test_x():\n    subprocess.run(["setsid", "sleep", "1000"])\n')
    command = [sys.executable, str(RUNNER), "--timeout=0"]
    runner = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: "sleep 1000" in find_processes(str(tmp_path)).values(), what="the test is under way")
        os.kill(runner.pid, number)
        said, _ = runner.communicate(timeout=LIMIT_S)
    finally:
        runner.kill()
    assert runner.returncode == 128 + number, said
    assert f"ended by {number.name}" in said
    assert "under way: test_slow.py::test_x\n" in said
    assert find_processes(str(tmp_path)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("hangs", ["time.sleep(1000)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_pytest_and_its_workers_end_with_a_runner_that_was_killed(tmp_path: Path, hangs: str) -> None:
    write(
        tmp_path,
        test_slow=f"import os, pathlib, signal, time\ndef test_x():\n    pathlib.Path('on').touch()\n    {hangs}\n",
    )
    runner = subprocess.Popen([sys.executable, str(RUNNER), "--timeout=0"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "on").exists, what="the test is under way")
    finally:
        runner.kill()
        runner.wait()
    wait_until(lambda: not find_processes(str(tmp_path)), what="pytest and its workers end")
