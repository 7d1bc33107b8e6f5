"""What a run has written: the files of its attempts, as records, and as bytes that come while it lives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.view.changes import ChangeWatch
from holdfast.agent.view.follow import UNSTARTED_S, is_untaken, watch_processes
from holdfast.agent.view.live.tail import TailReader, find_last_lines
from holdfast.agent.view.observe import list_attempts, observe_run
from holdfast.agent.view.run_view import RunReach
from holdfast.agent.view.scheduled import hear
from holdfast.host.clock import monotonic_s
from holdfast.host.job.output import read_lost_output
from holdfast.model import wire
from holdfast.model.errors import NoSuchName, NoSuchRun
from holdfast.model.identity import LostOutput
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.agent.view.run_view import RunView

MOST_BYTES = 16 * 1024**2
MOST_LINES = 200_000
"""How much of a file one record holds; as text all of it is printed."""


@record
class AttemptLog:
    """The lines of a file of one attempt; `exists` tells an empty file from none.

    `left_out_bytes` before them were asked for, and are more than one answer holds. `lost` is what the disk refused of
    the job's output.
    """

    attempt: int
    path: str
    exists: bool
    lines: tuple[str, ...]
    left_out_bytes: int = 0
    lost: LostOutput | None = None


@record
class Logs:
    """A file of some attempts of a run."""

    run_id: str
    file: str
    attempts: tuple[AttemptLog, ...]


def choose_attempts(run_dir: str, asked: str | None) -> tuple[int, ...]:
    """The attempts that are meant: the newest, a number's, or ``all``.

    Raises:
        NoSuchRun: there is none yet.
        NoSuchName: there is none of this number.
    """
    attempts, run_id = list_attempts(run_dir), os.path.basename(run_dir)
    if not attempts:
        raise NoSuchRun(f"{run_id} has no attempt yet", hint=f"holdfast show {run_id}")
    if asked is None:
        return attempts[-1:]
    if asked == "all":
        return attempts
    if not asked.isascii() or not asked.isdigit() or int(asked) not in attempts:
        known = ", ".join(map(str, attempts))
        raise NoSuchName(f"{run_id} has no attempt {asked!r}", hint=f"it has {known}; or say `all`")
    return (int(asked),)


def read_logs(run_dir: str, attempts: Iterable[int], name: str, lines: int | None) -> Logs:
    """The last `lines` (all with None) of the file `name` of each attempt."""
    return Logs(os.path.basename(run_dir), name, tuple(_read(run_dir, number, name, lines) for number in attempts))


def _read(run_dir: str, attempt: int, name: str, lines: int | None) -> AttemptLog:
    path = f"{wire.attempt_dir(run_dir, attempt)}/{name}"
    exists = os.path.exists(path)
    asked = 0 if lines is None else find_last_lines(path, lines)
    fits = max(asked, find_last_lines(path, MOST_LINES), (os.path.getsize(path) if exists else 0) - MOST_BYTES)
    follower = TailReader(path, fits)
    try:
        text = b"".join(follower.read()).decode("utf-8", "replace")
    finally:
        follower.close()
    return AttemptLog(attempt, path, exists, tuple(text.splitlines()), fits - asked, find_lost(run_dir, attempt, name))


def find_lost(run_dir: str, attempt: int, name: str) -> LostOutput | None:
    """What the disk refused of the file `name`; None: nothing, or it is not the job's output."""
    if name != wire.OUTPUT:
        return None
    return read_lost_output(os.path.basename(run_dir), attempt, wire.attempt_dir(run_dir, attempt))


def find_missing(run_dir: str, attempt: int, name: str) -> RunView | None:
    """The attempt when it has not written `name`; None when it has."""
    if os.path.lexists(f"{wire.attempt_dir(run_dir, attempt)}/{name}"):
        return None
    return hear(observe_run(run_dir, attempt=attempt))


def open_log(
    run_dir: str, attempt: int, name: str, lines: int | None, start: tuple[int, bytes] | None = None
) -> TailReader:
    """The last `lines` (all with None) of a file, and what comes behind them.

    `start` is an offset and what stands before it: then that is where it begins.
    """
    path = f"{wire.attempt_dir(run_dir, attempt)}/{name}"
    if start is not None:
        return TailReader(path, *start)
    return TailReader(path, 0 if lines is None else find_last_lines(path, lines))


def stream(follower: TailReader) -> Iterator[bytes]:
    """What is there of a file, in pieces; it is closed then."""
    try:
        yield from follower.read()
    finally:
        follower.close()


def follow(run_dir: str, attempt: int, follower: TailReader, *, write: Callable[[Iterable[bytes]], None]) -> RunView:
    """Write what is there of a file and what comes, until the attempt is over or nobody is left; the last look.

    One that no supervisor takes up within `UNSTARTED_S` writes nothing more. The file is closed then.
    """
    try:
        view = observe_run(run_dir, attempt=attempt)
        with ChangeWatch(wire.attempt_dir(run_dir, attempt), local=view.reach is RunReach.HERE) as changes:
            look, untaken_since = True, None
            while True:
                if look:
                    view = observe_run(run_dir, attempt=attempt)
                    untaken = view.state is None or is_untaken(view)
                    untaken_since = (untaken_since or monotonic_s()) if untaken else None
                write(follower.read())
                unbegun = untaken_since is not None and monotonic_s() - untaken_since >= UNSTARTED_S
                if view.over or view.vanished or unbegun:
                    write(follower.read_rest())
                    return view
                watch_processes(changes, view)
                look = changes.wait(UNSTARTED_S if untaken_since else None) != frozenset({wire.OUTPUT})
    finally:
        follower.close()
