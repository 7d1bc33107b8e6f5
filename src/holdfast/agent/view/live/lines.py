"""The lines of several runs in one stream, each with the name of its run, filtered; live or ended.

Only whole lines are handed on; a last line without an end is one when its run is over.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING

from holdfast.agent.view.follow import UNSTARTED_S, is_untaken
from holdfast.agent.view.live.tail import TailReader
from holdfast.agent.view.observe import observe_run
from holdfast.host.clock import monotonic_s
from holdfast.model import wire
from holdfast.model.ids import name_of
from holdfast.model.record import record

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.agent.view.run_view import RunView

READ_EVERY_S = 0.3
LOOK_EVERY_S = 2.0
"""How often runs are looked at for their end; their files are read more often."""
LONGEST_LINE = 1 << 20
"""What is longer without an end is handed on in pieces of this size."""


@record
class LogFile:
    """One file of one attempt, and the words before its lines (empty: none)."""

    run_dir: str
    attempt: int
    name: str
    label: str = ""

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{wire.attempt_dir(self.run_dir, self.attempt)}/{self.name}"


def label_runs(run_dirs: Sequence[str]) -> list[str]:
    """What tells these runs apart: their names, where all differ, else their ids."""
    ids = [os.path.basename(run_dir) for run_dir in run_dirs]
    names = [name_of(run_id) for run_id in ids]
    return names if len(set(names)) == len(names) else ids


class FilteredLog:
    """The matching lines of one file, as they come."""

    def __init__(self, file: LogFile, pattern: re.Pattern[bytes] | None) -> None:
        """`pattern` is searched for in each line."""
        self.file = file
        self._reader, self._pattern, self._rest = TailReader(file.path), pattern, b""
        self._prefix = f"{file.label} | ".encode() if file.label else b""

    def read(self, *, last: bool = False) -> Iterator[bytes]:
        """What is new; with `last` also what has no end yet."""
        for data in self._reader.read_rest() if last else self._reader.read():
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield from self._filter(line)
            while len(self._rest) > LONGEST_LINE:
                line, self._rest = self._rest[:LONGEST_LINE], self._rest[LONGEST_LINE:]
                yield from self._filter(line)
        if last and self._rest:
            line, self._rest = self._rest, b""
            yield from self._filter(line)

    def _filter(self, line: bytes) -> Iterator[bytes]:
        if self._pattern is None or self._pattern.search(line):
            yield self._prefix + line + b"\n"

    def close(self) -> None:
        """Give the descriptor back."""
        self._reader.close()


def read_all(log: FilteredLog, lines: int | None) -> Iterator[bytes]:
    """The last `lines` matching lines (None: all) that are there now."""
    found = log.read(last=True)
    yield from found if lines is None else deque(found, lines)


def follow_all(
    logs: list[FilteredLog],
    lines: int | None,
    write: Callable[[bytes], None],
    find_more: Callable[[], tuple[Sequence[FilteredLog], bool]] | None = None,
) -> list[RunView]:
    """Write the last `lines` of each, then what comes, until every run is over; their last looks.

    `find_more` is asked now and then for the files of runs that have begun meanwhile, which are added to `logs`, and
    whether others may follow.
    """
    for log in logs:
        found = log.read()
        for line in found if lines is None else deque(found, lines):
            write(line)
    views: dict[str, RunView] = {}
    untaken_since: dict[str, float] = {}
    looked_s, goes_on = 0.0, find_more is not None
    while len(views) < len(logs) or goes_on:
        looks = monotonic_s() - looked_s >= LOOK_EVERY_S
        looked_s = monotonic_s() if looks else looked_s
        if looks and goes_on and find_more is not None:
            more, goes_on = find_more()
            logs += more
        for log in [log for log in logs if log.file.path not in views]:
            view = observe_run(log.file.run_dir, attempt=log.file.attempt) if looks else None
            over = view is not None and _is_over(view, untaken_since)
            for line in log.read(last=over):
                write(line)
            if view is not None and over:
                views[log.file.path] = view
        if len(views) < len(logs) or goes_on:
            time.sleep(READ_EVERY_S)
    return list(views.values())


def _is_over(view: RunView, untaken_since: dict[str, float]) -> bool:
    if view.state is None or is_untaken(view):
        since = untaken_since.setdefault(view.run_dir, monotonic_s())
        return monotonic_s() - since >= UNSTARTED_S
    return view.over or view.vanished
