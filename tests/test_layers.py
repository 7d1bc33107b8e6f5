"""What import-linter cannot say: below the desk only the standard library is imported, whatever the other name is."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "holdfast"
BELOW_THE_DESK = ("model", "core", "host", "store", "agent", "diagnosis", "faults", "training")
ADAPTED: dict[tuple[str, ...], set[str]] = {
    ("training", "adapters"): {"torch", "transformers", "lightning", "accelerate", "keras", "jax", "numpy"},
    ("training", "storage", "export.py"): {"torch", "numpy"},
}
"""What exists to meet a framework imports it, inside of functions, when the framework's user calls it."""
# A payload of a fault is a job: it imports what a training does.
FILES = sorted(
    path
    for name in BELOW_THE_DESK
    for path in (PACKAGE / name).rglob("*.py")
    if not {"_vendor", "payloads"}.intersection(path.parts)
)


def imported(tree: ast.Module) -> set[str]:
    """The top-level names of all absolute imports, wherever they stand in the file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_below_the_desk_is_standard_library_only(path: Path) -> None:
    foreign = imported(ast.parse(path.read_text(encoding="utf-8"))) - sys.stdlib_module_names - {"holdfast", "pynvml"}
    parts = path.relative_to(PACKAGE).parts
    assert foreign - ADAPTED.get(parts, ADAPTED.get(parts[:2], set())) == set()


def test_the_search_sees_imports_inside_functions() -> None:
    assert imported(ast.parse("import os\ndef f():\n    from yaml.nodes import Node\n")) == {"os", "yaml"}
