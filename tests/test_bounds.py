"""Every loop and wait has a bound (RAIL-15): a static look at each endless loop of the package.

What a loop waits on is tested where it is used; here it is only made sure that none can be written without an end.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.each import each

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.files

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
LOOPS = (ast.While, ast.For, ast.AsyncFor)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
SLEEPS = {"sleep"}
LIMITS = {"end", "deadline", "left_s"}
SERVES = {"host/gpu/probe_calls.py": "Worker._run waits on its queue in a thread that ends with the probe child"}
"""Loops that serve for as long as their process lives, and who ends that."""


def endless_loops(tree: ast.AST) -> Iterator[ast.While]:
    """Each `while` whose condition is a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value:
            yield node


def walk_own(body: list[ast.stmt], *, breaks: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes of a loop's body, not those of functions in it; and whether a `break` there would leave the loop."""
    for statement in body:
        if isinstance(statement, FUNCTIONS):
            continue
        yield statement, breaks
        inner = breaks and not isinstance(statement, LOOPS)
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from walk_own([child], breaks=inner)
            elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                yield from walk_own(child.body, breaks=inner)


def leaves(loop: ast.While) -> bool:
    """Whether something in the loop can end it."""
    return any(
        isinstance(node, (ast.Return, ast.Raise)) or (breaks and isinstance(node, ast.Break))
        for node, breaks in walk_own(loop.body)
    )


def sleeps_blindly(loop: ast.While) -> bool:
    """Whether a loop without a condition sleeps and never compares a time: a poller whose bound is not to be seen."""
    nodes = list(ast.walk(loop))
    calls = [node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    compares = any(isinstance(node, ast.Compare) for node in nodes)
    return bool(SLEEPS.intersection(calls)) and not (compares and LIMITS.intersection(names))


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if "_vendor" not in path.parts)


@pytest.mark.slow
@pytest.mark.requirement("RAIL-15")
@each("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_RAIL_15_no_loop_without_an_end_and_no_poller_without_a_bound(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for loop in endless_loops(tree):
        if str(path.relative_to(SOURCE)) not in SERVES:
            assert leaves(loop), f"{path.name}:{loop.lineno} never ends"
        assert not sleeps_blindly(loop), f"{path.name}:{loop.lineno} polls for ever"


@pytest.mark.requirement("RAIL-15")
@pytest.mark.parametrize(
    ("source", "ends", "polls"),
    [
        ("while True:\n    x()", False, False),
        ("while True:\n    for i in y:\n        break", False, False),
        ("while True:\n    def f():\n        return 1", False, False),
        ("while True:\n    if x:\n        break", True, False),
        ("while 1:\n    try:\n        x()\n    except OSError:\n        raise", True, False),
        ("while True:\n    if x:\n        break\n    time.sleep(1)", True, True),
        ("while True:\n    if now() > deadline:\n        break\n    time.sleep(1)", True, False),
    ],
)
def test_the_look_itself_tells_good_from_bad(source: str, ends: bool, polls: bool) -> None:
    (loop,) = endless_loops(ast.parse(source))
    assert (leaves(loop), sleeps_blindly(loop)) == (ends, polls)
