"""``holdfast place trust``: the host key of a place, shown, asked about, and recorded."""

from __future__ import annotations

import os

import click

from holdfast.cli.consent import confirm, tell_nobody
from holdfast.cli.render import note, print_record
from holdfast.cli.render.places import print_host_keys
from holdfast.desk.connect import find_place
from holdfast.desk.places.host_keys import HostKeys, describe_host_keys, read_host_keys, write_host_keys
from holdfast.desk.places.known_hosts import HostKey
from holdfast.model import wire
from holdfast.model.errors import Refused, Unsupported, UsageError

from . import VERBS
from .options import json_option, place_argument

EPILOG = """\b
Compare the fingerprint with what who runs the machine tells you, or with what it prints there itself:
  ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub"""


@click.command("trust", short_help=VERBS["trust"], epilog=EPILOG)
@place_argument
@click.option(
    "--yes-fingerprint",
    "fingerprint",
    metavar="SHA256:...",
    help="Do not ask: record the key if it is the one of this fingerprint.",
)
@json_option
def command(*, name: str, fingerprint: str | None, as_json: bool) -> int:
    """Show the host key that a place offers and what is recorded of it, ask, and record the one that is offered.

    Only the entry of this host and port is written or replaced, in the file of known hosts that ssh itself would use
    for it. Nothing is ever recorded unasked. Exit code 77: it offers another key than --yes-fingerprint says.
    """
    place = find_place(name)
    if place.host is None:
        raise Unsupported(f"{name} is this machine: it has no host key to be trusted")
    found = read_host_keys(place)
    if not as_json:
        print_host_keys(name, found)
    written: tuple[HostKey, ...] = ()
    if fingerprint is not None:
        written = _choose(name, found, fingerprint)
    elif not found.is_trusted:
        refusal = f"the host key of {name} was not recorded"
        _require_terminal(refusal, found, as_json=as_json)
        question = "Replace the recorded key by the offered one?" if found.has_changed else "Record the offered key?"
        confirm(question, yes=False, as_json=as_json, refusal=refusal)
        written = found.offered
    replaced = write_host_keys(found, written) if written else ()
    if as_json:
        print_record(describe_host_keys(name, found, written))
    elif written:
        note(f"recorded in {found.path}" + (f", instead of {len(replaced)} before" if replaced else ""))
    else:
        note("it is trusted already; nothing was written")
    return 0


def _choose(name: str, found: HostKeys, fingerprint: str) -> tuple[HostKey, ...]:
    chosen = tuple(key for key in found.offered if key.fingerprint == fingerprint)
    if not chosen:
        offered = ", ".join(key.fingerprint for key in found.offered)
        raise Refused(
            f"{name} ({found.address}) offers {offered}, not {fingerprint}; nothing was recorded",
            hint="ask who runs it which is right",
            details={"place": name, "why": "host_key_unknown", **wire.encode(describe_host_keys(name, found))},
        )
    if any(known.key in chosen and not known.marker for known in found.recorded):
        return ()
    return chosen


def _require_terminal(refusal: str, found: HostKeys, *, as_json: bool) -> None:
    if as_json or not os.isatty(0):
        raise UsageError(
            f"{refusal}: {tell_nobody(as_json=as_json)}",
            hint="say --yes-fingerprint with the fingerprint that who runs it tells you",
            details=wire.encode(describe_host_keys("", found)),
        )
