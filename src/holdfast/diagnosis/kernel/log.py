"""Reading the kernel's log: bounded, in a child, and honest about what it could not see.

``/dev/kmsg`` is read without waiting; a file or FIFO of the same records may stand in for it. Where this account may
not read it (``dmesg_restrict``), the journal is asked, which members of the groups `adm` and `systemd-journal` may
read, then ``dmesg``. All of it happens in a disposable child, so a machine in trouble costs a deadline. What nobody
here may read is a `Reading` that says so: it is never an empty log.

Sources: Documentation/ABI/testing/dev-kmsg (one record a read, EPIPE when records were overwritten, SEEK_*);
proc_sys_kernel(5), dmesg_restrict; systemd.journal-fields(7); systemd's "Journal Export Formats".
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Iterator
from typing import Any

from holdfast.diagnosis.evidence import KernelLog, Reading
from holdfast.host.process import libc
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire

from .parse import NO_TIME, KernelMessage, parse_lines, read_line

SOURCE = "/dev/kmsg"
LONGEST_RECORD = 8192
"""A record of /dev/kmsg must be read whole or the read fails. Source: kernel/printk/internal.h, PRINTK_MESSAGE_MAX."""
DEADLINE_S = 3.0
MOST_BYTES = 64 * 1024**2
"""Of a file that stands in for the log, and of a tool's output."""
MOST_JOURNAL_LINES = 20_000
MOST_EVENTS = 5_000
"""Of a log that repeats itself the last ones are kept."""
SAID_IN_ONE_LINE = 200
"""Bytes of a tool's refusal that are repeated."""
JOURNAL = (
    *("journalctl", "--quiet", "--no-pager", "--dmesg", "--boot", "--output=export", f"--lines={MOST_JOURNAL_LINES}"),
    "--output-fields=MESSAGE,SYSLOG_FACILITY,_SOURCE_MONOTONIC_TIMESTAMP",
)
DMESG = ("dmesg", "--raw")


def read_kernel_log(
    since_sequence: int | None = None,
    *,
    source: str = SOURCE,
    deadline_s: float = DEADLINE_S,
    trust_injected: bool = False,
    fall_back: bool = True,
) -> Reading[KernelLog]:
    """The known lines of this boot's kernel log after a position. Does not raise.

    Args:
        since_sequence: only records after this number; None for all that the ring buffer still holds.
        source: the log's device, or a file or FIFO of such records in its place.
        deadline_s: how long to wait at most.
        trust_injected: trust records that a process wrote too. For tests and rehearsed faults; never from outside.
        fall_back: ask the journal and ``dmesg`` where the device may not be read. Their lines have no numbers, so
            `since_sequence` cannot be applied to them, and the caller goes by time.
    """

    def work() -> object:
        try:
            return wire.encode(_read_device(source, since_sequence, trust_injected=trust_injected))
        except OSError as error:
            refusal = f"{source}: {error.strerror or error}"
            if source != SOURCE or not fall_back:
                return refusal
        return _fall_back(refusal, trust_injected=trust_injected)

    try:
        answer = Offload(work).wait(deadline_s)
    except (OffloadFailed, OSError) as error:
        return Reading(unread=f"the kernel log could not be read: {error}")
    if isinstance(answer, str):
        return Reading(unread=f"the kernel log could not be read: {answer}")
    return Reading(wire.decode(KernelLog, answer))


def _read_device(source: str, since: int | None, *, trust_injected: bool) -> KernelLog:
    lines: list[KernelMessage] = []
    lost, first = False, None
    for record in _records(source):
        if record is None:
            lost = True
            continue
        if first is None:
            first = record
            # The buffer begins later than where we left off: what was in between is gone.
            lost = lost or record.sequence > (0 if since is None else since + 1)
        if since is None or record.sequence > since:
            lines.append(record)
    events = parse_lines(lines, trust_injected=trust_injected)[-MOST_EVENTS:]
    return KernelLog(events, lost=lost, first_seconds=first.seconds if first is not None else 0.0)


