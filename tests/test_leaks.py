"""The search for leaks finds each kind of leak, in a real test run of its own, and leaves nothing of it alive."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leaks import find_processes

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent

# Starts a process that leaves the session of the test, and is adopted by whoever reaps orphans here.
ESCAPE = """
import os, subprocess, sys
def leak():
    code = "import os, sys, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nprint('up', flush=True)\\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read(2)
        child.stdout.close()
"""

LEAKS = {
    "descriptor": ("import os\ndef leak(): os.open('/dev/null', os.O_RDONLY)", "descriptor .* -> /dev/null"),
    "thread": (
        """
import threading
thread = threading.Thread(target=threading.Event().wait, daemon=True, name="forgotten")
def leak(): thread.start()
""",
        "thread forgotten",
    ),
    "child": (
        "import subprocess\nkept = []\ndef leak(): kept.append(subprocess.Popen(['sleep', '60']))",
        "child .*: sleep 60",
    ),
    "escaped": (ESCAPE, "process .*time.sleep"),
}


def run_suite(path: Path, source: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (path / "test_one.py").write_text(source)
    (path / "conftest.py").write_text(
        "import tests.leaks\ntests.leaks.SETTLE_S = 0.2\nfrom tests.conftest import *  # noqa\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        f"--basetemp={path / 'inner'}",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ]
    options = [
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(path),
        "-W",
        "ignore",
        "--override-ini",
        f"pythonpath={ROOT}",
    ]
    return subprocess.run(
        [*command, *options, "test_one.py"],
        cwd=path,
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "kind", ["escaped", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("descriptor", "thread", "child"))]
)
def test_each_kind_of_leak_fails_the_test_that_left_it(kind: str, tmp_path: Path) -> None:
    source, message = LEAKS[kind]
    mark = f"{tmp_path}/is-this-run"
    body = f"import pytest\n{source}\n@pytest.mark.process\ndef test_it(): leak()\n"
    done = run_suite(tmp_path, body, {"LEAK_TEST": mark})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "left behind:" in done.stdout
    assert re.search(message, done.stdout), done.stdout
    assert find_processes(mark) == {}


@pytest.mark.slow
def test_a_working_directory_that_is_gone_is_a_leak_of_the_test_that_was_there_and_of_no_other(tmp_path: Path) -> None:
    body = """
import os, pytest
pytestmark = pytest.mark.process
def test_it(tmp_path):
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
def test_next(): os.getcwd()
"""
    done = run_suite(tmp_path, body, {})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "working directory that is gone" in done.stdout
    assert "2 passed, 1 error" in done.stdout


@pytest.mark.slow
def test_a_clean_test_passes(tmp_path: Path) -> None:
    body = "import pytest, subprocess\n@pytest.mark.process\ndef test_it(): subprocess.run(['true'], check=True)\n"
    done = run_suite(tmp_path, body, {})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_test_without_a_kind_is_refused(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "def test_it(): pass\n", {})
    assert done.returncode == 4
    assert "test_one.py::test_it: none" in done.stdout + done.stderr


def test_the_environment_is_the_tests_own(isolated_environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("HOME", "HOLDFAST_RUNS", "HOLDFAST_LEASE_DIR", "XDG_STATE_HOME"):
        assert os.environ[name] == isolated_environment[name]
        assert Path(os.environ[name]).is_relative_to(tmp_path)
        assert Path(os.environ[name]).is_dir()
    assert not Path(os.environ["HOLDFAST_RULES"]).exists()
