"""A diagnosis archive that may be handed to somebody: one attempt's records, redacted, under 5 MiB (DIAG-08).

Every text passes through `core.job.redact`; what is not text, too large or unreadable is left out and listed in
``left-out.txt``. One that is to be shared names neither the box nor its people: home directories, host and account
names are replaced (OBS-19). Of logs the beginning and the end are taken. The bytes put in are bounded, not only the
compressed ones, so the bound holds for output that does not compress. The archive is written 0600 and never over
anything.
"""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import tarfile
from contextlib import suppress

from holdfast.core.job.redact import redact_text
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.record import record
from holdfast.model.units import format_bytes

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


@record
class ReportBundle:
    """What was written: the path, its size, and what was left out and why."""

    path: str
    size_bytes: int
    left_out: tuple[str, ...]


def write_bundle(path: str, run_dir: str, attempt: int, findings: object, *, share: bool = False) -> ReportBundle:
    """Write the archive of an attempt; `findings` are what diagnosis said just now.

    With `share` home directories, hosts and accounts are called ``HOME``, ``HOST`` and ``USER`` in it.

    Raises:
        OSError: the archive cannot be written.
    """
    directory, top = wire.attempt_dir(run_dir, attempt), f"{os.path.basename(run_dir)}.{attempt}"
    parts: list[tuple[str, bytes]] = []
    left_out: list[str] = []
    room = BUDGET_BYTES
    identity = _find_identity(run_dir, directory) if share else []

    def add(name: str, text: str) -> None:
        nonlocal room
        plain = redact_text(text)
        for word, instead in identity:
            plain = word.sub(instead, plain)
        data = plain.encode("utf-8", "replace")
        if len(data) > room:
            left_out.append(f"{name}: {format_bytes(len(data))} did not fit")
            return
        room -= len(data)
        parts.append((name, data))

    add("diagnosis.json", json.dumps(wire.encode(findings), indent=1))
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
    except OSError:
        files.remove_quietly(path)
        raise
    finally:
        os.close(descriptor)
    return ReportBundle(os.path.abspath(path), len(data), tuple(left_out))


def _find_identity(run_dir: str, directory: str) -> list[tuple[re.Pattern[str], str]]:
    """Patterns of what tells whose run it is and where, with what stands instead; paths before the names in them."""
    homes, hosts, users = [os.path.expanduser("~")], [os.uname().nodename], list[str]()
    with suppress(KeyError):  # in a container a number may have no account
        about = pwd.getpwuid(os.stat(run_dir).st_uid)
        homes.append(about.pw_dir)
        users.append(about.pw_name)
    for name, place in ((wire.RUN, run_dir), (wire.STATE, directory)):
        try:
            told = wire.parse_object(files.read_bytes(f"{place}/{name}"), name)
        except (OSError, wire.WireError):
            continue
        box = told.get("box")
        user, _, desk = str(told.get("ordered_by") or "").partition("@")
        hosts += [str(told.get("host") or ""), str(box.get("host") or "") if isinstance(box, dict) else "", desk]
        users += [str(told.get("user") or ""), user]
    homes += [os.path.realpath(home) for home in homes]
    hosts += [host.partition(".")[0] for host in hosts]
    kinds = ((homes, "HOME"), (hosts, "HOST"), (users, "USER"))
    return [
        (re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])"), instead)
        for words, instead in kinds
        for word in sorted({word for word in words if len(word) > 1}, key=len, reverse=True)
    ]


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
