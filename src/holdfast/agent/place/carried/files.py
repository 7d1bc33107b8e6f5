"""Files of a desk for one command here, in a directory of that call alone, which goes with it (docs/places.md)."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.agent.place.answer import print_error
from holdfast.agent.place.sweep import CALL
from holdfast.agent.view.run_files import send_path
from holdfast.host.files.files import write_all
from holdfast.host.formats.own_bundle import PACKAGE, find_own_bundle
from holdfast.model.errors import HoldfastError, StorageError

LEAVE = (signal.SIGHUP, signal.SIGTERM)


@contextmanager
def stage_files() -> Iterator[str]:
    """A directory beside the bundle, where there is room for what a run makes; it is removed when the desk is gone."""
    for number in LEAVE:
        signal.signal(number, _leave)
    beside = os.path.dirname(os.path.dirname(os.path.dirname(PACKAGE))) if find_own_bundle() else None
    stage = tempfile.mkdtemp(prefix=CALL, dir=beside)
    try:
        yield stage
    finally:
        # The end of the connection is told twice: by a pipe that breaks, and by a signal, which may come later.
        for number in LEAVE:
            signal.signal(number, signal.SIG_IGN)
        shutil.rmtree(stage, ignore_errors=True)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


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
