"""Files of the desk in a verb that is sent to a place: what it reads goes along, what it writes comes back.

Which parameters name such files the table says. What is read is read before anything is sent, and travels on standard
input; on the box the command finds it in a private directory of this one call. What is written is made there, and
follows the command's text on standard output, behind `MARK`, as a stream that proves itself (`transfer.fetch`): it
appears under its name when it is whole, and only then is the text shown. The box's half is `cli.placed.desk_files`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from typing import IO, TYPE_CHECKING

from holdfast.desk.caller import FILES
from holdfast.model.errors import JobFileError, PlaceError, StorageError, UsageError
from holdfast.model.record import record
from holdfast.model.units import format_bytes
from holdfast.transfer.fetch import Receiver
from holdfast.transport.base import MOST_BYTES

from .table import Side

if TYPE_CHECKING:
    from collections.abc import Callable

    from .line import Given, Line

MARK = b"\0hf file\n"
"""Between the text of a command and the file that it wrote. No text of holdfast's has such a byte."""
MOST_INPUT_BYTES = 32 << 20
"""Of one file; what a verb takes is less."""
OVERWRITE = "--overwrite"
STDIN = "-"
JOB = "--job"
_OF_JOBS = frozenset({JOB, "--jobs"})


@record
class CarriedFile:
    """A file of the desk in a command line: where its word is, its own name, and how it was written there.

    `size` is how many bytes of standard input are its contents; None: it is written by the command. `path` is its whole
    path at the desk. `is_order`: the contents are what the desk has made of the command line (`desk.caller.order`).
    """

    index: int
    begin: int
    name: str
    shown: str
    path: str
    size: int | None = None
    is_order: bool = False


@record
class Carried:
    """The files of one call: their contents one after the other, and the one that is to be written (None: none is)."""

    files: tuple[CarriedFile, ...]
    data: bytes
    target: CarriedFile | None
    replace: bool

    @property
    def env(self) -> dict[str, str]:
        """What the box is told of them."""
        rows = [(one.index, one.begin, one.name, one.shown, one.path, one.size, one.is_order) for one in self.files]
        return {FILES: json.dumps(rows)}

    def collect(self, out: Callable[[bytes], None], tell: Callable[[int, int], None]) -> Collector:
        """What takes the standard output of a call that writes a file; as of `Collector`."""
        return Collector(self, out, tell=tell)

    def open_input(self) -> IO[bytes] | None:
        """The contents as a file to read from; None where there are none."""
        if not self.data:
            return None
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        file.write(self.data)
        file.seek(0)
        return file


def parse_files(text: str) -> tuple[CarriedFile, ...]:
    """What `Carried.env` says.

    Raises:
        UsageError: it says something else.
    """
    try:
        found = tuple(CarriedFile(*row) for row in json.loads(text))
        if any("/" in one.name or one.name in ("", ".", "..") for one in found):
            raise ValueError
    except (ValueError, TypeError) as error:
        raise UsageError("what the desk says of its files cannot be read", hint="use the same holdfast") from error
    return found


def gather_files(line: Line, order: bytes | None = None) -> Carried:
    """Read what a command line names of the desk, and look at what it would write.

    `order` is sent in the place of its job file.

    Raises:
        UsageError, JobFileError: a file cannot be read.
        StorageError: the file cannot be written, or is there already.
    """
    given = [one for one in line.given if one.side in (Side.DESK_IN, Side.DESK_OUT)]
    files, pieces, target = [], [], None
    replace = line.has(OVERWRITE)
    for one in given:
        text = line.text(one)
        path = os.path.abspath(text)
        if one.side is Side.DESK_OUT:
            _check_target(text, replace=replace, offered=line.verb is not None and OVERWRITE in line.verb.flags)
            target = CarriedFile(one.index, one.begin, os.path.basename(path), text, path)
            files.append(target)
            continue
        is_order = order is not None and one.name == JOB
        data = order if order is not None and is_order else _read(one, text)
        name = os.path.basename(path) if text != STDIN else "standard-input"
        files.append(CarriedFile(one.index, one.begin, name, text, path, len(data), is_order))
        pieces.append(data)
    return Carried(tuple(files), b"".join(pieces), target, replace)


