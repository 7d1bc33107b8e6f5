"""What a remedy tells people to type is there: every key of the job file, and every option of holdfast's own verbs.

And it is still there when it was looked through for secrets, as verdicts, notes of failures and messages are.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from holdfast.cli.job.schema import KEYS
from holdfast.core.job.redact import redact_text
from holdfast.diagnosis.catalogue import all_gotchas
from holdfast.diagnosis.live.remedies import ACTIONS
from holdfast.diagnosis.logs.patterns import PATTERNS
from holdfast.diagnosis.remedies import REMEDIES
from tests.each import each

pytestmark = pytest.mark.files

ROOT = Path(__file__).parents[2]
PATHS = frozenset(key.path for key in KEYS)
SECTIONS = frozenset(path.partition(".")[0] for path in PATHS if "." in path)
KEY = re.compile(rf"(?<![\w./-])(?P<section>{'|'.join(sorted(SECTIONS))})(?:\.|: \{{)(?P<name>[a-z]\w*)")
"""``limits.tasks``, or ``limits: {tasks: 9}``."""
COMMAND = re.compile(r"\bholdfast (?P<verb>[a-z]+)(?P<rest>[^,;`]*)")
OPTION = re.compile(r"--[a-z][\w-]*")
OF_OTHERS = frozenset({"limits.conf", "output.log", "results.json", "limits.nvidia"})
"""Files, and a key of Kubernetes."""
EVERYWHERE = "--on"
"""Stands behind each verb that places know, and on no page of one."""


def read_texts(path: Path) -> list[str]:
    """Every text that a module can say: with ``{}`` for what is filled in; no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            texts.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (told | inner):
            texts.append(node.value)
    return texts


def read_options() -> dict[str, frozenset[str]]:
    """The options of each verb, by the page that is made from the program."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for part in re.split(r"^##+ holdfast ", page, flags=re.MULTILINE)[1:]:
        found.setdefault(part.split()[0], set()).update(OPTION.findall(part))
    return {verb: frozenset(options) for verb, options in found.items()}


SOURCE = ROOT / "src" / "holdfast"
TEXTS = [
    (str(path.relative_to(SOURCE)), text)
    for path in sorted(SOURCE.rglob("*.py"))
    for text in read_texts(path)
    if " " in text
]
OPTIONS = read_options()
REMEDY_TEXTS = [
    *((f"REMEDIES, {kind.value}", remedy.render({})) for kind, remedy in REMEDIES.items()),
    *((f"ACTIONS, {kind.value}", action) for kind, action in ACTIONS.items()),
    *((pattern.id, pattern.remedy) for pattern in PATTERNS if pattern.remedy),
    *((gotcha.id, gotcha.remedy) for gotcha in all_gotchas()),
    # What is only printed by the command line itself is not looked through.
    *((path, text) for path, text in TEXTS if OPTION.search(text) and not path.startswith("cli/")),
]


@each("module,text", TEXTS)
def test_every_key_that_a_remedy_names_is_one_of_the_job_file(module: str, text: str) -> None:
    named = [f"{match['section']}.{match['name']}" for match in KEY.finditer(text)]
    assert [name for name in named if name not in PATHS | OF_OTHERS] == [], module


@each("module,text", TEXTS)
def test_every_option_that_a_remedy_names_is_one_of_its_verb(module: str, text: str) -> None:
    for match in COMMAND.finditer(text):
        known = OPTIONS.get(match["verb"])
        if known is not None:
            assert set(OPTION.findall(match["rest"])) <= {EVERYWHERE, *known}, module


@each("source,text", REMEDY_TEXTS)
def test_no_remedy_is_damaged_by_the_look_for_secrets(source: str, text: str) -> None:
    said = text.replace("{}", "")
    assert redact_text(said) == said, source


def test_the_texts_of_remedies_are_among_those_that_are_looked_at() -> None:
    assert any("limits.tasks" in text for _, text in TEXTS)
    assert any("holdfast limit{run} --timeout" in text for _, text in TEXTS)
    held = [text for _, text in REMEDY_TEXTS]
    assert any("--secret HF_TOKEN" in text for text in held)
    assert any("holdfast secret push PLACE NAME" in text for text in held)
    assert any("--limit-memory" in text for text in held)
