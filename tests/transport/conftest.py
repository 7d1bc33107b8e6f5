"""Transports for the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.model.place import Place
from holdfast.transport.ssh.command import Timing
from holdfast.transport.ssh.transport import SshTransport
from tests.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sshd import Sshd


@pytest.fixture
def connect(ssh_desk: Sshd) -> Iterator[Callable[..., SshTransport]]:
    """Make a transport to an account of the box: ``connect("box", via=link.port, alive_s=1)``."""
    made: list[str] = []

    def make(
        user: str = "box", *, via: int | None = None, timing: Timing | None = None, **settings: str | int
    ) -> SshTransport:
        alias = ssh_desk.alias(user, via=via, **{name: str(value) for name, value in settings.items()})
        made.append(alias)
        return SshTransport(Place("gpu1", host=alias), timing=timing)

    yield make
    for alias in made:
        ssh_desk.forget(alias)


@pytest.fixture
def link(sshd: Sshd) -> Iterator[Proxy]:
    """A link to the box that can be cut, and counts connections."""
    with Proxy(sshd.port) as made:
        yield made
