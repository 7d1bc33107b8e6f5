"""Options and the answer that several verbs of the queue share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.render import print_record
from holdfast.cli.render.queue import print_change
from holdfast.desk.caller import CALLER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.queue.change.change import QueueChange

JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
YES = click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")


def strip_place(names: Sequence[str]) -> tuple[str, ...]:
    """The names without the place that a desk has sent them to: in its hints a run is ``PLACE:RUN``."""
    return tuple(name.removeprefix(f"{CALLER.place}:") for name in names)


def answer(change: QueueChange, *, as_json: bool) -> int:
    """Say what an order came to; the exit code."""
    print_record(change) if as_json else print_change(change)
    return change.exit_code
