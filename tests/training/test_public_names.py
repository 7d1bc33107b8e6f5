"""What `holdfast.training` names is there, whatever file it lives in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import training


@pytest.mark.pure
def test_every_public_name_can_be_had() -> None:
    missing = [name for name in training.__all__ if not hasattr(training, name)]
    assert missing == []
    assert sorted(training._PLACES) == sorted(training.__all__)


@pytest.mark.process
def test_an_older_python_is_told_so() -> None:
    code = "import sys; sys.version_info = (3, 8, 18, 'final', 0); from holdfast.training import run"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: holdfast.training needs Python 3.10 or newer, and this is 3.8 (" in done.stderr


@pytest.mark.process
def test_a_script_that_is_imported_and_begins_no_run_loads_next_to_nothing() -> None:
    """A loader's workers import the script again, each for itself."""
    code = "import sys; from holdfast.training import run; print(*[n for n in sys.modules if n.startswith('holdfast')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["holdfast", "holdfast.training", "holdfast.training.start"]
