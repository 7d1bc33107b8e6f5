"""``holdfast secret push``: give a place a secret."""

from __future__ import annotations

import getpass
import os
import sys

import click

from holdfast.cli.render import note
from holdfast.cli.verbs.place.options import complete_places
from holdfast.core.job.secret_names import MOST_BYTES
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.secrets import check_name, push_netrc, push_value
from holdfast.model.errors import UsageError

from . import VERBS


@click.command("push", short_help=VERBS["push"])
@click.argument("place", shell_complete=complete_places)
@click.argument("name")
@click.option("--from-env", metavar="VAR", help="Take the value of this variable of the desk.")
@click.option("--netrc", "netrc", is_flag=True, help="NAME is a machine: send its entry of ~/.netrc (or $NETRC) alone.")
def command(*, place: str, name: str, from_env: str | None, netrc: bool) -> int:
    """Keep a secret at PLACE under NAME, which is also the variable that a job gets.

    The value comes from standard input, on a terminal from a hidden prompt. One that was there is replaced. It is kept
    as it came; a variable has it without the line feeds at its end.

    With --netrc one machine's entry goes into ~/.netrc there; its other entries stay.
    """
    if netrc and from_env is not None:
        raise UsageError("--netrc and --from-env do not go together", hint="the entry is read from ~/.netrc")
    box = open_box(find_place(place))
    if netrc:
        answer = push_netrc(box, name, os.environ)
        note(f"{place}: the entry of {name} is in ~/.netrc there; other entries are as they were")
    else:
        check_name(name)
        answer = push_value(box, name, _read_value(name, from_env))
        note(
            f"{place}: {name} was {'replaced' if answer.get('replaced') else 'taken'}; a job names it: --secret {name}"
        )
    if notice := str(answer.get("notice") or ""):
        note(f"{place}: {notice}")
    return 0


def _read_value(name: str, from_env: str | None) -> bytes:
    if from_env is not None:
        value = os.environb.get(os.fsencode(from_env))
        if value is None:
            raise UsageError(f"--from-env: {from_env} is not set here")
        return value
    if sys.stdin is not None and sys.stdin.isatty():
        return getpass.getpass(f"Value of {name} (not shown): ").encode("utf-8", "surrogateescape")
    data = b""
    while len(data) <= MOST_BYTES and (piece := os.read(0, MOST_BYTES)):
        data += piece
    return data
