"""``holdfast explain``: the catalogue of gotchas, the failure classes, exit codes and Xid numbers, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import build_completer
from holdfast.cli.render import note, print_record
from holdfast.cli.render.explain import print_class, print_exit_code, print_gotcha, print_gotchas, print_xid
from holdfast.diagnosis.explain import ClassPage, ExitCodePage, XidPage, find_topic, list_gotchas, list_topics
from holdfast.model.errors import UsageError

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.diagnosis.catalogue import Gotcha


def _list_topics(incomplete: str) -> list[tuple[str, str | None]]:
    begin = incomplete.lower()
    return [(name, title) for name, title in list_topics() if name.lower().startswith(begin)]


EPILOG = """\b
holdfast explain U11                   memory on a card that belongs to nobody
holdfast explain out_of_memory         a class, its action, and the gotchas that lead to it
holdfast explain xid 79                an error number of the driver
holdfast explain 78                    an exit code of holdfast
holdfast explain --search 'full disk'  the gotchas in which both words stand

\b
Exit codes: 0 it was found; 1 nothing has these words; 66 there is no such topic."""


@click.command(short_help=SUMMARIES["explain"], epilog=EPILOG)
@click.argument("topic", nargs=-1, shell_complete=build_completer(_list_topics))
@click.option(
    "--search", "words", metavar="WORDS", help="List the classes and gotchas in which all of these words stand."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, topic: tuple[str, ...], words: str | None, as_json: bool) -> int:
    """Explain TOPIC: a gotcha (U11), a class of a verdict (out_of_memory), an exit code (78) or a Xid (xid 79).

    Without a topic every gotcha is listed with its title and what holdfast does about it (later: nothing yet).
    """
    if topic and words is not None:
        both = " ".join((words, *topic))
        raise UsageError(
            "a topic and --search were both given",
            hint=f"several words in quotes: holdfast explain --search {both!r}",
        )
    if topic:
        found = find_topic(" ".join(topic))
        print_record(found) if as_json else _print_topic(found)
        return 0
    listed = list_gotchas(words)
    if as_json:
        print_record(listed)
    elif not listed.gotchas and not listed.classes:
        note(f"no gotcha and no class has {words!r} in it; `holdfast explain` lists the gotchas")
    else:
        for kind in listed.classes:
            print(f"class {kind.value}: holdfast explain {kind.value}")
        print_gotchas(listed.gotchas)
    return 0 if listed.gotchas or listed.classes else 1


def _print_topic(found: Gotcha | ClassPage | XidPage | ExitCodePage) -> None:
    if isinstance(found, ClassPage):
        print_class(found)
    elif isinstance(found, ExitCodePage):
        print_exit_code(found)
        note(f"for an error number of the driver: holdfast explain xid {found.exit_code.code}")
    elif isinstance(found, XidPage):
        print_xid(found)
    else:
        print_gotcha(found)
