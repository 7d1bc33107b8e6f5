"""Python that stands in a string (a script of a child) imports only what is there: no other tool looks at it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import textwrap
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))

pytestmark = pytest.mark.files


def list_scripts(path: Path) -> list[ast.Module]:
    """What of a file's strings reads as Python and imports something of ours."""
    with warnings.catch_warnings():
        # A text that looks like Python may hold an escape that is none.
        warnings.simplefilter("ignore")
        found = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
                try:
                    found.append(ast.parse(textwrap.dedent(node.value)))
                except SyntaxError:
                    continue
        return found


def list_imports(script: ast.Module) -> list[tuple[str, str]]:
    """The modules of ours that a script imports, with the names that it takes from them."""
    found = []
    for node in ast.walk(script):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "holdfast":
            found += [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "holdfast"]
    return found


def is_there(module: str, name: str) -> bool:
    try:
        if importlib.util.find_spec(module) is None:
            return False
        if not name or importlib.util.find_spec(f"{module}.{name}") is not None:
            return True
    except ModuleNotFoundError:
        pass
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        # A framework that is not installed: whoever has it will see.
        return (error.name or "").split(".")[0] != "holdfast"


@pytest.mark.slow
def test_what_code_in_strings_imports_is_there() -> None:
    imports = {(path, *one) for path in FILES for script in list_scripts(path) for one in list_imports(script)}
    assert len(imports) > 30, "the strings are not found any more"
    found = sorted((str(path.relative_to(ROOT)), module, name) for path, module, name in imports)
    missing = [one for one in found if not is_there(one[1], one[2])]
    assert missing == []
