"""The one memory of an account's messages on a box: what was sent within the hour (`core.messages.admission`)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.core.digest import sha256_hex
from holdfast.core.messages.admission import Admission, SentMessages, admit, withdraw
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.store.paths import make_state_directory

SENT = "sent.json"
MOST_BYTES = 64 * 1024


def admit_message(key: str, *, urgent: bool) -> Admission:
    """Whether a message of this key goes out now; where that cannot be told it does: silence would be worse."""
    try:
        with _sent() as (before, keep):
            after, admission = admit(before, _shorten(key), time.time(), urgent=urgent)
            keep(after)
    except (HoldfastError, OSError):
        return Admission(send=True)
    return admission


def withdraw_message(key: str, admission: Admission) -> None:
    """Nobody has taken the message of this key: the same may go out again, and it does not count for the hour."""
    with suppress(HoldfastError, OSError), _sent() as (before, keep):
        keep(withdraw(before, _shorten(key), admission))


@contextmanager
def _sent() -> Iterator[tuple[SentMessages, Callable[[SentMessages], None]]]:
    """What was sent, and how to change that; alone.

    Raises:
        HoldfastError, OSError: it cannot be had.
    """
    directory = make_state_directory("messages")
    with files.alone_in(directory):
        path = f"{directory}/{SENT}"
        yield _read(path), lambda after: files.commit(path, wire.to_bytes(after))


def _shorten(key: str) -> str:
    return sha256_hex(key.encode("utf-8", "replace"))[:16]


def _read(path: str) -> SentMessages:
    with suppress(OSError, wire.WireError, json.JSONDecodeError):
        return wire.from_bytes(SentMessages, files.read_bytes(path, limit=MOST_BYTES), path)
    return SentMessages()
