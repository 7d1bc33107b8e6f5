"""Looks at whoever is to be told: their program is there, their server answers; nothing is sent (MON-17)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.job.secret_names import to_variable
from holdfast.core.messages.channels import (
    COMMAND,
    EMAIL,
    SECRET,
    hide_addresses,
    list_secrets,
    list_targets,
    split_url,
)
from holdfast.host.files.secret_files import SecretUnusableError, read_secret
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model.record import record

from .mail import SENDMAIL_VARIABLE, find_sendmail, find_server
from .problem import describe_error

if TYPE_CHECKING:
    from holdfast.core.messages.channels import Target
    from holdfast.model.job import Channels, Notify

CONNECT_S = 5.0
ANSWER_S = 8.0
"""For all names to be found and everybody to answer, together."""
REMEDY = "look at it, then: holdfast notify test"


@record
class ChannelCheck:
    """Whether somebody can be told: `problem` is empty where that can be so, `fine` says how far it was looked."""

    label: str
    problem: str
    fine: str = ""
    remedy: str = REMEDY


def look_at_ways(notify: Notify, channels: Channels, environ: Mapping[str, str]) -> Iterator[ChannelCheck]:
    """Whether everybody can be reached from here, as far as can be told without a message."""
    missing = set()
    for name in list_secrets(notify, channels):
        try:
            read_secret(name)
        except SecretUnusableError as error:
            missing.add(f"{SECRET}{name}")
            remedy = f"here: holdfast secret push local {name}; from a desk: holdfast secret push PLACE {name}"
            yield ChannelCheck(f"secret {name}", f"{error.why}; nothing can be told by it", remedy=remedy)
    asked: list[tuple[str, Offload]] = []
    for target in list_targets(notify, channels):
        if target.address in missing or (target.channel == EMAIL and channels.smtp_password in missing):
            continue
        problem, connect = _look_at(target, notify, channels, environ)
        if connect is None:
            yield ChannelCheck(target.label, problem, "the program is there")
        else:
            asked.append((target.label, Offload(connect)))
    for label, work in asked:
        problem = _await(work)
        yield ChannelCheck(label, problem and f"cannot be reached from here: {problem}", "somebody answers there")


def _look_at(
    target: Target, notify: Notify, channels: Channels, environ: Mapping[str, str]
) -> tuple[str, Callable[[], str] | None]:
    """What is wrong with it, or else whom to try to reach: nobody, where a program of this box gets the message."""
    if target.channel == COMMAND:
        found = shutil.which(os.path.expanduser(notify.command[0]), path=environ.get("PATH"))
        return "" if found else f"there is no program {notify.command[0]} that can be run", None
    if target.channel == EMAIL and channels.smtp is None:
        found = find_sendmail(environ)
        return "" if found else f"there is no sendmail (${SENDMAIL_VARIABLE} names one); or set notify.smtp", None
    if target.channel == EMAIL:
        return "", partial(connect_to, *find_server(channels))
    address = target.address
    if address.startswith(SECRET):
        address = to_variable(read_secret(address.removeprefix(SECRET))).decode("utf-8", "replace").strip()
    server = split_url(address)
    if server is None:
        return "the secret is no address that begins with https:// or http://", None
    scheme, host, port = server
    return "", partial(connect_to, *(_find_proxy(scheme, host) or (host, port)))


def _find_proxy(scheme: str, host: str) -> tuple[str, int] | None:
    """The proxy that the message would go through."""
    import urllib.request

    proxy = urllib.request.getproxies().get(scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    found = split_url(proxy if "://" in proxy else f"http://{proxy}")
    return None if found is None else found[1:]


def connect_to(host: str, port: int) -> str:
    """Connect, and say nothing; why that cannot be, or nothing."""
    import socket

    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        return describe_error(error)
    return ""


def _await(work: Offload) -> str:
    try:
        return hide_addresses(work.wait(ANSWER_S, since_start=True))
    except OffloadFailed as error:
        return hide_addresses(str(error))
