"""``holdfast cost``: what rented places have cost, cost now, and which clocks run."""

from __future__ import annotations

import click

from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.render import print_record
from holdfast.cli.render.cost import print_costs
from holdfast.desk.connect import find_place
from holdfast.desk.cost.estimate import estimate
from holdfast.desk.cost.every import list_costs
from holdfast.model.errors import UsageError

from . import SUMMARIES

EPILOG = """\b
holdfast cost                                   every place with a meter or a quota
holdfast cost gpu1                              one of them, with its clocks and all that bills on its own
holdfast cost gpu1 --pull 140 --times 30        what it costs to have 140 GB leave it each day of a month
holdfast cost gpu1 --save-every 10m             the most that an interruption costs"""


@click.command(short_help=SUMMARIES["cost"], epilog=EPILOG)
@click.argument("place", required=False, shell_complete=complete_places)
@click.option("--pull", "gb", type=click.FloatRange(min=0), metavar="GB", help="Estimate a pull of so many GB.")
@click.option(
    "--times", default=1, show_default=True, type=click.IntRange(min=1), metavar="N", help="With --pull: how often."
)
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    metavar="SUM",
    help="With --pull: the price of a GB. [default: as the profile has it]",
)
@click.option("--save-every", "interval", metavar="TIME", help="Estimate what an interruption loses, at this interval.")
@click.option(
    "--machines",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="With --save-every: how many machines.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    place: str | None,
    gb: float | None,
    times: int,
    price: float | None,
    interval: str | None,
    machines: int,
    as_json: bool,
) -> int:
    """Show hours, price and sum since the rent began, idle share, danger clocks, and what bills on its own.

    All is of this desk: the table [PLACE.rent] of places.toml, the profile, and what was last seen of runs. No place is
    asked, and nothing here stops a meter. Where a place has a quota its hours are counted instead of money.
    """
    if place is None and (gb is not None or interval is not None):
        raise UsageError("an estimate is of one place", hint="holdfast cost PLACE --pull GB")
    found = list_costs(None if place is None else find_place(place))
    if place is not None:
        interval_s = parse_duration_option(interval, "--save-every")
        found = estimate(found, gb=gb, times=times, price=price, interval_s=interval_s, machines=machines)
    print_record(found) if as_json else print_costs(found, named=place)
    return 0
