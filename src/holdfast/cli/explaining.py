"""What ``holdfast explain`` prints."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import TYPE_CHECKING

from holdfast.cli.render import heading, is_terminal, note, print_json, table
from holdfast.diagnosis.catalogue import all_gotchas, find, search
from holdfast.model.errors import UsageError
from holdfast.model.verdict import HANGS, FailureClass, LiveClass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.diagnosis.catalogue import Gotcha

WIDTH = 100
XID = re.compile(r"xid[ -]?(\d{1,4})", re.IGNORECASE)


def list_topics() -> list[tuple[str, str]]:
    """Every topic but the Xids, with a title."""
    rows = [(row.id, row.title) for row in all_gotchas()]
    return rows + [(kind.value, "a class of a verdict") for kind in (*FailureClass, *LiveClass)]


def print_all(*, as_json: bool) -> int:
    """Every gotcha in a line."""
    return _print_list(all_gotchas(), as_json=as_json)


def print_found(words: str, *, as_json: bool) -> int:
    """The gotchas in which all words stand; 1 when there are none."""
    found = search(words)
    if not found and not as_json:
        note(f"no gotcha has {words!r} in it; `holdfast explain` lists them all")
    _print_list(found, as_json=as_json)
    return 0 if found else 1


def print_topic(topic: str, *, as_json: bool) -> int:
    """One gotcha, class or Xid.

    Raises:
        UsageError: there is no such topic.
    """
    row = find(topic)
    if row is not None:
        return _print_gotcha(row, as_json=as_json)
    number = XID.fullmatch(topic.strip())
    if number is not None:
        return _print_xid(int(number[1]), as_json=as_json)
    name = topic.strip().lower().replace("-", "_").replace(" ", "_")
    for kind in (*FailureClass, *LiveClass):
        if kind.value == name:
            return _print_class(kind, as_json=as_json)
    raise UsageError(f"there is no topic {topic!r}", hint=_suggest(topic))


def _suggest(topic: str) -> str:
    import difflib

    classes = [kind.value for kind in (*FailureClass, *LiveClass)]
    number = re.fullmatch(r"(?:xid)?[ :=#]*(\d{0,4})", topic.strip(), re.IGNORECASE)
    if number is not None:
        return f"for an error number of the driver: holdfast explain xid {number[1] or 79}"
    near = difflib.get_close_matches(topic.lower(), classes, n=1, cutoff=0.7)
    if near and not search(topic):
        return f"did you mean {near[0]}? `holdfast explain` lists the gotchas"
    return f"search for it: holdfast explain --search {topic.strip() or 'memory'!r}"


def _print_list(rows: Iterable[Gotcha], *, as_json: bool) -> int:
    if as_json:
        print_json({"gotchas": [_encode(row) for row in rows]})
        return 0
    rows = list(rows)
    if rows:
        table(["id", "what", "holdfast"], [(row.id, row.title, ", ".join(m.value for m in row.modes)) for row in rows])
    return 0


def _encode(row: Gotcha) -> dict[str, object]:
    names = ("id", "title", "symptom", "cause", "signals", "does", "remedy", "modes", "source", "reason", "checked")
    return {name: getattr(row, name) for name in names}


def _print_gotcha(row: Gotcha, *, as_json: bool) -> int:
    if as_json:
        print_json(_encode(row))
        return 0
    heading(f"{row.id}: {row.title}")
    modes = ", ".join(mode.value for mode in row.modes)
    does = " ".join(text for text in (row.does, f"Not yet: {row.reason}." if row.reason else "") if text)
    _print_fields(
        [
            ("seen", row.symptom),
            ("why", row.cause),
            ("signals", row.signals),
            (f"holdfast ({modes})", does),
            ("to do", row.remedy),
            ("source", f"{row.source} (looked at {row.checked})"),
        ]
    )
    return 0


def _print_class(kind: FailureClass | LiveClass, *, as_json: bool) -> int:
    action, retry = _find_action(kind)
    related = _find_related(kind)
    if as_json:
        print_json(
            {"class": kind, "live": isinstance(kind, LiveClass), "hangs": kind in HANGS, "action": action}
            | {"retry": retry, "gotchas": [row.id for row in related]}
        )
        return 0
    of = "an ended run" if isinstance(kind, FailureClass) else "a live run"
    heading(f"{kind.value}: a class of {of}{', a hang' if kind in HANGS else ''}")
    fields = [("to do", action)]
    if retry:
        fields.append(("again", RETRIES[retry]))
    if related:
        fields.append(("gotchas", "; ".join(f"{row.id} {row.title}" for row in related)))
    _print_fields(fields)
    return 0


def _find_related(kind: FailureClass | LiveClass) -> list[Gotcha]:
    """The gotchas that a log pattern of this class names, and those in which the class stands as a whole word."""
    from holdfast.diagnosis.logs.patterns import PATTERNS

    named = {gotcha for pattern in PATTERNS if pattern.kind is kind for gotcha in pattern.gotchas}
    word = re.compile(rf"\b{kind.value.replace('_', '[_ ]')}\b", re.IGNORECASE)
    return [row for row in all_gotchas() if row.id in named or word.search(row.words())]


RETRIES = {
    "never": "never by itself: the same would happen again, or a person has to judge",
    "same": "the identical configuration, a bounded number of times",
    "after_scratch": "after declared scratch was pruned and there is room again; else you are asked",
    "elsewhere": "on another card: this one is set aside",
    "when_alone": "only when a co-tenant has left the card",
}
"""`model.verdict.Retry` in words."""


def _find_action(kind: FailureClass | LiveClass) -> tuple[str, str]:
    if isinstance(kind, FailureClass):
        from holdfast.diagnosis.remedies import REMEDIES

        remedy = REMEDIES[kind]
        return remedy.render({}), remedy.retry.value
    from holdfast.diagnosis.live.remedies import ACTIONS

    # A template's facts come from the run; here they are shown as what they stand for.
    return re.sub(r"\{(\w+)\}", r"<\1>", ACTIONS[kind]), ""


def _print_xid(number: int, *, as_json: bool) -> int:
    from holdfast.diagnosis.kernel.xids import look_up

    xid = look_up(number)
    if as_json:
        print_json({"xid": xid})
        return 0
    heading(f"Xid {xid.code}: {xid.mnemonic or 'not in the table'}")
    _print_fields(
        [
            ("meaning", xid.meaning),
            ("severity", xid.severity.value),
            ("to do", xid.action),
            ("source", xid.source),
        ]
    )
    return 0


def _print_fields(fields: list[tuple[str, str]]) -> None:
    width = WIDTH
    if is_terminal(sys.stdout):
        import shutil

        width = min(max(shutil.get_terminal_size().columns, 40), WIDTH)
    for name, text in fields:
        if text:
            print(f"\n  {name}")
            print(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))
