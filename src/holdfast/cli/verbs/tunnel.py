"""``holdfast tunnel``: a service on a place's loopback, reached from this machine."""

from __future__ import annotations

import sys

import click

from holdfast.cli.completion import build_completer
from holdfast.cli.render import is_terminal, note, print_record
from holdfast.desk.connect import find_place
from holdfast.desk.places.names import list_place_names
from holdfast.desk.route.router import split_run
from holdfast.desk.tunnel import Tunnel, hold_tunnel, parse_ports
from holdfast.model.errors import Unsupported

from . import SUMMARIES

EPILOG = """\b
holdfast tunnel gpu1 6006                  TensorBoard there is http://127.0.0.1:6006 here
holdfast tunnel gpu1:digits 8888:9999      at the place of a run, as another port here
holdfast tunnel gpu1 6006 8888             two at once"""


@click.command(short_help=SUMMARIES["tunnel"], epilog=EPILOG)
@click.argument("place", shell_complete=build_completer(list_place_names))
@click.argument("ports", nargs=-1, required=True, metavar="PORT[:LOCAL]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the ports are open here.")
def command(*, place: str, ports: tuple[str, ...], as_json: bool) -> int:
    """Make what listens on the loopback of PLACE reachable on this machine's loopback, until Ctrl-C.

    PLACE may be PLACE:RUN, which is the place of that run. So services there need to listen on nothing but 127.0.0.1,
    and nothing else is listened on here. A link that is lost is tried again. Nothing is left when this command ends,
    even when it is killed.
    """
    found = find_place(split_run(place)[0] or place)
    forwards = parse_ports(ports)
    if found.host is None:
        raise Unsupported(
            f"{found.name} is this machine: what listens on its loopback is here already",
            hint=", ".join(f"http://127.0.0.1:{forward.port}" for forward in forwards),
        )

    def opened(tunnel: Tunnel) -> None:
        if as_json:
            print_record(tunnel)
        else:
            for url, forward in zip(tunnel.urls, forwards, strict=True):
                print(f"{url} is port {forward.port} of {found.name}")
            if is_terminal(sys.stderr):
                note("Ctrl-C ends the tunnel")
        sys.stdout.flush()

    return hold_tunnel(found, forwards, opened)
