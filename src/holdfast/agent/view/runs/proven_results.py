"""Results that the end of a run proved, held against what is there now, also after later attempts.

What an attempt that succeeded left stays proven while nobody writes it. A later attempt may write it: what has a time
of then, or one that nobody can place, is that attempt's. What was written behind the end of the one and before the
start of the next was written while nothing of the run lived: that is damage, whatever came later.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import LARGEST_RECORD_BYTES
from holdfast.core.job.scratch import find_pattern_problem, matches
from holdfast.core.run.recorded_results import Change, find_change, has_proven, list_recorded
from holdfast.host.clock import parse_utc
from holdfast.host.files import fallback, files
from holdfast.model import wire
from holdfast.model.record import field, record
from holdfast.model.run import CopyState

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView


@record
class ProvenResults:
    """What became of the results of `attempt`, the newest that proved some (0: none did).

    `changed` are not what they were then, with how; `rewritten` are those that a later attempt wrote, or may have.
    """

    attempt: int = 0
    changed: dict[str, Change] = field(default_factory=dict)
    rewritten: tuple[str, ...] = ()


def find_proven(view: RunView) -> ProvenResults:
    """Look at the results; nothing is told where records cannot be read."""
    attempt, end = _find_end(view)
    later = [number for number in view.attempts if number > attempt]
    window = _read_window(view, end, later[0]) if later else None
    changed, rewritten = {}, []
    for path, recorded in list_recorded(end).items():
        if files.is_temporary(os.path.basename(path)):
            continue
        try:
            seen = os.lstat(f"{view.run_dir}/{path}")
        except FileNotFoundError:
            if not later:
                changed[path] = Change.GONE
            continue
        except (OSError, ValueError):  # the record may be anybody's
            continue
        how = find_change(recorded, seen.st_size, seen.st_mtime)
        if stat.S_ISREG(seen.st_mode) and how is None:
            continue
        if later and not (stat.S_ISREG(seen.st_mode) and window and window[0] < seen.st_mtime < window[1]):
            rewritten.append(path)
        elif stat.S_ISREG(seen.st_mode) and how is not None:
            changed[path] = how
    if Change.GONE in changed.values():
        meant = _Meant(view, attempt)
        changed = {path: how for path, how in changed.items() if how is not Change.GONE or not meant.names(path)}
    return ProvenResults(attempt, changed, tuple(rewritten))


def _find_end(view: RunView) -> tuple[int, Mapping[str, object]]:
    """The newest attempt that proved results, and its exit record; 0 where none did, or a record cannot be read."""
    for attempt in reversed(view.attempts):
        try:
            end = _read(view, attempt, wire.EXIT)
        except FileNotFoundError:
            continue
        except (OSError, wire.WireError):
            break
        if has_proven(end):
            return attempt, end
    return 0, {}


def _read_window(view: RunView, end: Mapping[str, object], following: int) -> tuple[float, float] | None:
    """When nothing of the run lived: from this end to the start of the attempt that followed (epoch seconds)."""
    try:
        state = _read(view, following, wire.STATE)
        return parse_utc(str(end.get("at"))), parse_utc(str(state.get("created_at")))
    except (OSError, ValueError):
        return None


def _read(view: RunView, attempt: int, name: str) -> dict[str, object]:
    path = f"{wire.attempt_dir(view.run_dir, attempt)}/{name}"
    return wire.parse_object(fallback.read(view.run_id, attempt, path, limit=LARGEST_RECORD_BYTES), name)


class _Meant:
    """Which results may be gone on purpose: declared scratch, and what was proven at the job's place for results."""

    def __init__(self, view: RunView, attempt: int) -> None:
        disk = view.spec.get("disk")
        declared = disk.get("scratch") if isinstance(disk, dict) else ()
        patterns = map(str, declared if isinstance(declared, (list, tuple)) else ())
        self._patterns = [pattern for pattern in patterns if not find_pattern_problem(pattern)]
        try:
            copied = _read(view, attempt, wire.RESULTS)
        except FileNotFoundError:
            copied = {}
        except (OSError, wire.WireError):
            self._patterns, copied = [f"{wire.ARTIFACTS}/**"], {}  # nobody can tell
        told = copied.get("files") if copied.get("state") == CopyState.COPIED.value else ()
        self._copied = {one.get("path") for one in told if isinstance(one, dict)} if isinstance(told, list) else set()

    def names(self, path: str) -> bool:
        """Whether this one may be."""
        return path in self._copied or any(matches(path, pattern) for pattern in self._patterns)
