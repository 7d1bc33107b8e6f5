"""``holdfast explain``: the catalogue of gotchas, the failure classes and the Xid numbers, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.model.errors import UsageError

from . import SUMMARIES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_topics(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Gotcha ids and failure classes that begin with what is typed."""
    from click.shell_completion import CompletionItem

    from holdfast.cli.explaining import list_topics

    begin = incomplete.lower()
    return [CompletionItem(name, help=title) for name, title in list_topics() if name.lower().startswith(begin)]


EPILOG = """\b
holdfast explain U11                   memory on a card that belongs to nobody
holdfast explain out_of_memory         a class, its action, and the gotchas that lead to it
holdfast explain xid 79                an error number of the driver
holdfast explain --search 'full disk'  the gotchas in which both words stand

\b
Exit codes: 0 it was found; 1 nothing has these words; 64 there is no such topic."""


@click.command(short_help=SUMMARIES["explain"], epilog=EPILOG)
@click.argument("topic", nargs=-1, shell_complete=complete_topics)
@click.option("--search", "words", metavar="WORDS", help="List the gotchas in which all of these words stand.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, topic: tuple[str, ...], words: str | None, as_json: bool) -> int:
    """Explain TOPIC: a gotcha (U11, SLURM2), a class of a verdict (out_of_memory, deadlock) or a Xid (xid 79).

    Without a topic every gotcha is listed with its title and what holdfast does about it (later: nothing yet).
    """
    from holdfast.cli import explaining

    if topic and words is not None:
        both = " ".join((words, *topic))
        raise UsageError(
            "a topic and --search were both given",
            hint=f"several words in quotes: holdfast explain --search {both!r}",
        )
    if words is not None:
        return explaining.print_found(words, as_json=as_json)
    if not topic:
        return explaining.print_all(as_json=as_json)
    return explaining.print_topic(" ".join(topic), as_json=as_json)
