"""A person's yes before something outside of the runs is changed, and taking away an entry that a clock has of ours."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.model.errors import UsageError

from .render import note, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask, unless `yes` was said; a no ends the command.

    Raises:
        UsageError: there is nobody to ask.
    """
    if yes:
        return
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("nothing was changed: there is no terminal to ask on", hint="say --yes")
    click.confirm(question, abort=True)


def remove_entries(
    found: Sequence[str], remove: Callable[[], Sequence[str]], question: str, *, yes: bool, as_json: bool
) -> int:
    """Show where an entry stands, ask, and take it away; the exit code."""
    if not found:
        print_json({"removed": []}) if as_json else note("there is no entry of ours")
        return 0
    for place in found if not as_json else ():
        print(place)
    confirm(question, yes=yes, as_json=as_json)
    removed = remove()
    print_json({"removed": removed}) if as_json else note("removed")
    return 0
