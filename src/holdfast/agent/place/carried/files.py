"""Files of a desk for one command here, in a directory of that call alone, which goes with it (docs/places.md)."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable

from holdfast.agent.place.answer import print_error
from holdfast.agent.place.unused import CALL
from holdfast.agent.view.run_files import send_path
from holdfast.host.files.files import remove_tree, write_all
from holdfast.host.formats.own_bundle import PACKAGE, find_own_bundle
from holdfast.model.errors import HoldfastError, StorageError

LEAVE = (signal.SIGHUP, signal.SIGTERM)


def run_with_stage(work: Callable[[str], int]) -> int:
    """Call `work` with a directory beside the bundle, where there is room for what a run makes; what it answers.

    The directory is removed however `work` ends. That the desk is gone is told twice, by a pipe that breaks and by a
    signal, and the signal may come at any point of the way out: the first one leads out of here, and from then on none
    is heard. The outer `finally` holds where it comes inside the inner one.
    """
    beside = os.path.dirname(os.path.dirname(os.path.dirname(PACKAGE))) if find_own_bundle() else tempfile.gettempdir()
    stage = f"{beside}/{CALL}{os.urandom(8).hex()}"
    for number in LEAVE:
        signal.signal(number, _leave)
    try:
        try:
            os.mkdir(stage, 0o700)
            return work(stage)
        finally:
            _ignore()
    finally:
        remove_tree(stage)


def _leave(number: int, _frame: object) -> None:
    _ignore()
    raise SystemExit(128 + number)


def _ignore() -> None:
    for number in LEAVE:
        signal.signal(number, signal.SIG_IGN)


def receive_file(place: str, size: int) -> None:
    """Take a file from standard input.

    Raises:
        StorageError: it ends too early.
    """
    with open(place, "xb") as file:
        os.fchmod(file.fileno(), 0o600)
        left = size
        while left:
            data = os.read(0, min(left, 1 << 18))
            if not data:
                raise StorageError("a file of the desk did not arrive whole", hint="repeat the command")
            file.write(data)
            left -= len(data)


def send_file(mark: bytes, place: str, name: str) -> int:
    """Write a file behind `mark` on standard output; the exit code. An error is a line of the stream then."""
    write_all(1, mark)
    try:
        for data in send_path(place, name):
            write_all(1, data)
    except BrokenPipeError:
        raise
    except HoldfastError as error:
        return print_error(error)
    except OSError as error:
        return print_error(StorageError(f"{name}: {error.strerror}"))
    return 0
