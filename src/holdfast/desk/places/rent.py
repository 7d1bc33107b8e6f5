"""The table ``[NAME.rent]`` of ``places.toml``: what a rented place costs, since when, and where its end is seen."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from holdfast.core.job.redact import is_secret_value, redact_argv
from holdfast.core.moments import parse_moment
from holdfast.core.near import find_near
from holdfast.desk.toml import Node
from holdfast.host.clock import format_utc
from holdfast.model.errors import UsageError
from holdfast.model.place import Rent

from .values import PlaceValueError, read_text, show_value

_CURRENCY = re.compile(r"[A-Z]{3}\Z")
_URL = re.compile(r"https?://[^\s/?#]+[^\s]*\Z")


def read_rent(node: Node, label: str, problems: list[str]) -> Rent | None:
    """What is said of a rent; what is wrong is added to `problems`, and then the answer is None."""
    if not isinstance(node.value, dict):
        problems.append(f"{label}: expected a table, found {show_value(node)}")
        return None
    fields: dict[str, object] = {}
    before = len(problems)
    for key, value in node.value.items():
        where = f"{value.where}: {label.rpartition(': ')[2]}.{key}"
        if key not in _READERS:
            near = find_near(key, _READERS)
            what = f"did you mean {near}?" if near else f"there are {', '.join(_READERS)}"
            problems.append(f"{where}: unknown key; {what}")
            continue
        try:
            fields[key] = _READERS[key](value)
        except PlaceValueError as error:
            problems.append(f"{where}: {error}")
    if len(problems) > before:
        return None
    return Rent(**fields)  # type: ignore[arg-type] # each by its own reader


def _read_since(node: Node) -> str:
    """A moment in ISO, or as TOML writes one; without a zone it is the desk's."""
    text = read_text(node)
    try:
        moment = parse_moment(text, time.time(), option="since")
    except UsageError as error:
        raise PlaceValueError(f"{error}; write it like 2026-11-23T08:00Z") from error
    if moment is None or not re.match(r"\d{4}-", text):
        raise PlaceValueError(f"{text[:40]!r} is no moment; write it like 2026-11-23T08:00Z")
    return format_utc(moment)


def _read_amount(node: Node) -> float:
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or not 0 <= node.value < 1e9:
        raise PlaceValueError(f"expected an amount that is not negative, found {show_value(node)}")
    return float(node.value)


def _read_currency(node: Node) -> str:
    text = read_text(node)
    if not _CURRENCY.match(text):
        raise PlaceValueError(f"{text[:40]!r} is no currency; write its three letters, like USD")
    return text


def _read_plain(node: Node) -> str:
    text = read_text(node)
    if is_secret_value(text):
        raise PlaceValueError("looks like a secret, which does not stand in this file")
    return text


def _read_texts(node: Node) -> tuple[str, ...]:
    if not isinstance(node.value, list):
        raise PlaceValueError(f"expected a list of texts, found {show_value(node)}")
    return tuple(map(_read_plain, node.value))


def _read_command(node: Node) -> tuple[str, ...]:
    words = _read_texts(node)
    if not words or not words[0] or any("\0" in word for word in words):
        raise PlaceValueError('expected the words of a command, like ["provider", "show", "ID"]')
    if redact_argv(words)[1]:
        raise PlaceValueError("holds what looks like a secret; have the command read it from where it is kept")
    return words


def _read_url(node: Node) -> str:
    text = _read_plain(node)
    if not _URL.match(text):
        raise PlaceValueError(f"{text[:80]!r} is no address; write it like https://status.example/ID")
    return text


_READERS: dict[str, Callable[[Node], object]] = {
    "since": _read_since,
    "rate": _read_amount,
    "currency": _read_currency,
    "cap": _read_amount,
    "region": _read_plain,
    "also": _read_texts,
    "status_command": _read_command,
    "status_url": _read_url,
}
