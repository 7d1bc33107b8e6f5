"""``holdfast restart --job FILE PLACE:RUN``: the job file is read here, with all options, and its job sent along."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import click

from holdfast.cli.job.env_file import PARAMETER
from holdfast.cli.job.options import JobCommand, read_change_elsewhere
from holdfast.cli.job.restart_options import restart_options
from holdfast.desk.connect import find_place
from holdfast.desk.orders.change import build_change_order
from holdfast.model import wire

VERB = "restart"


@click.command(cls=JobCommand)
@restart_options
def read_words() -> None:
    """Only the words are read."""


def build_order_of(place_name: str, argv: Sequence[str]) -> bytes:
    """What ``holdfast ARGV``, a restart with a job file, comes to for a place.

    Raises:
        JobFileError, UsageError, PreflightFailed: the job, its paths or its tree; nothing was sent.
    """
    words = list(argv)
    words.remove(VERB)
    with read_words.make_context(f"holdfast {VERB}", words) as context:
        params = dict(context.params)
        job, command = str(params.pop("job")), params.pop("command")
        place = find_place(place_name)
        spec, keeps_command = read_change_elsewhere(job, command, params)
        files = [job, *([str(params[PARAMETER])] if params.get(PARAMETER) else [])]
        order = build_change_order(
            spec, place, os.environ, files=files, keeps_command=keeps_command, send_code=not params["no_code"]
        )
    return json.dumps(wire.encode(order)).encode()
