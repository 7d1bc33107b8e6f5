"""``python -m holdfast`` in an interpreter that has the library and not the command line's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cli

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_without_click_it_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "holdfast", "ls"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("holdfast: the command line needs click")
