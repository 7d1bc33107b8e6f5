"""The documentation that is made from the program is what the program says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cli

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_the_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_verb_is_documented_and_tested() -> None:
    from holdfast.cli.verbs import SUMMARIES

    page = (ROOT / "docs" / "commands.md").read_text()
    tests = "\n".join(path.read_text() for path in sorted((ROOT / "tests" / "cli").glob("test_*.py")))
    verbs = ROOT / "src" / "holdfast" / "cli" / "verbs"
    for verb in SUMMARIES:
        assert (verbs / f"{verb}.py").is_file() or (verbs / verb / "__init__.py").is_file()
        assert f"\n## holdfast {verb}" in page
        assert f'"{verb}"' in tests, f"no test runs holdfast {verb}"
