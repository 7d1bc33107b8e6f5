"""What fetches something is tried three times, and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

THREE_TRIES = Path(__file__).parents[2] / "scripts/three_tries.sh"
# Fails until the file has as many lines as the second argument says.
FLAKY = 'echo try >> "$1"; [ "$(wc -l < "$1")" -ge "$2" ] || exit 7'


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PAUSE_S": "0"}
    return subprocess.run([THREE_TRIES, *command], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("succeeds_at", "tries", "said", "code"), [(1, 1, 0, 0), (3, 3, 2, 0), (4, 3, 2, 7)])
def test_a_command_is_tried_until_it_succeeds(
    tmp_path: Path, succeeds_at: int, tries: int, said: int, code: int
) -> None:
    done = run("sh", "-c", FLAKY, "sh", str(tmp_path / "tries"), str(succeeds_at))
    assert done.returncode == code
    assert (tmp_path / "tries").read_text() == "try\n" * tries
    assert done.stderr.count("failed (exit 7)") == said


def test_a_command_that_is_not_there_is_tried_once() -> None:
    done = run("no-such-command")
    assert done.returncode == 127
    assert "try 1" not in done.stderr
