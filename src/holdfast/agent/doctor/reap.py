"""Ends leftover processes of earlier runs on request: listed first, ended after consent."""

from __future__ import annotations

import os
from collections.abc import Iterable

from holdfast.agent.control import leftovers as reaper
from holdfast.agent.control.leftovers import ReapedProcess
from holdfast.agent.view.runs import leftovers as view
from holdfast.agent.view.runs.leftovers import Leftover, Leftovers, SparedProcess
from holdfast.model.errors import StillAlive
from holdfast.model.record import record


@record
class ReapReport:
    """What was found, and what became of it; exit code 76 when something survived KILL."""

    leftovers: tuple[Leftover, ...]
    spared: tuple[SparedProcess, ...]
    done: tuple[ReapedProcess, ...]
    exit_code: int


def find_leftovers(roots: Iterable[str], within: str | None) -> Leftovers:
    """What ended runs left; with `within` only of runs below that directory.

    `roots` are all places of runs even then: a live run of another one may have been started inside an ended run.
    """
    return view.find_leftovers(roots=roots, within=None if within is None else os.path.abspath(within))


def end_leftovers(seen: Leftovers, grace_s: float) -> ReapReport:
    """End what was found: TERM, the grace, KILL.

    Raises:
        StorageError: what is done could not be recorded; nothing was ended.
    """
    done = reaper.end_leftovers(seen.found, grace_s=grace_s) if seen.found else ()
    alive = any(end.outcome == "alive" for end in done)
    return ReapReport(seen.found, seen.spared, done, StillAlive.exit_code if alive else 0)
