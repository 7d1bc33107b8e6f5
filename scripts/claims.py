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
ID_IN_NAME = re.compile(r"(?<![A-Za-z])([A-Z]+)_(\d{2}[a-z]?)(?![0-9A-Za-z])")


def find_claims(root: Path, marker: str, *, in_names: bool = False) -> dict[str, set[str]]:
    """Map each id to the tests under `root` whose `pytest.mark.<marker>` has it (`tests/host/test_x.py::test_name`).

    With `in_names` an id in a test's name counts too: `test_LEASE_03_B_20a_...` is LEASE-03 and B-20a.
    """
    claims: dict[str, set[str]] = {}
    for path in sorted(root.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for name, ids in _walk(tree.body, _ids_of_file(tree, marker), marker):
            named = {f"{group}-{number}" for group, number in ID_IN_NAME.findall(name)} if in_names else set()
            for one in ids | named:
                claims.setdefault(one, set()).add(f"{path.relative_to(root.parent)}::{name}")
    return claims


def _ids_of_file(tree: ast.Module, marker: str) -> frozenset[str]:
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    ]
    return frozenset(i for value in values for i in _marked_ids(value, marker))


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
    """False for `@pytest.mark.skip` and `@pytest.mark.xfail` on the test or class itself."""
    for decorator in decorators:
        mark = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(mark, ast.Attribute) and mark.attr in {"skip", "xfail"}:
            return False
    return True