def _read(given: Given, text: str) -> bytes:
    try:
        if text == STDIN:
            data = sys.stdin.buffer.read(MOST_INPUT_BYTES + 1)
        else:
            with open(text, "rb") as file:
                data = file.read(MOST_INPUT_BYTES + 1)
    except (OSError, ValueError) as error:
        words = f"{given.name}: {text}: {error.strerror if isinstance(error, OSError) else error}"
        raise (JobFileError if given.name in _OF_JOBS else UsageError)(
            words, hint="it is read on this machine, and nothing was sent"
        ) from error
    if len(data) > MOST_INPUT_BYTES:
        raise UsageError(f"{given.name}: {text} is larger than {format_bytes(MOST_INPUT_BYTES)}")
    return data


def _check_target(text: str, *, replace: bool, offered: bool) -> None:
    """Refuse, before anything is sent, what could not be written afterwards.

    Raises:
        StorageError: says why.
    """
    parent = os.path.dirname(os.path.abspath(text))
    if text.endswith("/") or os.path.isdir(text):
        raise StorageError(f"{text} is a directory", hint="name the file itself")
    if not os.path.isdir(parent):
        raise StorageError(f"{text}: there is no directory {parent}", hint=f"mkdir -p {parent}")
    if os.path.lexists(text):
        if not replace:
            hint = f"{OVERWRITE} replaces it" if offered else "give another name; nothing is overwritten"
            raise StorageError(f"{text} is there already", hint=hint)
        if not stat.S_ISREG(os.lstat(text).st_mode):
            raise StorageError(f"{text} is no regular file, and is not replaced", hint="give another name")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise StorageError(f"{text}: {parent} cannot be written to by this account", hint="name another directory")


class Collector:
    """Takes standard output of a command that writes a file of the desk: its text is held, the file put aside.

    `finish` puts the file into place and hands the text on; `abandon` is for any other end, and leaves nothing.
    """

    def __init__(self, carried: Carried, out: Callable[[bytes], None], *, tell: Callable[[int, int], None]) -> None:
        """`out` gets the text; `tell` the bytes so far and the bytes in all."""
        assert carried.target is not None
        self._target = carried.target.shown
        self._receiver = Receiver(carried.target.path, force=carried.replace, tell=tell, alone=True)
        self._out = out
        self._text = bytearray()
        self._begun = False

    def take(self, data: bytes) -> None:
        """More of standard output.

        Raises:
            StorageError: it is too much text, the file is not what was promised, or the disk takes no more.
        """
        if self._begun:
            self._feed(data)
            return
        seen = max(0, len(self._text) - len(MARK))
        self._text += data
        at = self._text.find(MARK, seen)
        if at >= 0:
            rest = bytes(self._text[at + len(MARK) :])
            del self._text[at:]
            self._begun = True
            self._feed(rest)
        elif len(self._text) > MOST_BYTES:
            raise StorageError(f"the place writes more than {format_bytes(MOST_BYTES)} of text", hint="report it")

    def _feed(self, data: bytes) -> None:
        try:
            self._receiver.feed(data)
        except OSError as error:
            raise StorageError(
                f"{self._target}: {error.strerror}; nothing is left of it", hint="see df here, then repeat the command"
            ) from error

    def finish(self) -> None:
        """Put the file into place, if the command wrote one, and show the text.

        Raises:
            StorageError, UsageError: it did not come whole, or another one has appeared there.
        """
        if not self._begun:
            self._out(bytes(self._text))
            raise StorageError(
                f"the place reports success and sent no file; nothing was written to {self._target}",
                hint="`holdfast place probe PLACE` proves the holdfast there; then repeat the command",
            )
        try:
            self._receiver.finish()
        except OSError as error:
            raise StorageError(f"{self._target}: {error.strerror}; nothing is left of it") from error
        self._out(bytes(self._text))

    def give_up(self) -> None:
        """The command has failed: only its text is shown."""
        if not self._begun:
            self._out(bytes(self._text))

    def abandon(self) -> None:
        """Leave nothing of an unfinished file."""
        self._receiver.abandon()

    def explain(self, error: PlaceError) -> PlaceError:
        """An error of the link, with what became of the file."""
        return type(error)(
            f"{error}; nothing was written to {self._target}",
            hint="the same command begins it anew",
            details=error.details,
        )
