"""Reads the Xids that the supervisor recorded while the job ran, judged by the rules of its box.

They stand in the event stream (event ``xid``), so they are there also where the kernel's log cannot be read. What is
damaged, or no Xid, is left out: such a line says nothing either way. Never raises.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.rules.rules import XID_SEVERITIES
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.gpu import XidEvent
from holdfast.model.wire import as_whole

from .compare import Facts, as_object

MOST_HEARD = 2000
LONGEST_UPTIME_S = 1e10
"""What is beyond is no time since boot."""
MARK = b'"xid"'


def read_heard(path: str) -> tuple[XidEvent, ...]:
    """The Xids in an event stream, oldest first."""
    found: list[XidEvent] = []
    try:
        for line in files.read_last_lines(path):
            if MARK in line:
                found += _decode(line)
            if len(found) >= MOST_HEARD:
                break
    except OSError:
        return tuple(found)
    return tuple(found)


def _decode(line: bytes) -> Iterator[XidEvent]:
    try:
        event = wire.parse_object(line, wire.EVENTS)
    except wire.WireError:
        return
    data = as_object(event.get("data"))
    code, times = as_whole(data.get("code")), data.get("at_s")
    if event.get("event") != "xid" or code is None or not isinstance(times, list):
        return
    card, pci = str(data.get("card") or ""), str(data.get("pci") or "")
    for at in times:
        if isinstance(at, (int, float)) and 0 <= at < LONGEST_UPTIME_S:
            yield XidEvent(card, code, float(at), pci or None, as_whole(data.get("gpu_instance")))


def decode_severities(recorded: object) -> dict[int, str]:
    """The severities by code as the baseline has them; what is none is left out."""
    facts: Facts = as_object(recorded)
    return {
        int(code): severity
        for code, severity in facts.items()
        if code.isascii() and code.isdigit() and isinstance(severity, str) and severity in XID_SEVERITIES
    }
