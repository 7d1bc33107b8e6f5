"""What a place writes, shown at the desk: its bytes as they are, but for what could steer this terminal.

A job's own bytes are its own. Of what holdfast says on a box only newlines, tabs and colours reach a terminal; standard
error never carries more. Into a file or a pipe standard output goes untouched.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress

from holdfast.desk.caller import ZONE
from holdfast.desk.terminal import write_fully

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO, TextIO

MOST_REMEMBERED = 2000
_LONGEST_COLOUR = 24
# Kept: newline, tab, and SGR sequences. Source: ECMA-48 8.3.117. C1 controls are two bytes in UTF-8.
_UNWANTED = re.compile(rb"(\x1b\[[0-9;]{0,20}m)|\xc2([\x80-\x9f])|([\x00-\x08\x0b-\x1f\x7f])")
_UNFINISHED = re.compile(rb"(\x1b(\[[0-9;]{0,20})?|\xc2)\Z")
_ZONE_NAME = re.compile(r"[A-Za-z_+-]+(?:/[A-Za-z0-9_+-]+){0,2}")


def describe_terminal(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a command on a box is told of this terminal: see `holdfast.desk.caller`."""
    zone = {ZONE: name_zone(environ)}
    if not _is_terminal(sys.stdout):
        return {**zone, "NO_COLOR": "1"}
    told = {**zone, "COLUMNS": str(_width(environ))}
    plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
    return {**told, "NO_COLOR": "1"} if plain else {**told, "FORCE_COLOR": "1"}


def name_zone(environ: Mapping[str, str]) -> str:
    """This machine's time zone: its name where it has one that others know, and how far it is from UTC now."""
    stated = environ.get("TZ", "").removeprefix(":")
    if not stated:
        with suppress(OSError):
            stated = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    name = stated if _ZONE_NAME.fullmatch(stated) else ""
    return f"{name} {time.strftime('%z')}"


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _width(environ: Mapping[str, str]) -> int:
    stated = environ.get("COLUMNS", "")
    if stated.isascii() and stated.isdigit() and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


class Screen:
    """Standard output and standard error of this process, for what comes from a place.

    `raw`: standard output is a job's own bytes, which are shown as they are; with `raw_errors` standard error too.
    `printed` says whether any came.
    """

    def __init__(self, *, raw: bool, raw_errors: bool = False) -> None:
        """Nothing is written before something comes."""
        sys.stdout.flush()
        self._stdout: BinaryIO = sys.stdout.buffer
        self._filter = None if raw or not _is_terminal(sys.stdout) else Filter()
        self._errors = Filter()
        self._raw_errors = raw_errors
        self._line = b""
        self._seen: set[bytes] = set()
        self._again = False
        self.printed = False

    def out(self, data: bytes) -> None:
        """Standard output of the place."""
        self.printed = True
        write_fully(self._stdout, data if self._filter is None else self._filter.pass_on(data))

    def job(self, data: bytes) -> None:
        """Bytes of a job, whose position is known."""
        self.printed = True
        write_fully(self._stdout, data)

    def err(self, data: bytes) -> None:
        """Standard error of the place: line by line, and none twice after the link was lost."""
        if self._raw_errors:
            if sys.stderr is not None:
                write_fully(sys.stderr.buffer, data)
            return
        *lines, self._line = (self._line + self._errors.pass_on(data)).split(b"\n")
        for line in lines:
            self._show(line + b"\n")
        if len(self._line) > (1 << 16):
            self.end()

    def end(self) -> None:
        """Show what has no newline at its end."""
        if self._line:
            self._show(self._line)
            self._line = b""

    def begin_again(self) -> None:
        """The same command is about to say again what it said."""
        self.end()
        self._again = True

    def _show(self, line: bytes) -> None:
        if self._again and line in self._seen:
            return
        if len(self._seen) < MOST_REMEMBERED:
            self._seen.add(line)
        if sys.stderr is not None:
            sys.stderr.flush()
            # Words beside the result: whoever does not take them loses them, and nothing else.
            with suppress(OSError):
                write_fully(sys.stderr.buffer, line)


class Filter:
    """Makes control characters visible in a stream of bytes, but for newlines, tabs and colours."""

    def __init__(self) -> None:
        """Begin with a whole character."""
        self._held = b""

    def pass_on(self, data: bytes) -> bytes:
        """What is harmless of it; an unfinished sequence waits for its end."""
        data, self._held = self._held + data, b""
        unfinished = _UNFINISHED.search(data, max(0, len(data) - _LONGEST_COLOUR))
        if unfinished is not None:
            data, self._held = data[: unfinished.start()], data[unfinished.start() :]
        return _UNWANTED.sub(_make_visible, data)


def _make_visible(found: re.Match[bytes]) -> bytes:
    if found[1] is not None:
        return found[1]
    return b"\\x%02x" % (found[2] or found[3])[0]
