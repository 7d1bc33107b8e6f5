"""The number of tests in each tier is held: one test less is told, and so is one more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.count_tests import compare, find_tier, read_tiers

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / "scripts/count_tests.py"


def test_a_test_belongs_to_the_first_tier_that_it_is_marked_for() -> None:
    assert find_tier(["process", "requirement"]) == "gate"
    assert find_tier(["slow", "process"]) == "slow"
    assert find_tier(["slow", "soak"]) == "soak"


@pytest.mark.parametrize(("torch", "code"), [("skip", 0), ("torch==2.13.0", 1)])
def test_a_file_may_skip_itself_only_where_torch_was_left_out_on_purpose(tmp_path: Path, torch: str, code: int) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / "test_well.py").write_text("def test_x(): ...\n")
    (tmp_path / "test_left_out.py").write_text("import pytest\npytest.importorskip('no_such_library')\n")
    environment = {**os.environ, "TORCH": torch}
    done = subprocess.run(
        [sys.executable, SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "test_left_out.py: Skipped: could not import 'no_such_library'" in done.stdout
    assert "test_well.py" not in done.stdout


@pytest.mark.slow
def test_a_file_that_ends_the_process_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / "conftest.py").write_text("raise SystemExit(0)\n")
    done = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    assert "not all tests can be collected: a file ended the process" in done.stdout


def test_more_and_fewer_are_told_apart() -> None:
    assert compare({"gate": 3, "slow": 1}, {"gate": 3, "slow": 1}) == []
    (fewer,) = compare({"gate": 2, "slow": 1}, {"gate": 3, "slow": 1})
    assert "gate: 2 tests, 3 in tests/tiers.tsv" in fewer
    assert "say why" in fewer
    (more,) = compare({"gate": 4, "slow": 1}, {"gate": 3, "slow": 1})
    assert "say why" not in more
    (unknown,) = compare({"gate": 4}, {"gate": 4, "gone": 3})
    assert unknown.startswith("gone: 0 tests, 3 in")


def test_the_list_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiers.tsv"
    path.write_text("# words\ntier\ttests\ngate\t7\nslow\t0\n")
    assert read_tiers(path) == {"gate": 7, "slow": 0}
    path.write_text("tier\ttests\ngate seven\n")
    with pytest.raises(ValueError, match="a tier and a number"):
        read_tiers(path)
