"""Copies a file or directory of a run to this machine: from here, or from the place where the run is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.agent.view.find import find_run, find_run_path, require_readable
from holdfast.agent.view.run_files import find_in_attempts, send_files
from holdfast.desk.places.names import list_place_names
from holdfast.desk.route.router import split_run
from holdfast.desk.runs import registry
from holdfast.desk.terminal import ReceivedSignals, drain, listening
from holdfast.host.formats.copy_mark import read_mark
from holdfast.model.errors import HoldfastError, NoSuchRun, StorageError, UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import record
from holdfast.transfer.contact import ENTRY
from holdfast.transfer.fetch import Fetched, Receiver

from .connect import find_place, open_box

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

LONGEST_MESSAGE = 4096


@record
class FetchSource:
    """A path of a run at a place."""

    place: str
    run: str
    path: str


class Interrupted(Exception):
    """A signal ended the copy; nothing is left of it. `code` is the exit code."""

    def __init__(self, number: int) -> None:
        """`number` is the signal's."""
        super().__init__()
        self.code = 128 + number


def parse_source(text: str) -> FetchSource:
    """``[PLACE:]RUN/PATH``; a run without a place is looked for here, then among those that were seen elsewhere.

    Raises:
        UsageError: it has not that form, or several places have such a run.
    """
    inside = _find_copy(text)
    if inside is not None:
        return inside
    run, slash, path = text.partition("/")
    place, name = split_run(run)
    if not name or not slash or not path.strip("/"):
        if os.path.exists(text):
            raise UsageError(
                f"{text!r} is a file of this machine, and cp copies from a run to here",
                hint="data goes to a place by `holdfast push PLACE FILE '~/DIRECTORY'`, code with `run --on PLACE`",
            )
        named, path = text.rstrip("/") or "gpu1:digits", "artifacts"
        head, colon, tail = text.rpartition(":")
        if colon and tail and not slash and head not in dict(list_place_names()):  # as scp writes it
            named, path = head, _find_inside(head, tail)
        raise UsageError(
            f"{text!r} names no file of a run",
            hint=f"write [PLACE:]RUN/PATH, such as {named}/{path}; `holdfast files {named}` lists what is there",
        )
    if place is not None and place not in (LOCAL, *dict(list_place_names())) and _is_run(place):
        raise UsageError(
            f"{text!r}: {place} is a run, and no place", hint=f"write RUN/PATH, with a slash: {place}/{name}/{path}"
        )
    return FetchSource(find_run_place(name) if place is None else place, name, path)


def _find_inside(run: str, path: str) -> str:
    """The path that `path` means in a run of this machine: of the newest attempt where it is no other; or as it is."""
    try:
        run_dir = find_run(run).run_dir
    except HoldfastError:
        return path
    return path if os.path.lexists(f"{run_dir}/{path}") else find_in_attempts(run_dir, path) or path


def _is_run(text: str) -> bool:
    try:
        find_run(text)
    except NoSuchRun:
        return bool(registry.find(text))
    except HoldfastError:
        return False
    return True


def _find_copy(text: str) -> FetchSource | None:
    """A path below the copy of a run, as it is in the run; None where it is none."""
    parent = os.path.abspath(text)
    while os.path.lexists(text) and parent != "/":
        parent = os.path.dirname(parent)
        if read_mark(parent) is not None:
            return FetchSource(LOCAL, parent, os.path.relpath(os.path.abspath(text), parent))
    return None


def find_run_place(run: str) -> str:
    """The place of a run that was named without one: here before elsewhere; `LOCAL` where nobody has seen it.

    Raises:
        UsageError: several places have such a run.
    """
    try:
        find_run(run)
    except NoSuchRun:
        places = list(dict.fromkeys(known.place for known in registry.find(run)))
        if len(places) > 1:
            raise UsageError(f"{run!r} is at {', '.join(places)}", hint="write PLACE:RUN/PATH") from None
        return places[0] if places else LOCAL
    return LOCAL


def fetch(source: FetchSource, target: str, *, force: bool, tell: Callable[[int, int], None]) -> Fetched:
    """Copy, prove, and put it into place.

    Raises:
        HoldfastError: it was not copied, and nothing is left at the target or beside it.
        Interrupted: by a signal; the same.
    """
    receiver = Receiver(target, force=force, tell=tell)
    box = None if source.place == LOCAL else open_box(find_place(source.place))
    if box is not None:
        box.prepare(sends=False)
    try:
        with listening() as (wake_fd, heard):
            if box is None:
                _copy_here(source, receiver, heard)
            else:
                _receive(source, box, receiver, wake_fd, heard)
            return receiver.finish()
    finally:
        receiver.abandon()


def _copy_here(source: FetchSource, receiver: Receiver, heard: ReceivedSignals) -> None:
    found, path = find_run_path(source.run, source.path)
    require_readable(found)
    for data in send_files(found.run_dir, path):
        receiver.feed(data)
        if heard:
            raise Interrupted(heard[0])


def _receive(source: FetchSource, box: Box, receiver: Receiver, wake_fd: int, heard: ReceivedSignals) -> None:
    errors = bytearray()

    def hear(data: bytes) -> None:
        errors.extend(data[: LONGEST_MESSAGE - len(errors)])

    def woken() -> bool:
        drain(wake_fd)
        return bool(heard)

    argv = (ENTRY, "copy", source.run, source.path)
    try:
        code = box.follow(argv, out=receiver.feed, err=hear, wake_fd=wake_fd, woken=woken)
    except HoldfastError as error:
        error.details.setdefault("place", source.place)
        raise
    if code == -1:
        raise Interrupted(heard[0])
    if code != 0:
        said = errors.decode("utf-8", "replace").strip().splitlines() or [f"exit code {code}"]
        raise StorageError(f"{source.place}: the copy ended: {said[-1]}", hint="repeat the command")
