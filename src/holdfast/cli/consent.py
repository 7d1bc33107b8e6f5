"""Asks for consent before something is removed, stopped or changed, and removes our entries of cron or systemd.

A command that a desk has sent cannot ask: it answers what is to be asked, with a hash of the plan, and the desk sends
it again with that hash once somebody has said yes. A plan that is another one by then is asked for anew.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.core.digest import sha256_hex
from holdfast.desk.author import find_user
from holdfast.desk.caller import CALLER
from holdfast.desk.route.asking import build_question
from holdfast.desk.route.line import read_line
from holdfast.desk.route.table import Side
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.record import record

from .render import note, print_exactly, print_record

if TYPE_CHECKING:
    from holdfast.agent.patrol.schedule import ScheduledEntry

YES = "--yes"


@record
class RemovedEntries:
    """Where entries of cron or systemd were taken away: files, or the name of a table of cron."""

    removed: tuple[str, ...]


def confirm(
    question: str, *, yes: bool, as_json: bool, refusal: str = "nothing was changed", plan: object = None
) -> None:
    """Ask, unless `yes` was said; a no ends the command. `refusal` is said where there is nobody to ask.

    `plan` is what is consented to, beyond the words of the question.

    Raises:
        UsageError: there is nobody to ask.
    """
    if yes:
        return
    if not can_ask(as_json=as_json):
        raise UsageError(f"{refusal}: {tell_nobody(as_json=as_json)}", hint=_name_command())
    if not agree(question, plan):
        raise click.Abort


def can_ask(*, as_json: bool) -> bool:
    """Whether somebody can be asked: at a terminal here, or at that of the desk."""
    if as_json:
        return False
    if CALLER.place is not None:
        return CALLER.consent is not None
    return sys.stdin is not None and sys.stdin.isatty()


def tell_nobody(*, as_json: bool) -> str:
    """Why nobody can be asked, in words."""
    if as_json:
        return "with --json nobody is asked"
    # Its stream may be cut and gone on with, and so nothing is answered on it (`desk.route.follow`).
    return "with --follow at a place nobody is asked" if CALLER.follows else "there is no terminal to ask on"


def agree(question: str, plan: object = None) -> bool:
    """Ask somebody; see `can_ask`. At a desk the command ends here, until the answer comes with the next call."""
    if CALLER.place is None:
        return click.confirm(question, default=False)
    wanted = _hash_plan(question, plan)
    if CALLER.consent == wanted:
        return True
    sys.stdout.flush()
    sys.stdout.write(build_question(question, wanted))
    sys.stdout.flush()
    raise click.exceptions.Exit(UsageError.exit_code)


def is_of_others(author: str) -> bool:
    """Whether a run that `author` has ordered (``anna@desk``; empty: nobody did) is not of whoever types this.

    Who types at the box itself is known by account alone.
    """
    if not author:
        return False
    if CALLER.author:
        return author != CALLER.author
    return author.partition("@")[0] != find_user()


def _hash_plan(question: str, plan: object) -> str:
    text = json.dumps([question, wire.encode(plan)], sort_keys=True)
    return sha256_hex(text.encode("utf-8", "surrogateescape"))


def _name_command() -> str:
    """The command that needs no question, as it is typed at the desk that sent this one; where it can be told."""
    words = list(CALLER.words)
    line = read_line(words)
    place = []
    if CALLER.place is not None:
        runs = [given.index for given in line.given if given.side is Side.RUN]
        for index in runs:
            words[index] = f"{CALLER.place}:{words[index]}"
        place = [] if runs else ["--on", CALLER.place]
    verb = [] if line.name is None else line.name.split()
    if not verb or list(words[: len(verb)]) != verb:
        return f"say {YES}"
    return f"holdfast {shlex.join([*verb, *place, YES, *words[len(verb) :]])}"


def confirm_entry(entry: ScheduledEntry, notes: Sequence[str], *, yes: bool, as_json: bool) -> None:
    """Show an entry of cron or systemd exactly as it would be written, and ask; a no ends the command."""
    if not as_json:
        print_exactly(entry.text if entry.text.endswith("\n") else f"{entry.text}\n")
    for text in notes:
        note(text)
    confirm(f"Install this {entry.clock.value} entry?", yes=yes, as_json=as_json, plan=entry.text)


def remove_entries(
    found: Sequence[str], remove: Callable[[], Sequence[str]], question: str, *, yes: bool, as_json: bool
) -> int:
    """Show where an entry stands, ask, and take it away; the exit code."""
    if not found:
        print_record(RemovedEntries(())) if as_json else note("there is no entry of ours")
        return 0
    for place in found if not as_json else ():
        print(place)
    confirm(question, yes=yes, as_json=as_json, plan=tuple(found))
    removed = remove()
    print_record(RemovedEntries(tuple(removed))) if as_json else note("removed")
    return 0
