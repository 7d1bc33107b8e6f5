"""What is known of a topic: a gotcha, a class, an exit code, an error number of the driver; our own tables only."""

from __future__ import annotations

import re

from holdfast.core.near import find_near
from holdfast.model.errors import NoSuchName
from holdfast.model.pattern import compile_later
from holdfast.model.record import record
from holdfast.model.verdict import HANGS, FailureClass, LiveClass

from .catalogue import Gotcha, all_gotchas, find_gotcha, holds, search_gotchas
from .exit_codes import EXIT_CODES, ExitCode, explain_exit_code, find_exit_code
from .kernel.xids import Xid, find_xid
from .live.remedies import ACTIONS
from .logs.patterns import PATTERNS
from .remedies import REMEDIES

XID = compile_later(r"xid[ -]?(\d{1,4})", re.IGNORECASE)
EXIT = compile_later(r"(exit(?:[ _-]?code)?[ :=#-]*)?(\d{1,3})", re.IGNORECASE)
CLASSES: tuple[FailureClass | LiveClass, ...] = (*FailureClass, *LiveClass)


@record
class ClassPage:
    """One class of a verdict: what to do, whether to try again, and the ids of the gotchas that lead to it."""

    kind: FailureClass | LiveClass
    live: bool
    hangs: bool
    action: str
    retry: str
    gotchas: tuple[str, ...]
    titles: tuple[str, ...]


@record
class XidPage:
    """One error number of the driver."""

    xid: Xid


@record
class ExitCodePage:
    """One exit code: of holdfast, of a signal, or a job's own."""

    exit_code: ExitCode


def list_topics() -> list[tuple[str, str]]:
    """Every topic but the Xids, with a title."""
    rows = [(row.id, row.title) for row in all_gotchas()]
    rows += [(kind.value, "a class of a verdict") for kind in CLASSES]
    return rows + [(str(row.code), "an exit code") for row in EXIT_CODES]


SHORT = {"oom": "out_of_memory", "gpu_oom": "gpu_out_of_memory", "cuda_oom": "gpu_out_of_memory"}
"""What people call a class, where it has another name."""


@record
class Gotchas:
    """Gotchas in the order of the catalogue; and the classes of verdicts in whose names the words stand."""

    gotchas: tuple[Gotcha, ...]
    classes: tuple[FailureClass | LiveClass, ...] = ()


def list_gotchas(words: str | None) -> Gotchas:
    """Every gotcha, or those in which all words stand, and the classes that they name."""
    if words is None:
        return Gotchas(tuple(all_gotchas()))
    wanted = words.lower().replace("-", " ").replace("_", " ").split()
    classes = tuple(kind for kind in CLASSES if wanted and holds(wanted, kind.value.replace("_", " ")))
    return Gotchas(search_gotchas(words), classes)


def find_topic(topic: str) -> Gotcha | ClassPage | XidPage | ExitCodePage:
    """One gotcha, class, Xid or exit code; a bare number is an exit code.

    Raises:
        NoSuchName: there is no such topic.
    """
    row = find_gotcha(topic)
    if row is not None:
        return row
    number = XID.fullmatch(topic.strip())
    if number is not None:
        return XidPage(find_xid(int(number[1])))
    exited = EXIT.fullmatch(topic.strip())
    if exited is not None:
        code = (explain_exit_code if exited[1] else find_exit_code)(int(exited[2]))
        if code is not None:
            return ExitCodePage(code)
    name = topic.strip().lower().replace("-", "_").replace(" ", "_")
    name = SHORT.get(name, name)
    for kind in CLASSES:
        if kind.value == name:
            return _describe_class(kind)
    raise NoSuchName(f"there is no topic {topic!r}", hint=_suggest(topic))


def _describe_class(kind: FailureClass | LiveClass) -> ClassPage:
    action, retry = _find_action(kind)
    related = _find_related(kind)
    return ClassPage(
        kind=kind,
        live=isinstance(kind, LiveClass),
        hangs=kind in HANGS,
        action=action,
        retry=retry,
        gotchas=tuple(row.id for row in related),
        titles=tuple(row.title for row in related),
    )


def _suggest(topic: str) -> str:
    classes = [kind.value for kind in (*FailureClass, *LiveClass)]
    number = re.fullmatch(r"(?:xid)?[ :=#]*(\d{0,4})", topic.strip(), re.IGNORECASE)
    if number is not None:
        return f"for an error number of the driver: holdfast explain xid {number[1] or 79}"
    near = find_near(topic.lower(), classes, cutoff=0.7)
    if near and not search_gotchas(topic):
        return f"did you mean {near}? `holdfast explain` lists the gotchas"
    return f"search for it: holdfast explain --search {topic.strip() or 'memory'!r}"


def _find_related(kind: FailureClass | LiveClass) -> list[Gotcha]:
    """The gotchas that a log pattern of this class names, and those that have the class in their title or keywords."""
    named = {gotcha for pattern in PATTERNS if pattern.kind is kind for gotcha in pattern.gotchas}
    word = re.compile(rf"\b{kind.value.replace('_', '[_ ]')}\b", re.IGNORECASE)
    return [row for row in all_gotchas() if row.id in named or word.search(row.headline())]


def _find_action(kind: FailureClass | LiveClass) -> tuple[str, str]:
    if isinstance(kind, FailureClass):
        remedy = REMEDIES[kind]
        return remedy.render({}), remedy.retry.value
    # A template's facts come from the run; here they are shown as what they stand for.
    return re.sub(r"\{(\w+)\}", r"<\1>", ACTIONS[kind]), ""
