"""``holdfast queue set``: what holds for the whole queue."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.edit import set_slots
from holdfast.model.errors import UsageError

from . import VERBS
from .options import JSON, answer

MOST_SLOTS = 4096


@click.command("set", short_help=VERBS["set"])
@click.option("--cpu-slots", required=True, metavar="N|auto", help="CPU slots; auto: as many CPUs as are usable.")
@JSON
def command(*, cpu_slots: str, as_json: bool) -> int:
    """Set what holds for the whole queue."""
    return answer(set_slots(_read_slots(cpu_slots)), as_json=as_json)


def _read_slots(text: str) -> int | None:
    """A number of CPU slots; None for ``auto``.

    Raises:
        UsageError: it is neither.
    """
    if text.strip().lower() == "auto":
        return None
    if not (text.isascii() and text.isdigit()) or not 0 <= int(text) <= MOST_SLOTS:
        raise UsageError(f"--cpu-slots: {text[:20]!r} is no number of slots", hint="0 to 4096, or auto")
    return int(text)