def _records(source: str) -> Iterator[KernelMessage | None]:
    """Every record that is there now; None where some were overwritten.

    Raises:
        OSError: the log may not be read.
    """
    descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
            yield from _file_records(descriptor)
            return
        empty = True
        while True:
            try:
                data = os.read(descriptor, LONGEST_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                yield None
                continue
            if not data:
                break
            empty = False
            yield read_line(data.decode("utf-8", "replace"))
        if empty:
            # Every boot writes hundreds of lines: this is a sandbox's stand-in (often /dev/null), which tells nothing.
            raise OSError(errno.ENODATA, "it holds no line at all", source)
    finally:
        os.close(descriptor)


def _file_records(descriptor: int) -> Iterator[KernelMessage]:
    chunks, total = [], 0
    while total < MOST_BYTES:
        try:
            chunk = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            break
        if not chunk:
            break
        chunks.append(chunk)
        total += len(chunk)
    for line in b"".join(chunks).decode("utf-8", "replace").split("\n"):
        if line and not line.startswith(" "):
            yield read_line(line)


# ---------------------------------------------------------------------------------------------------------- fall back


def _fall_back(refusal: str, *, trust_injected: bool) -> object:
    """What the journal or dmesg has; why nobody has anything."""
    refusals = [refusal]
    for command, reader in ((JOURNAL, read_export), (DMESG, _read_dmesg)):
        try:
            lines = list(reader(_run(command)))
        except OSError as error:
            refusals.append(f"{command[0]}: {error.strerror or error}")
            continue
        if not lines:
            # Every boot leaves hundreds of lines, so an empty answer is a journal that keeps none, not a clean log.
            refusals.append(f"{command[0]}: no kernel lines")
            continue
        # How far back this reaches is not told by a number here, so the past counts as cut off.
        first = next((line.seconds for line in lines if line.seconds != NO_TIME), 0.0)
        events = parse_lines(lines, trust_injected=trust_injected)[-MOST_EVENTS:]
        return wire.encode(KernelLog(events, lost=True, first_seconds=first))
    return "; ".join(refusals)


def _run(command: tuple[str, ...]) -> bytes:
    """Standard output of a tool, bounded. We are in a child that is killed at the deadline; the tool dies of its pipe.

    Raises:
        OSError: the tool is not there or it refused.
    """
    import subprocess

    def die_with_parent() -> None:
        libc.set_parent_death_signal(signal.SIGKILL)

    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - a forked child with one thread
    ) as tool:
        assert tool.stdout is not None
        assert tool.stderr is not None
        data = tool.stdout.read(MOST_BYTES)
        words = tool.stderr.read(SAID_IN_ONE_LINE).decode("utf-8", "replace").strip().replace("\n", " ")
        tool.stdout.close()
        code = tool.wait()
    if code != 0:
        raise OSError(errno.EACCES, words or f"ended with {code}")
    return data


def _read_dmesg(data: bytes) -> Iterator[KernelMessage]:
    for text in data.decode("utf-8", "replace").splitlines():
        if text:
            yield read_line(text)


def read_export(data: bytes) -> Iterator[KernelMessage]:
    """The messages of a journal in the export format: ``NAME=value`` lines, an empty line between entries.

    A value with line breaks is written as the bare name, a line break, eight bytes of length, and the bytes.
    """
    entry: dict[str, Any] = {}
    position, end = 0, len(data)
    while position < end:
        stop = data.find(b"\n", position)
        stop = end if stop < 0 else stop
        line = data[position:stop]
        position = stop + 1
        if not line:
            if "MESSAGE" in entry:
                yield _entry_to_line(entry)
            entry = {}
            continue
        name, sign, value = line.partition(b"=")
        if not sign:
            size = int.from_bytes(data[position : position + 8], "little")
            value = data[position + 8 : position + 8 + size]
            position += 8 + size + 1
        entry[name.decode("ascii", "replace")] = value.decode("utf-8", "replace")
    if "MESSAGE" in entry:
        yield _entry_to_line(entry)


def _entry_to_line(entry: dict[str, Any]) -> KernelMessage:
    """One entry; a facility that is not written counts as unknown, hence as not the kernel's."""
    facility, microseconds = entry.get("SYSLOG_FACILITY", ""), entry.get("_SOURCE_MONOTONIC_TIMESTAMP", "")
    return KernelMessage(
        text=entry["MESSAGE"],
        seconds=int(microseconds) / 1e6 if microseconds.isdigit() else NO_TIME,
        facility=int(facility) if facility.isdigit() else None,
    )
