"""The list of the slowest tests, from a real run's XML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slowest.py"
TESTS = """import time
import pytest
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_it(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
"""


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pytest leaves of two tests."""
    directory = tmp_path_factory.mktemp("times")
    (directory / "test_made.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml=deep/test.xml",
        "-c",
        "/dev/null",
    ]
    subprocess.run([*command, "--rootdir=.", "."], cwd=directory, check=True, capture_output=True, timeout=60)
    return directory / "deep" / "test.xml"


def list_slowest(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_slowest_come_first(times: Path) -> None:
    done = list_slowest("--most", 1, times)
    assert done.returncode == 0
    assert "WARNING" not in done.stdout
    head, only = done.stdout.splitlines()
    assert head.startswith("test: 2 tests, ")
    assert "test_it[0.2]" in only


@pytest.mark.slow
def test_only_a_run_that_took_too_long_is_spoken_of_and_fails_nothing(times: Path) -> None:
    quiet, loud = list_slowest("--over", 1000, times), list_slowest("--over", 0.1, times)
    assert (quiet.returncode, quiet.stdout) == (0, "")
    assert loud.returncode == 0
    assert loud.stdout.startswith("WARNING: the tests took ")
    assert loud.stdout.count("test_it[") == 2


def test_what_is_no_list_of_times_is_said_in_a_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.xml"
    for text in ("<x", "<x/>"):
        broken.write_text(text)
        done = list_slowest(broken)
        assert done.returncode == 1
        assert done.stderr.startswith(f"slowest: {broken}: ")
    assert list_slowest().returncode == 1
    assert list_slowest(tmp_path / "none").returncode == 1
