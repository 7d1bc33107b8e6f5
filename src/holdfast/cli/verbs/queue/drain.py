"""``holdfast queue drain``: let what runs end, and start nothing new."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.stop import drain

from . import VERBS
from .options import JSON, answer


@click.command("drain", short_help=VERBS["drain"])
@click.option("--wait", "wait", is_flag=True, help="Come back when nothing runs any more.")
@JSON
def command(*, wait: bool, as_json: bool) -> int:
    """Let the jobs at work end and start nothing new; the worker then leaves. `queue resume` goes on."""
    return answer(drain(wait=wait), as_json=as_json)
