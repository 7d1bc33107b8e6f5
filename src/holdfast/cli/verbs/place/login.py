"""``holdfast place login``: the one call that may ask for a password, a code or a passphrase."""

from __future__ import annotations

import os
import sys

import click

from holdfast.cli.render import note
from holdfast.desk.connect import find_place
from holdfast.model.errors import Refused, Unsupported, UsageError
from holdfast.transport.ssh.transport import SshTransport

from . import VERBS
from .options import place_argument


@click.command("login", short_help=VERBS["login"])
@place_argument
def command(*, name: str) -> int:
    """Log in to a place by hand, and leave the connection open for all other calls.

    For accounts that want a password or a second factor: ssh asks here, in this terminal, and later calls of holdfast
    go through the connection without asking, all but `tunnel` and `place trust`, which share none. It ends when
    nothing has used it for hours.
    """
    place = find_place(name)
    if place.host is None:
        raise Unsupported(f"{name} is this machine: there is nothing to log in to")
    if not (os.isatty(0) and sys.stderr is not None and sys.stderr.isatty()):
        raise UsageError(
            "there is no terminal on which ssh could ask", hint=f"type it in one: holdfast place login {name}"
        )
    code = SshTransport(place).login()
    if code != 0:
        raise Refused(
            f"the login to {name} did not succeed (ssh ended with {code})",
            hint="what it said stands above; nothing was changed",
            details={"place": name, "why": "login"},
        )
    note(f"logged in: calls to {name} go through this connection until it has been idle for hours")
    return 0
