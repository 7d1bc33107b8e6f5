"""``holdfast rules``: the rules, each with how it is enforced, and what this box's own rules file says."""

from __future__ import annotations

import click

from holdfast.agent.view.page.conduct import read_conduct
from holdfast.cli.render import print_record
from holdfast.cli.render.rules import print_rules

from . import SUMMARIES


@click.command(short_help=SUMMARIES["rules"])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, as_json: bool) -> int:
    """Print every rule, how it is enforced (refused, built in, asked, told), and the page with the rest.

    At the end stands what the rules file of this box says, or of PLACE with --on.
    """
    found = read_conduct()
    print_record(found) if as_json else print_rules(found)
    return 0
