"""A diagnosis archive that may be handed to somebody: one attempt's records, redacted, under 5 MiB (DIAG-08).

Every text passes through `core.redact`; what is not text, too large or unreadable is left out and listed in
``left-out.txt``. Of logs the beginning and the end are taken. The bytes put in are bounded, not only the compressed
ones, so the bound holds for output that does not compress. The archive is written 0600 and never over anything.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.redact import redact_text
from ..host import clock, files
from ..model import wire
from ..model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_BYTES = 5 * 1024**2
BUDGET_BYTES = 4 * 1024**2 + 512 * 1024
"""Of text put in; the rest is room for headers."""
HEAD_BYTES, TAIL_BYTES = 128 * 1024, 768 * 1024
RECORDS = (
    *(wire.VERDICT, wire.FAILURE, wire.EXIT, wire.STATUS, wire.STATE, wire.MANIFEST, wire.HEARTBEAT, wire.STOP),
    *(wire.PREFLIGHT, wire.POSTFLIGHT, wire.DESIRED, "first_error.txt", wire.SUPERVISOR_LOG, wire.EVENTS, wire.OUTPUT),
    wire.HEALTH,
)
"""The attempt's files, the most telling first: what no longer fits is at the end."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What was written: the path, its size, the names put in, and why others were left out."""

    path: str
    size_bytes: int
    included: tuple[str, ...]
    left_out: tuple[str, ...]


def write_bundle(path: str, run_dir: str, attempt: int, findings: Mapping[str, Any]) -> Bundle:
    """Write the archive of an attempt; `findings` are what diagnosis said just now.

    Raises:
        OSError: the archive cannot be written.
    """
    directory, top = wire.attempt_dir(run_dir, attempt), f"{os.path.basename(run_dir)}.{attempt}"
    parts: list[tuple[str, bytes]] = []
    left_out: list[str] = []
    room = BUDGET_BYTES

    def add(name: str, text: str) -> None:
        nonlocal room
        data = redact_text(text).encode("utf-8", "replace")
        if len(data) > room:
            left_out.append(f"{name}: {format_bytes(len(data))} did not fit")
            return
        room -= len(data)
        parts.append((name, data))

    add("diagnosis.json", json.dumps(wire.encode(dict(findings)), indent=1))
    add("host.txt", _describe_host())
    sources = [(wire.RUN, f"{run_dir}/{wire.RUN}"), *((name, f"{directory}/{name}") for name in RECORDS)]
    for name, place in sources:
        try:
            add(name, _read_text(place))
        except FileNotFoundError:
            continue
        except OSError as error:
            left_out.append(f"{name}: {error.strerror or error}")
    left_out += _list_others(directory)
    add("left-out.txt", "".join(f"{line}\n" for line in left_out) or "nothing\n")
    data = _pack(top, parts)
    # Never over anything: the name is the caller's, and what lies there may be an earlier bundle.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        files.write_all(descriptor, data)
    finally:
        os.close(descriptor)
    return Bundle(os.path.abspath(path), len(data), tuple(name for name, _ in parts), tuple(left_out))


def _read_text(path: str) -> str:
    """A file's text, its middle cut out when it is long.

    Raises:
        OSError: it cannot be read, or is no text.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(descriptor).st_size
        if size <= HEAD_BYTES + TAIL_BYTES:
            data = os.pread(descriptor, size, 0)
        else:
            cut = size - HEAD_BYTES - TAIL_BYTES
            note = f"\n[... {cut} bytes are left out here ...]\n".encode()
            data = os.pread(descriptor, HEAD_BYTES, 0) + note + os.pread(descriptor, TAIL_BYTES, size - TAIL_BYTES)
    finally:
        os.close(descriptor)
    return data.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _list_others(directory: str) -> list[str]:
    """What lies in the attempt's directory and is not taken, with why."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        return [f"{directory}: {error.strerror or error}"]
    return [f"{entry.name}: not a record" for entry in entries if entry.name not in RECORDS][:100]


def _describe_host() -> str:
    about = os.uname()
    return f"{about.sysname} {about.release} {about.version} {about.machine}\nlooked at {clock.utc_now()}\n"


def _pack(top: str, parts: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in parts:
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(clock.epoch_s())
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
