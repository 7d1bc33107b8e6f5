"""Hands a secret to a place, by standard input alone; it is kept nowhere at the desk.

Which value and from where is decided at the desk; where it lies there is `agent.place.secrets`'s business.
"""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

from holdfast.core.control_characters import one_line
from holdfast.core.job.secret_names import MOST_BYTES, check_secret_name, to_variable
from holdfast.core.netrc import NetrcError, find_entry, is_machine
from holdfast.model.errors import InternalError, NoSuchName, NotPermitted, StorageError, UsageError
from holdfast.model.record import record

from .places.regular_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.transfer.box import Box

LIMIT_S = 60.0
MOST_NETRC_BYTES = 1 << 20
LONGEST_WORD = 200
SSH_KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----"
"""How ssh-keygen's file begins. Source: PROTOCOL.key of OpenSSH. Other keys are parts of credentials that jobs need."""
_OK, _REDIRECTED, _FAILED = 200, 300, 400
_REFUSED = (401, 403)


def push_value(box: Box, name: str, value: bytes) -> dict[str, Any]:
    """Keep a value at a place; ``replaced`` and ``notice`` of the answer are for people.

    Raises:
        UsageError: the name or the value cannot be a secret's.
        HoldfastError: the place did not take it, or gave no answer.
    """
    check_name(name)
    if not to_variable(value):
        raise UsageError(f"the value for {name} is empty", hint="nothing was sent")
    if len(value) > MOST_BYTES:
        raise UsageError(f"the value for {name} is larger than {MOST_BYTES // 1024} KiB", hint="nothing was sent")
    if value.lstrip().startswith(SSH_KEY):
        raise UsageError(
            f"the value for {name} is a private key of ssh, which stays on its machine; nothing was sent",
            hint="make a key on the box (ssh-keygen) and allow it where it is to be used: a deploy key, for one",
        )
    return _ask(box, {"action": "push", "name": name, "value": base64.b64encode(value).decode("ascii")})


def push_netrc(box: Box, machine: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Put this account's netrc entry of one machine into the place's ~/.netrc; no other entry is sent.

    Raises:
        UsageError: there is no such entry here, or the file is not a netrc.
        HoldfastError: the place did not take it, or gave no answer.
    """
    path = environ.get("NETRC") or os.path.expanduser("~/.netrc")
    if not is_machine(machine):
        raise UsageError("for --netrc, name a machine as netrc does: holdfast secret push PLACE MACHINE --netrc")
    try:
        text = read_regular(path, MOST_NETRC_BYTES).decode("utf-8", "surrogateescape")
        entry = find_entry(text, machine)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="nothing was sent") from error
    except NetrcError as error:
        raise UsageError(f"{path} {error}", hint="nothing was sent") from None
    if entry is None:
        raise NoSuchName(f"{path} has no entry for {machine}", hint="nothing was sent")
    stated = {"login": entry.login, "account": entry.account, "password": entry.password}
    words = {key: word for key, word in stated.items() if word is not None}
    return _ask(box, {"action": "netrc", "machine": machine, "words": words})


@record
class KeptSecret:
    """A secret at a place: its name, when it was written, and the mode of its file in octal."""

    name: str
    written_at: str
    mode: str


@record
class SecretList:
    """The secrets at a place, without their values."""

    place: str
    secrets: tuple[KeptSecret, ...]


def list_secrets(box: Box) -> SecretList:
    """Name, time and mode of the secrets at a place.

    Raises:
        HoldfastError: as of `Box.entry`.
    """
    rows = _ask(box, {"action": "list"}).get("secrets")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return SecretList(box.place.name, tuple(_read_secret(row) for row in found))


def _read_secret(row: dict[str, Any]) -> KeptSecret:
    """A row of the answer; another box wrote it."""
    return KeptSecret(*(one_line(str(row.get(key) or ""), LONGEST_WORD) for key in ("name", "written_at", "mode")))


def remove_secret(box: Box, name: str) -> bool:
    """Remove a secret at a place; whether there was one.

    Raises:
        UsageError: that is no name of a secret.
        HoldfastError: as of `Box.entry`.
    """
    check_name(name)
    return bool(_ask(box, {"action": "remove", "name": name}).get("removed"))


def check_secret(box: Box, name: str, url: str) -> int:
    """The status with which `url` answers the secret, tried from the place; 2xx.

    Raises:
        NotPermitted: it is refused (401, 403).
        StorageError: whether it works cannot be told.
        PreflightFailed: the place has no such secret.
        HoldfastError: as of `Box.entry`.
    """
    check_name(name)
    status = _ask(box, {"action": "check", "name": name, "url": url}).get("status")
    if not isinstance(status, int):
        raise InternalError(f"{box.place.name}: its answer was not understood: it has no status")
    if status in _REFUSED:
        raise NotPermitted(
            f"{name} is refused there ({status})",
            hint=f"push a valid one: holdfast secret push {box.place.name} {name}",
        )
    if not _OK <= status < _REDIRECTED:
        how = "answers with a redirection, which is not followed" if status < _FAILED else "answers"
        raise StorageError(f"whether {name} works cannot be told: the address {how} ({status})")
    return status


def check_name(name: str) -> None:
    """Refuse what cannot be a secret's name.

    Raises:
        UsageError: says why.
    """
    if problem := check_secret_name(name):
        raise UsageError(problem)


def _ask(box: Box, asked: dict[str, Any]) -> dict[str, Any]:
    return box.entry("secret", stdin=json.dumps(asked).encode("ascii"), limit_s=LIMIT_S)
