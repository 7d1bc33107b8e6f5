"""What each test says that it shows: ids in the arguments of its markers, and in its name where that counts.

The tests are parsed, not run. A marker counts on a test, its class, its file and on one parameter of a parametrized
test. A test that is skipped without a condition, or expected to fail, shows nothing.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IDS_IN_NAME = re.compile(r"(?<![A-Za-z0-9])([A-Z]+)((?:_\d\d[a-z]?)+)(?![A-Za-z0-9])")


def find_claims(root: Path, marker: str, *, in_names: bool = False) -> dict[str, set[str]]:
    """Map each id to the tests under `root` whose `pytest.mark.<marker>` has it (`tests/host/test_x.py::test_name`).

    With `in_names` an id in a test's name counts too (`find_ids`).
    """
    claims: dict[str, set[str]] = {}
    for path in sorted(root.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        marks = _marks_of_file(tree)
        if not _counts(marks):
            continue
        ids_of_file = frozenset(i for mark in marks for i in _marked_ids(mark, marker))
        for name, ids in _walk(tree.body, ids_of_file, marker):
            for one in ids | find_ids(name) if in_names else ids:
                claims.setdefault(one, set()).add(f"{path.relative_to(root.parent)}::{name}")
    return claims


def find_ids(name: str) -> set[str]:
    """The ids in a test's name: `test_LEASE_03_B_20a_...` is LEASE-03 and B-20a, `test_PROC_15_23_...` two of PROC."""
    found = IDS_IN_NAME.findall(name)
    return {f"{group}-{number}" for group, numbers in found for number in numbers[1:].split("_")}


def _marks_of_file(tree: ast.Module) -> list[ast.expr]:
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    ]
    return [mark for value in values for mark in (value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value])]


def _walk(
    body: list[ast.stmt], inherited: frozenset[str], marker: str, prefix: str = ""
) -> Iterator[tuple[str, frozenset[str]]]:
    """Each test's name, and the ids of its own markers and of those of its class and file."""
    for node in body:
        if not isinstance(node, (ast.ClassDef, *FUNCTIONS)) or not _counts(node.decorator_list):
            continue
        ids = inherited.union(*(_marked_ids(one, marker) for one in node.decorator_list))
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
            yield f"{prefix}{node.name}", ids
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _walk(node.body, ids, marker, f"{prefix}{node.name}::")


def _marked_ids(expression: ast.expr, marker: str) -> set[str]:
    """The ids in each call of `...<marker>(...)` inside an expression, such as a list of marks."""
    return {
        argument.value
        for call in ast.walk(expression)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == marker
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def _counts(decorators: list[ast.expr]) -> bool:
    """False for `pytest.mark.skip` and `pytest.mark.xfail` on the test, class or file itself."""
    for decorator in decorators:
        mark = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(mark, ast.Attribute) and mark.attr in {"skip", "xfail"}:
            return False
    return True
