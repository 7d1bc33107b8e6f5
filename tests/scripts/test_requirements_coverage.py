"""The coverage list: what counts as covered, what does not, and what a misspelt id gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "requirements_coverage.py"

LIST = """id\trank\twhat
LEASE-03\tMUST\tA card stays busy
LEASE-04\tMUST\tThe record is complete
PROC-05\tSHOULD\tThe exit status is real
B-20a\tMUST\tNo reset
"""


def run(root: Path, source: str, *options: str, rows: str = LIST) -> subprocess.CompletedProcess[str]:
    (root / "list.tsv").write_text(rows)
    (root / "tests").mkdir()
    (root / "tests" / "test_some.py").write_text(source)
    command = [sys.executable, str(SCRIPT), "--list", str(root / "list.tsv"), "--tests", str(root / "tests")]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def covered(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {i for i, row in json.loads(done.stdout)["requirements"].items() if row["tests"]}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_LEASE_03_stays(): ...", {"LEASE-03"}),
        ("def test_LEASE_03_LEASE_04_both(): ...", {"LEASE-03", "LEASE-04"}),
        ("def test_B_20a_never(): ...", {"B-20a"}),
        ("async def test_PROC_05(): ...", {"PROC-05"}),
        ("@pytest.mark.requirement('LEASE-03', 'PROC-05')\ndef test_x(): ...", {"LEASE-03", "PROC-05"}),
        ("class TestX:\n    def test_LEASE_03_x(self): ...", {"LEASE-03"}),
        ("@pytest.mark.requirement('B-20a')\nclass TestX:\n    def test_x(self): ...", {"B-20a"}),
        ("pytestmark = [pytest.mark.pure, pytest.mark.requirement('LEASE-04')]\ndef test_x(): ...", {"LEASE-04"}),
        ("pytestmark = pytest.mark.requirement('LEASE-04')", set()),
        ("def helper_LEASE_03_x(): ...", set()),
        ("# LEASE-03\ndef test_x(): 'LEASE-03'", set()),
        ("@pytest.mark.skip\ndef test_LEASE_03_x(): ...", set()),
        ("@pytest.mark.xfail(reason='x')\ndef test_LEASE_03_x(): ...", set()),
        ("@pytest.mark.skipif(True, reason='x')\ndef test_LEASE_03_x(): ...", {"LEASE-03"}),
    ],
)
def test_what_counts(source: str, expected: set[str], tmp_path: Path) -> None:
    done = run(tmp_path, source, "--json")
    assert done.returncode == 0, done.stderr
    assert covered(done) == expected


def test_the_table_names_what_is_missing(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_LEASE_03_x(): ...")
    assert "LEASE-03  MUST    covered   1  A card stays busy" in done.stdout
    assert "LEASE-04  MUST    NOT COVERED  The record is complete" in done.stdout
    assert "MUST: 1 of 3 covered" in done.stdout


def test_strict_fails_while_a_must_is_missing(tmp_path: Path) -> None:
    assert run(tmp_path, "def test_LEASE_03_x(): ...", "--strict").returncode == 1


def test_strict_passes_without_a_should(tmp_path: Path) -> None:
    source = "def test_LEASE_03_LEASE_04_B_20a_all(): ..."
    assert run(tmp_path, source, "--strict").returncode == 0


def test_an_unknown_id_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_LEASE_03_LEASE_04_B_20a_LEASE_99_x(): ...", "--strict")
    assert done.returncode == 1
    assert "claims LEASE-99, which" in done.stderr


def test_a_malformed_list_is_an_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("id\trank\twhat\nLEASE-03\tPERHAPS\tx\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--list", str(tmp_path / "bad.tsv")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "bad.tsv:2: expected id, rank" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_asked_for_later_is_not_missed_and_may_be_claimed(tmp_path: Path) -> None:
    later = LIST.replace("A card stays busy", "A card stays busy\tlater")
    done = run(tmp_path, "def test_LEASE_04_B_20a_x(): ...", "--strict", rows=later)
    assert done.returncode == 0, done.stderr
    assert "LEASE-03  MUST    later" in done.stdout
    assert "MUST: 2 of 2 covered" in done.stdout
    (tmp_path / "again").mkdir()
    assert run(tmp_path / "again", "def test_LEASE_03_LEASE_04_B_20a_x(): ...", "--strict", rows=later).returncode == 0


def test_strict_names_what_it_misses(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_LEASE_03_x(): ...", "--strict")
    assert "no test covers B-20a, a MUST: No reset" in done.stderr
    assert "PROC-05" not in done.stderr
