"""``holdfast gpus reserve``: cards kept for a span of time."""

from __future__ import annotations

import time

import click

from holdfast.agent.cards.card_list import name_cards
from holdfast.agent.cards.reserve import reserve_cards
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.render import print_record
from holdfast.cli.render.cards import SHORT, format_time
from holdfast.core.cards.choose import parse_request
from holdfast.core.moments import parse_moment
from holdfast.model.errors import UsageError
from holdfast.model.gpu import GpuRequest
from holdfast.model.lease import name_labels

from . import VERBS

EPILOG = """\b
Examples:
  holdfast gpus reserve --cards 2 --from 22:00 --for 8h --reason "final evaluation"
  holdfast gpus reserve --gpus 0,1 --from "2026-11-24 09:00" --for 2h
  holdfast gpus unreserve r1f2e3d4c
"""


@click.command("reserve", short_help=VERBS["reserve"], epilog=EPILOG)
@click.option("--cards", type=click.IntRange(min=1, max=64), metavar="N", help="So many cards, whichever can be had.")
@click.option("--gpus", metavar="WHICH", help="any:2, or indexes or UUIDs: 0,1.")
@click.option("--from", "begin", default="now", metavar="TIME", show_default=True, help="22:00, 2026-11-24 09:00, +2h.")
@click.option("--for", "length", required=True, metavar="DURATION", help="For how long: 8h, 90m.")
@click.option("--reason", default="", metavar="TEXT", help="What for; everybody on this box can read it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, cards: int | None, gpus: str | None, begin: str, length: str, reason: str, as_json: bool) -> int:
    """Keep cards for your own runs for a span of time; it ends by itself.

    Others' runs are not given these cards when they may reach into the span, and go on where they are: a card that
    somebody holds then, with no end before it, cannot be reserved. `any:2` is decided now. Like every lease it binds
    whoever uses holdfast. Exit code 75 when somebody has the cards, 64 when this box has not so many (or none) or its
    rules do not allow it, 66 for a card that is not there, 69 when the cards cannot be read.
    """
    request = _parse_request(cards, gpus)
    begin_s = parse_begin(begin, time.time())
    made = reserve_cards(request, (begin_s, begin_s + _parse_length(length)), reason)
    if as_json:
        print_record(made)
        return 0
    indexes = name_cards()
    named = name_labels([f"card {indexes[card]}" if card in indexes else card for card in made.cards])
    named += SHORT if made.simulated else ""
    print(f"reserved {made.id}: {named} from {format_time(made.begin_s)} to {format_time(made.end_s)}")
    return 0


def _parse_request(cards: int | None, gpus: str | None) -> GpuRequest:
    if (cards is None) == (gpus is None):
        raise UsageError("say which cards: --cards N or --gpus WHICH, one of them", hint="--cards 2, or --gpus 0,1")
    if cards is not None:
        return GpuRequest(count=cards)
    try:
        request = parse_request(gpus or "")
    except ValueError as error:
        raise UsageError(f"--{error}", hint="--gpus any:2, or --gpus 0,1; card 0 alone is 0,") from error
    if request.wanted < 1:
        raise UsageError("--gpus: no card is asked for", hint="--gpus any:2, or --gpus 0,1; card 0 alone is 0,")
    return request


def _parse_length(text: str) -> float:
    seconds = parse_duration_option(text, "--for")
    if seconds < 60:
        raise UsageError(f"--for: {text} is no span to reserve", hint="a minute at least")
    return seconds


def parse_begin(text: str, now_s: float) -> float:
    """Epoch seconds at which a reservation begins, as `parse_moment` reads it.

    Raises:
        UsageError: it is no time, or has passed.
    """
    begin_s = parse_moment(text, now_s, option="--from")
    if begin_s is None:
        return now_s
    if begin_s < now_s - 60:
        raise UsageError(f"--from: {text} has passed", hint="say a time that comes")
    return begin_s
