"""What holdfast is asked for and what of it stands: docs/requirements.tsv against the tests' names and markers.

The table has every requirement and every bug of earlier tools that must not come back (B-..), each once, with a state:

``covered``  it holds, and a test that carries its id shows it
``partly``   a part of it holds and has such a test; the column `missing` says what does not
``absent``   it is not there; `missing` may say what is nearest

A test carries an id when its name has it (`test_LEASE_03_...`, `test_B_20a_...`; several ids may follow one another) or
when it, its class or its file is marked `pytest.mark.requirement("LEASE-03", ...)`. The sources are parsed, not run. An
id that the table does not know is a misspelling, and an absent row with a test has the wrong state: --strict refuses
both, and a covered or partly row of any rank without a test.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.claims import find_claims  # noqa: E402 - after the path

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = ROOT / "docs" / "requirements.tsv"
HEAD = "id\trank\tstate\twhat\tmissing"
RANKS = ("MUST", "SHOULD", "COULD")
COVERED, PARTLY, ABSENT = STATES = ("covered", "partly", "absent")
ID = re.compile(r"([A-Z]+)-\d+[a-z]?")
SIZES = {
    "LEASE": 20, "PROC": 27, "RAIL": 18, "OBS": 23, "ETIQ": 9, "PRE": 26, "POST": 11, "LIB": 21, "CKPT": 17,
    "QUEUE": 23, "XPORT": 25, "PROF": 15, "LOC": 4, "BSSH": 10, "SLM": 17, "KUB": 20, "COL": 8, "KAG": 9, "SYSD": 12,
    "CTR": 12, "MON": 23, "DIAG": 13, "FAIL": 16, "GPUH": 12, "STOR": 11, "VRFY": 14, "COST": 9, "LIM": 12, "SPOT": 7,
    "MN": 8, "DOC": 10, "B": 88,
}  # fmt: skip
"""The list is closed: 462 requirements in 31 groups, and 88 bugs. No row goes, and none comes without its number."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of docs/requirements.tsv."""

    id: str
    rank: str
    state: str
    what: str
    missing: str

    @property
    def group(self) -> str:
        """The letters before the number: ``LEASE``."""
        return self.id.partition("-")[0]


def read_requirements(path: Path) -> list[Requirement]:
    """Read the table.

    Raises:
        ValueError: A line is not what the head says, an id comes twice, a partly row does not say what is missing.
    """
    found: dict[str, Requirement] = {}
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    if head != HEAD:
        message = f"{path}:1: expected {HEAD!r}, not {head!r}"
        raise ValueError(message)
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        wrong = _find_wrong(fields) or (f"{fields[0]} is listed twice" if fields[0] in found else "")
        if wrong:
            message = f"{path}:{number}: {wrong}: {line!r}"
            raise ValueError(message)
        found[fields[0]] = Requirement(*fields)
    return list(found.values())


def _find_wrong(fields: list[str]) -> str:
    if len(fields) != len(Requirement.__slots__) or not ID.fullmatch(fields[0]) or not fields[3].strip():
        return "expected id, rank, state, text and what is missing, separated by tabs"
    if fields[1] not in RANKS:
        return f"the rank is none of {', '.join(RANKS)}"
    if fields[2] not in STATES:
        return f"the state is none of {', '.join(STATES)}"
    if fields[2] != ABSENT and (fields[2] == PARTLY) != bool(fields[4].strip()):
        return "what is partly there says what is missing, and what is covered misses nothing"
    return ""


def find_problems(requirements: list[Requirement], claims: dict[str, set[str]]) -> Iterator[str]:
    """Where the states and the tests contradict each other, a sentence for each."""
    known = {r.id for r in requirements}
    for one in sorted(claims.keys() - known):
        yield f"{', '.join(sorted(claims[one]))} carries {one}, which is in no row"
    for r in requirements:
        if r.state != ABSENT and r.id not in claims:
            yield f"{r.id} is {r.state}, and no test carries it: {r.what}"
        if r.state == ABSENT and r.id in claims:
            yield f"{r.id} is {ABSENT}, and {', '.join(sorted(claims[r.id]))} carries it: {r.what}"


def find_gaps(requirements: list[Requirement]) -> Iterator[str]:
    """Groups that do not have the number of rows of the closed list."""
    counts = dict.fromkeys(SIZES, 0)
    for r in requirements:
        counts[r.group] = counts.get(r.group, 0) + 1
    for group, count in counts.items():
        if count != SIZES.get(group, 0):
            yield f"{group} has {count} rows, and the list has {SIZES.get(group, 0)}"


def main(arguments: list[str] | None = None) -> int:
    """Print rows and shares; answer 1 when --strict finds a contradiction, 2 when the table cannot be read."""
    parser = argparse.ArgumentParser(description="List the requirements with their states and tests.")
    parser.add_argument("--list", type=Path, default=TABLE, help="the table (default: %(default)s)")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="where the tests are (default: %(default)s)")
    parser.add_argument("--strict", action="store_true", help="exit 1 when states and tests contradict each other")
    parser.add_argument("--missing", action="store_true", help="leave the rows out that are covered")
    parser.add_argument("--shares", action="store_true", help="the shares only, no rows")
    parser.add_argument("--quiet", action="store_true", help="what is wrong only")
    parser.add_argument("--json", action="store_true", help="one JSON object: id to the columns and the tests")
    options = parser.parse_args(arguments)
    try:
        requirements = read_requirements(options.list)
        claims = find_claims(options.tests, "requirement", in_names=True)
    except (OSError, ValueError, SyntaxError) as error:
        print(f"requirements: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"schema": 1, "requirements": {r.id: _as_json(r, claims) for r in requirements}}, indent=1))
    elif not options.quiet:
        if not options.shares:
            _print_rows(requirements, claims, only_missing=options.missing)
        _print_shares(requirements)
    # The size of the list is known of our own table only.
    gaps = list(find_gaps(requirements)) if options.list == TABLE else []
    problems = [*find_problems(requirements, claims), *gaps]
    for problem in problems:
        print(f"requirements: {problem}", file=sys.stderr)
    return 1 if options.strict and problems else 0


def _as_json(r: Requirement, claims: dict[str, set[str]]) -> dict[str, object]:
    tests = sorted(claims.get(r.id, ()))
    return {"rank": r.rank, "state": r.state, "what": r.what, "missing": r.missing, "tests": tests}


def _print_rows(requirements: list[Requirement], claims: dict[str, set[str]], *, only_missing: bool) -> None:
    for r in requirements:
        if only_missing and r.state == COVERED:
            continue
        count = len(claims.get(r.id, ())) or ""
        note = f" [{r.missing}]" if r.missing else ""
        print(f"{r.id:<9} {r.rank:<6}  {r.state:<7} {count:>3}  {r.what}{note}")


def _print_shares(requirements: list[Requirement]) -> None:
    """How much of the whole is in which state: by group, by rank, together."""
    groups = list(dict.fromkeys(r.group for r in requirements))
    parts = {
        **{group: [r for r in requirements if r.group == group] for group in groups},
        **{rank: [r for r in requirements if r.rank == rank] for rank in RANKS},
        "all": requirements,
    }
    print(f"{'':8} {'rows':>4}  " + "  ".join(f"{state:>11}" for state in STATES))
    for name, rows in parts.items():
        shares = (sum(r.state == state for r in rows) for state in STATES)
        cells = (f"{count:4} {100 * count / len(rows) if rows else 0:4.0f} %" for count in shares)
        print(f"{name:8} {len(rows):4}  " + "  ".join(f"{cell:>11}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
