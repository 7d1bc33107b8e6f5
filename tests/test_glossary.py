"""docs/glossary.md says what the code means: each term is a name in the place that the glossary gives."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
ROW = re.compile(r"\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| `(?P<place>[^`|]+)` \|")
VERBS = PACKAGE / "cli" / "verbs"
PLAIN = set(re.findall(r"\w+", "adopt attach completion diagnose explain gpus logs ls prune restart rm schema"))
PLAIN |= {"cp", "exec", "files", "shell", "show", "stop", "submit", "wait"}
"""Commands that say what they do in words of every shell; each other command is a term, explained in the glossary."""


def read_rows() -> list[tuple[str, str, str]]:
    """(term, meaning, place) of each row; a line of the table that is no row is an error."""
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    rows = [ROW.fullmatch(line) for line in table]
    assert all(rows), [line for line, row in zip(table, rows, strict=True) if row is None]
    return [(row["term"], row["meaning"], row["place"]) for row in rows if row is not None]


def split_words(name: str) -> list[str]:
    """``StopRequest`` and ``stop_requests`` are ``stop request``: lower case, without the plural's s."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return [word.lower().removesuffix("s") for word in words]


def list_names(place: Path) -> Iterator[str]:
    """The place's own name, those of the files in it, and of every class, function and field that they define."""
    for path in (place, *place.rglob("*.py")) if place.is_dir() else (place,):
        yield path.stem
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    yield node.name
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield node.target.id


def test_the_glossary_is_in_order() -> None:
    rows = read_rows()
    terms = [term.lower() for term, _, _ in rows]
    assert terms == sorted(set(terms))
    unclear = [term for term, meaning, _ in rows if not meaning.endswith(".") or ". " in meaning]
    assert not unclear, f"not one sentence: {unclear}"


def test_each_term_is_a_name_where_the_glossary_says() -> None:
    offenders = []
    for term, _, place in read_rows():
        wanted, path = split_words(term), PACKAGE / place
        if not path.exists():
            offenders.append(f"{term}: there is no {place}")
        elif not any(wanted == split_words(name)[i:][: len(wanted)] for name in list_names(path) for i in range(9)):
            offenders.append(f"{term}: nothing in {place} is named so")
    assert not offenders, offenders


def test_a_command_that_is_no_plain_verb_is_explained() -> None:
    commands = {path.stem for path in VERBS.iterdir() if not path.name.startswith("_")}
    assert commands >= PLAIN, "a plain command that there is no more"
    terms = {term for term, _, _ in read_rows()}
    unexplained = {name for name in commands - PLAIN if not {name, name.removesuffix("s")} & terms}
    assert not unexplained, f"commands that docs/glossary.md does not explain: {sorted(unexplained)}"
