"""The check of imports finds each kind of offender, and nothing where all stands well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.check_imports import LIMITS, PACKAGE, find_circles, find_faults, find_ways, list_wrong_verbs, main, survey

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package `p` with a folder `p.q` in it, without any import."""
    (tmp_path / "p" / "q").mkdir(parents=True)
    for name in ("__init__", "a", "b", "q/__init__", "q/c"):
        (tmp_path / "p" / f"{name}.py").write_text("")
    return tmp_path / "p"


def list_edges(package: Path) -> list[tuple[str, str]]:
    return [(each.source, each.target) for each in survey(package).imports]


def test_a_package_without_circles_has_no_faults(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "a.py").write_text("import os\nfrom .b import x, y\nfrom .q.c import z\n")
    assert list_edges(package) == [("p.a", "p.b"), ("p.a", "p.q.c")]
    assert main(["--check", str(package)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("import p.b", ["p.b"]),
        ("from p import b", ["p.b"]),
        ("from p.q import c, name", ["p.q.c", "p.q"]),
        ("from . import b", ["p.b"]),
        ("from . import name", ["p"]),
        ("from .q import c", ["p.q.c"]),
        ("from .q.c import (\n    name,\n    other,\n)", ["p.q.c"]),
        ("if 1:\n    from .b import x\nelse:\n    from .q import c", ["p.b", "p.q.c"]),
        ("try:\n    from .b import x\nexcept ImportError:\n    import json", ["p.b"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import x", []),
        ("import typing\nif typing.TYPE_CHECKING:\n    from .b import x\nelse:\n    from .q import c", ["p.q.c"]),
        ("class A:\n    async def f(self):\n        from .b import x", ["p.b"]),
        ("import importlib\nx = importlib.import_module('p.b').x", ["p.b"]),
        ("from importlib import import_module\ndef f(name):\n    return import_module(name)", []),
    ],
)
def test_every_form_of_import_is_seen(text: str, targets: list[str], package: Path) -> None:
    (package / "a.py").write_text(text)
    assert [target for _, target in list_edges(package)] == targets


@pytest.mark.parametrize(
    ("text", "targets"),
    [("from .c import x", ["p.q.c"]), ("from ..a import x", ["p.a"]), ("from .. import b", ["p.b"])],
)
def test_what_dots_mean_in_a_package_itself(text: str, targets: list[str], package: Path) -> None:
    (package / "q" / "__init__.py").write_text(text)
    assert [target for _, target in list_edges(package)] == targets


def test_a_circle_through_a_function_is_a_circle(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "a.py").write_text("from .b import x\n")
    (package / "b.py").write_text("from .q import c\n")
    (package / "q" / "c.py").write_text("def f():\n    from ..a import y  # lazy: to test\n")
    assert survey(package).circles == (("p.a", "p.b", "p.q.c"),)
    assert main(["--check", str(package)]) == 1
    out = capsys.readouterr().out
    assert f"{package}/a.py:1: in a circle of 3 files: imports p.b\n" in out
    assert f"{package}/q/c.py:2: in a circle of 3 files: imports p.a inside a function\n" in out


def test_each_import_inside_a_function_is_counted_once_and_by_its_mark(package: Path) -> None:
    text = "def f():\n    from .b import x, y\n    from .q import c  # lazy: optional parser\n    import json\n"
    (package / "a.py").write_text(text)
    found = survey(package)
    assert [(each.target, each.line) for each in found.list_lazy(marked=False)] == [("p.b", 2)]
    assert [(each.target, each.line) for each in found.list_lazy(marked=True)] == [("p.q.c", 3)]
    assert len(list(find_faults(found, LIMITS))) == 1
    marked = list(find_faults(found, {**LIMITS, "marked": 0}))
    assert any(line.startswith(f"{package}/a.py:3: ") for line in marked)


def test_a_crowded_folder_is_named(package: Path) -> None:
    assert list(find_faults(survey(package), {**LIMITS, "files": 3})) == []
    assert list(find_faults(survey(package), {**LIMITS, "files": 2})) == [
        f"{package}:1: 3 Python files in one folder, more than 2"
    ]


def test_two_circles_that_share_no_file_are_two() -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"a"}}
    assert find_circles(graph) == [("c", "d", "e"), ("a", "b")]


def test_a_package_that_is_not_there_is_no_good_package(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--check", str(tmp_path / "gone")])


def test_a_call_of_import_module_is_an_import_without_a_word_why(package: Path) -> None:
    (package / "a.py").write_text("from importlib import import_module\ndef f():\n    import_module('p.b').x()\n")
    (fault,) = find_faults(survey(package), LIMITS)
    assert fault.startswith(f"{package}/a.py:3: ")


def test_a_verb_that_looks_and_leads_to_what_acts_is_told_with_the_way() -> None:
    verb, act = "holdfast.cli.verbs.queue.ls", "holdfast.agent.control.stop"
    ways = find_ways({verb: {"a", "b"}, "a": {"a"}, "b": {act, "a"}, act: {"a"}, "holdfast.cli.verbs.run": {act}})
    assert ways == {"queue.ls": (verb, "b", act), "run": ("holdfast.cli.verbs.run", act)}
    assert list(list_wrong_verbs(ways, frozenset({"run", "queue.ls"}))) == []
    told = f"the verb queue.ls only looks (ACTING), and leads to what acts: {verb} -> b -> {act}"
    assert list(list_wrong_verbs(ways, frozenset({"run"}))) == [told]
    gone = "the verb gone is in ACTING, and leads to nothing that acts"
    assert list(list_wrong_verbs({"run": ("v", act)}, frozenset({"run", "gone"}))) == [gone]


@pytest.mark.slow
def test_our_own_package_is_read_whole() -> None:
    found = survey(PACKAGE)
    assert not any("_vendor" in str(folder) for folder in found.folders)
    assert sum(found.folders.values()) > 400
    assert len(found.ways) > 60
    assert found.ways["ls"] == ()
