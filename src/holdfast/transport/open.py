"""The transport of a place."""

from __future__ import annotations

from holdfast.model.place import Place

from .base import Transport
from .local import LocalTransport
from .ssh.transport import SshTransport


def open_transport(place: Place) -> Transport:
    """How bytes travel to a place; nothing is connected to yet. Keep one for each place, and share it."""
    return SshTransport(place) if place.host is not None else LocalTransport()


def close_shared(place: Place) -> None:
    """End the connection that calls to a place share, where holdfast has opened it."""
    if place.host is not None:
        SshTransport(place).disconnect()
