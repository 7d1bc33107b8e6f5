"""The table of requirements: what counts as a test of a row, which states contradict the tests, and what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.claims import find_claims
from scripts.requirements_coverage import SIZES, TABLE, Requirement, find_gaps, find_problems, read_requirements

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "requirements_coverage.py"

HEAD = "id\trank\tstate\twhat\tmissing\n"
LIST = (
    HEAD
    + """LEASE-03\tMUST\tcovered\tA card stays busy\t
LEASE-04\tMUST\tpartly\tThe record is complete\tthe host is not in it
PROC-05\tSHOULD\tcovered\tThe exit status is real\t
B-20a\tMUST\tabsent\tNo reset\t
"""
)


def run(root: Path, source: str, *options: str, rows: str = LIST) -> subprocess.CompletedProcess[str]:
    (root / "list.tsv").write_text(rows)
    (root / "tests").mkdir()
    (root / "tests" / "test_some.py").write_text(source)
    command = [sys.executable, str(SCRIPT), "--list", str(root / "list.tsv"), "--tests", str(root / "tests")]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def claimed(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {i for i, row in json.loads(done.stdout)["requirements"].items() if row["tests"]}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_LEASE_03_stays(): ...", {"LEASE-03"}),
        ("def test_LEASE_03_LEASE_04_both(): ...", {"LEASE-03", "LEASE-04"}),
        ("def test_LEASE_03_04_PROC_05_all(): ...", {"LEASE-03", "LEASE-04", "PROC-05"}),
        ("def test_LEASE_03_of_48_H100_04_cards_and_PROC_050(): ...", {"LEASE-03"}),
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
        ("pytestmark = [pytest.mark.pure, pytest.mark.skip]\ndef test_LEASE_03_x(): ...", set()),
        ("pytestmark = pytest.mark.skip(reason='x')\ndef test_LEASE_03_x(): ...", set()),
        ("@pytest.mark.skipif(True, reason='x')\ndef test_LEASE_03_x(): ...", {"LEASE-03"}),
    ],
)
def test_what_counts(source: str, expected: set[str], tmp_path: Path) -> None:
    done = run(tmp_path, source, "--json")
    assert done.returncode == 0, done.stderr
    assert claimed(done) == expected


ALL = "def test_LEASE_03_LEASE_04_PROC_05_all(): ..."


def test_rows_say_their_state_and_what_is_missing(tmp_path: Path) -> None:
    done = run(tmp_path, ALL)
    assert "LEASE-03  MUST    covered   1  A card stays busy\n" in done.stdout
    assert "LEASE-04  MUST    partly    1  The record is complete [the host is not in it]\n" in done.stdout
    assert "B-20a     MUST    absent       No reset\n" in done.stdout


def test_shares_are_of_the_whole_by_group_and_rank(tmp_path: Path) -> None:
    done = run(tmp_path, ALL, "--shares")
    shares = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert shares["LEASE"] == ["2", "1", "50", "%", "1", "50", "%", "0", "0", "%"]
    assert shares["MUST"] == ["3", "1", "33", "%", "1", "33", "%", "1", "33", "%"]
    assert shares["COULD"] == ["0", "0", "0", "%", "0", "0", "%", "0", "0", "%"]
    assert shares["all"] == ["4", "2", "50", "%", "1", "25", "%", "1", "25", "%"]
    assert "LEASE-03" not in done.stdout


def test_what_is_covered_can_be_left_out(tmp_path: Path) -> None:
    done = run(tmp_path, ALL, "--missing")
    assert "LEASE-03" not in done.stdout
    assert "LEASE-04" in done.stdout
    assert "B-20a" in done.stdout


def test_strict_passes_where_states_and_tests_agree(tmp_path: Path) -> None:
    done = run(tmp_path, ALL, "--strict", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def test_LEASE_04_PROC_05_x(): ...", "LEASE-03 is covered, and no test carries it: A card stays busy"),
        ("def test_LEASE_03_PROC_05_x(): ...", "LEASE-04 is partly, and no test carries it"),
        ("def test_LEASE_03_LEASE_04_x(): ...", "PROC-05 is covered, and no test carries it"),
        (f"{ALL}\ndef test_B_20a(): ...", "B-20a is absent, and tests/test_some.py::test_B_20a carries it"),
        (f"{ALL}\ndef test_LEASE_99(): ...", "tests/test_some.py::test_LEASE_99 carries LEASE-99, which is in no row"),
    ],
    ids=["covered", "partly", "a SHOULD", "absent", "misspelt"],
)
def test_strict_names_each_contradiction(source: str, said: str, tmp_path: Path) -> None:
    done = run(tmp_path, source, "--strict")
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("LEASE-03\tPERHAPS\tcovered\tx\t", "the rank is none of MUST"),
        ("LEASE-03\tMUST\tlater\tx\t", "the state is none of covered, partly, absent"),
        ("LEASE-03\tMUST\tcovered\tx", "expected id, rank, state"),
        ("LEASE-03\tMUST\tcovered\t\t", "expected id, rank, state"),
        ("LEASE-03\tMUST\tpartly\tx\t", "says what is missing"),
        ("LEASE-03\tMUST\tcovered\tx\tall of it", "what is covered misses nothing"),
        ("LEASE-04\tMUST\tcovered\tx\t\nLEASE-04\tMUST\tcovered\tx\t", "LEASE-04 is listed twice"),
    ],
)
def test_a_malformed_table_is_an_error_with_its_line(row: str, said: str, tmp_path: Path) -> None:
    done = run(tmp_path, ALL, rows=f"{HEAD}{row}\n")
    assert done.returncode == 2
    assert said in done.stderr
    assert "list.tsv:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_with_another_head_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, ALL, rows="id\trank\twhat\n").returncode == 2


def test_the_list_is_closed_and_whole() -> None:
    assert sum(SIZES.values()) == 462 + 88
    rows = read_requirements(TABLE)
    assert list(find_gaps(rows)) == []
    gone = [row for row in rows if row.id != "CTR-05"]
    assert list(find_gaps(gone)) == ["CTR has 11 rows, and the list has 12"]
    more = [*rows, Requirement("NEW-01", "MUST", "absent", "x", "")]
    assert list(find_gaps(more)) == ["NEW has 1 rows, and the list has 0"]


@pytest.mark.slow
def test_the_table_and_the_tests_agree() -> None:
    claims = find_claims(SCRIPT.parents[1] / "tests", "requirement", in_names=True)
    assert list(find_problems(read_requirements(TABLE), claims)) == []
