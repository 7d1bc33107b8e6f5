"""The options of every call of ssh(1): bounded, never asking, strict about host keys; all else is the user's own."""

from __future__ import annotations

import os

from holdfast.model.errors import Unreachable
from holdfast.model.place import Place
from holdfast.model.record import record

PROGRAM_VARIABLE = "HOLDFAST_SSH"
"""The environment variable that names another program than ``ssh``."""


@record
class Timing:
    """Bounds of every call, in seconds.

    A silent link is given up `alive_s` times (`alive_count` + 1) after its last byte: 30 s. (Measured with OpenSSH 9.2;
    ssh_config(5) reads as if it were one less.) A shared connection ends when it was idle for `persist_s`; one that a
    person logged in to, for `login_persist_s`. `answer_s` is for a connection of the user's own that ssh does not
    watch: an answer may stand behind all that fills a slow line.
    """

    connect_s: int = 15
    alive_s: int = 10
    alive_count: int = 2
    persist_s: int = 600
    login_persist_s: int = 8 * 3600
    answer_s: int = 60


@record
class Sharing:
    """How calls share a connection: through our socket at `path`, through the user's own, or (no `path`) not."""

    path: str | None = None
    is_users: bool = False


def find_program() -> str:
    """The ssh client to use."""
    return os.environ.get(PROGRAM_VARIABLE) or "ssh"


def choose_environment() -> dict[str, str]:
    """The environment of a call: no window may ask, not even for a jump host, which BatchMode does not reach.

    Source: ssh(1), ENVIRONMENT.
    """
    return {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}


def target(place: Place) -> list[str]:
    """What names the box on the command line, behind all options.

    Raises:
        Unreachable: the place names no host.
    """
    if not place.host:
        raise Unreachable(
            f"{place.name} has no host", hint="give it one with `holdfast place add`", details={"place": place.name}
        )
    port = ["-p", str(place.port)] if place.port is not None else []
    return [*port, "--", place.host]


def build_options(timing: Timing, sharing: Sharing, *, for_login: bool = False, forwards: bool = False) -> list[str]:
    """Options of every call; `for_login`: of the one that may ask; `forwards`: of one that opens ports (`-L`).

    Source: ssh(1), ssh_config(5) of OpenSSH 9.2; none of these is newer than 6.0.
    """
    settings: dict[str, object] = {
        "BatchMode": "no" if for_login else "yes",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": timing.connect_s,
        "ServerAliveInterval": timing.alive_s,
        "ServerAliveCountMax": timing.alive_count,
        "LogLevel": "INFO",  # what it says is how failures are told apart
        "ClearAllForwardings": "yes",
    }
    if forwards:
        settings.update(ClearAllForwardings="no", ExitOnForwardFailure="yes", GatewayPorts="no")
    if sharing.path is None:
        settings.update(ControlMaster="no", ControlPath="none")
    elif for_login or not sharing.is_users:
        persist_s = timing.login_persist_s if for_login else timing.persist_s
        settings.update(ControlMaster="auto", ControlPersist=persist_s, ControlPath=sharing.path.replace("%", "%%"))
    return ["-T", "-a", "-x", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
