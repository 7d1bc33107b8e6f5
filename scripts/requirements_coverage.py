"""Which requirements have a test: docs/requirements.tsv against the tests' names and markers.

A test covers an id when its name carries it (`test_LEASE_03_...`, `test_B_20a_...`; several ids may follow one
another) or when it, its class or its file is marked `pytest.mark.requirement("LEASE-03", ...)`. The sources are
parsed, not run. A line whose fourth field is ``later`` is not asked for yet: tests may claim it, --strict does not miss
it. A test that is skipped without a condition, or expected to fail, covers nothing. An id that the list
does not know is an error: it is a misspelling.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

RANKS = ("MUST", "SHOULD", "COULD")
LATER = "later"
ID = re.compile(r"[A-Z]+-\d+[a-z]?")
ID_IN_NAME = re.compile(r"(?<![A-Za-z])([A-Z]+)_(\d{2}[a-z]?)(?![0-9A-Za-z])")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of docs/requirements.tsv."""

    id: str
    rank: str
    what: str
    later: bool = False


def read_requirements(path: Path) -> list[Requirement]:
    """Read the list of ids.

    Raises:
        ValueError: A line is not id, rank, text; an id comes twice.
    """
    found: dict[str, Requirement] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[1:], start=2):
        fields = line.split("\t")
        later = fields[3:] == [LATER]
        sound = len(fields) == 3 + later and ID.fullmatch(fields[0]) and fields[1] in RANKS and fields[2].strip()
        if not sound:
            form = f"id, rank ({', '.join(RANKS)}), text and perhaps {LATER!r}, separated by tabs"
            message = f"{path}:{number}: expected {form}: {line!r}"
            raise ValueError(message)
        if fields[0] in found:
            message = f"{path}:{number}: {fields[0]} is listed twice"
            raise ValueError(message)
        found[fields[0]] = Requirement(fields[0], fields[1], fields[2], later)
    return list(found.values())


def find_tests(root: Path) -> dict[str, set[str]]:
    """Map each id that the tests under `root` claim to the tests that claim it (`tests/host/test_x.py::test_name`)."""
    claims: dict[str, set[str]] = {}
    for path in sorted(root.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        _walk(tree.body, f"{path.relative_to(root.parent)}", _ids_of_file(tree), claims)
    return claims


def _ids_of_file(tree: ast.Module) -> frozenset[str]:
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    ]
    return frozenset(i for value in values for i in _marked_ids(value))


def _walk(body: list[ast.stmt], where: str, inherited: frozenset[str], claims: dict[str, set[str]]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test") and _counts(node.decorator_list):
            ids = inherited.union(*map(_marked_ids, node.decorator_list))
            _walk(node.body, f"{where}::{node.name}", ids, claims)
        elif isinstance(node, FUNCTIONS) and node.name.startswith("test_") and _counts(node.decorator_list):
            named = {f"{group}-{number}" for group, number in ID_IN_NAME.findall(node.name)}
            for one in named.union(inherited, *map(_marked_ids, node.decorator_list)):
                claims.setdefault(one, set()).add(f"{where}::{node.name}")


def _marked_ids(expression: ast.expr) -> set[str]:
    """The ids in each call of `...requirement(...)` inside an expression, such as a list of marks."""
    return {
        argument.value
        for call in ast.walk(expression)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "requirement"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def _counts(decorators: list[ast.expr]) -> bool:
    """False for `@pytest.mark.skip` and `@pytest.mark.xfail` on the test or class itself."""
    for decorator in decorators:
        mark = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(mark, ast.Attribute) and mark.attr in {"skip", "xfail"}:
            return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Print the table; answer 1 when --strict finds a MUST without a test or a test that claims an unknown id."""
    parser = argparse.ArgumentParser(description="List the requirements with the tests that cover them.")
    here = Path(__file__).resolve().parent.parent
    parser.add_argument(
        "--list", type=Path, default=here / "docs" / "requirements.tsv", help="the ids (default: %(default)s)"
    )
    parser.add_argument("--tests", type=Path, default=here / "tests", help="where the tests are (default: %(default)s)")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a MUST has no test or an id is unknown")
    parser.add_argument("--missing", action="store_true", help="list only what has no test")
    parser.add_argument("--json", action="store_true", help="one JSON object: id to rank, text and tests")
    options = parser.parse_args(arguments)
    try:
        requirements = read_requirements(options.list)
        claims = find_tests(options.tests)
    except (OSError, ValueError, SyntaxError) as error:
        print(f"requirements: {error}", file=sys.stderr)
        return 2
    if options.json:
        table = {r.id: {"rank": r.rank, "what": r.what, "tests": sorted(claims.get(r.id, ()))} for r in requirements}
        print(json.dumps({"schema": 1, "requirements": table}, indent=1))
    else:
        _print_table(requirements, claims, only_missing=options.missing)
    unknown = sorted(claims.keys() - {r.id for r in requirements})
    for one in unknown:
        print(
            f"requirements: {', '.join(sorted(claims[one]))} claims {one}, which {options.list} does not list",
            file=sys.stderr,
        )
    missing = [r for r in requirements if r.rank == "MUST" and not r.later and r.id not in claims]
    for r in missing if options.strict else ():
        print(f"requirements: no test covers {r.id}, a MUST: {r.what}", file=sys.stderr)
    return 1 if options.strict and (unknown or missing) else 0


def _print_table(requirements: list[Requirement], claims: dict[str, set[str]], *, only_missing: bool) -> None:
    for r in requirements:
        count = len(claims.get(r.id, ()))
        if only_missing and (count or r.later):
            continue
        state = f"covered {count:3}" if count else "later" if r.later else "NOT COVERED"
        print(f"{r.id:<9} {r.rank:<6}  {state:<11}  {r.what}{' (in part: the rest comes later)' if r.later else ''}")
    for rank in RANKS:
        ranked = [r for r in requirements if r.rank == rank and not r.later]
        print(f"{rank}: {sum(r.id in claims for r in ranked)} of {len(ranked)} covered")


if __name__ == "__main__":
    sys.exit(main())
