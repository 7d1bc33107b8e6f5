"""What ``holdfast explain`` prints."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import heading, is_terminal, table, terminal_width

if TYPE_CHECKING:
    from holdfast.diagnosis.catalogue import Gotcha
    from holdfast.diagnosis.explain import ClassPage, ExitCodePage, XidPage

WIDTH = 100
BY_ITSELF = "tried again by itself"
RETRIES = {
    "never": "no, somebody has to ask for it",
    "same": "with the same configuration, as far as its retries or its queue allow",
    "after_scratch": "once declared scratch has made room, as far as its retries allow",
    "elsewhere": "on another card, as far as its retries allow; this one is set aside",
    "when_alone": "no, unless retries.out_of_memory says so; with nobody else on the card it can go well",
}
"""`model.verdict.RetryPolicy` in words, behind `BY_ITSELF`."""


def print_gotchas(rows: Sequence[Gotcha]) -> None:
    """Each gotcha in a line."""
    if rows:
        table(["id", "what", "holdfast"], [(row.id, row.title, ", ".join(m.value for m in row.modes)) for row in rows])


def print_gotcha(row: Gotcha) -> None:
    """All of one gotcha."""
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


def print_class(page: ClassPage) -> None:
    """One class of a verdict."""
    of = "a live run" if page.live else "an ended run"
    heading(f"{page.kind.value}: a class of {of}{', a hang' if page.hangs else ''}")
    fields = [("to do", page.action)]
    if page.retry:
        fields.append((BY_ITSELF, RETRIES[page.retry]))
    if page.gotchas:
        related = zip(page.gotchas, page.titles, strict=True)
        fields.append(("gotchas", "; ".join(f"{name} {title}" for name, title in related)))
    _print_fields(fields)


def print_xid(page: XidPage) -> None:
    """One error number of the driver."""
    xid = page.xid
    heading(f"Xid {xid.code}: {xid.mnemonic or 'not in the table'}")
    _print_fields(
        [
            ("meaning", xid.meaning),
            ("severity", xid.severity.value),
            ("to do", xid.action),
            ("source", xid.source),
        ]
    )


def print_exit_code(page: ExitCodePage) -> None:
    """One exit code."""
    row = page.exit_code
    heading(f"exit code {row.code}")
    outcomes = ", ".join(outcome.value.replace("_", " ") for outcome in row.outcomes)
    _print_fields([("outcome of a run", outcomes), ("when", row.when)])


def _print_fields(fields: list[tuple[str, str]]) -> None:
    width = WIDTH
    if is_terminal(sys.stdout):
        width = min(max(terminal_width(), 40), WIDTH)
    for name, text in fields:
        if text:
            print(f"\n  {name}")
            print(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))
