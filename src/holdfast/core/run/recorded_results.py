"""What the end of a run recorded of its results, and whether a file is still what it was then.

``exit.json`` has size and modification time of what lies right below ``artifacts``, the first thousand names. What is
deeper is not recorded, and a change that puts the time back is not told by them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from holdfast.model import wire
from holdfast.model.run import Outcome
from holdfast.model.verdict import FailureClass

CHANGED_BY_S = 0.002
"""The exit record keeps modification times to the millisecond."""
CHANGED = "is not what it was at the end, when it was proven"


class Change(str, Enum):
    """How a result is not any more what was recorded of it. `TOUCHED`: the size is the same, the time alone is not."""

    WRITTEN = "written"
    TOUCHED = "touched"
    GONE = "gone"

    @property
    def words(self) -> str:
        """The same for people, behind its path."""
        return _WORDS[self]


_WORDS = {
    Change.WRITTEN: CHANGED,
    Change.TOUCHED: (
        "has the size but not the time of the end: nobody can say that it is what was proven (cp -r and touch do that, "
        "too)"
    ),
    Change.GONE: "was there at the end, when it was proven, and is gone from the run",
}


def has_proven(exit_record: Mapping[str, object]) -> bool:
    """Whether results were proven at this end: it succeeded, or failed by the copy of its results alone."""
    succeeded = exit_record.get("outcome") == Outcome.SUCCEEDED.value
    return succeeded or exit_record.get("failure_class") == FailureClass.SYNC_FAILED.value


def list_recorded(exit_record: Mapping[str, object]) -> dict[str, tuple[int, float]]:
    """Size and modification time (epoch seconds) at the end, by path inside the run directory."""
    found = {}
    told = exit_record.get("artifacts")
    for item in told if isinstance(told, list) else ():
        if isinstance(item, dict) and isinstance(item.get("bytes"), int) and isinstance(item.get("modified"), float):
            found[f"{wire.ARTIFACTS}/{item.get('name')}"] = (item["bytes"], item["modified"])
    return found


def is_changed(recorded: tuple[int, float], size: int, modified: float) -> bool:
    """Whether a file of this size, written at `modified` (epoch seconds), is not what was recorded of it."""
    return recorded[0] != size or abs(recorded[1] - modified) > CHANGED_BY_S


def find_change(recorded: tuple[int, float], size: int, modified: float) -> Change | None:
    """How such a file is not what was recorded; None where it is."""
    if not is_changed(recorded, size, modified):
        return None
    return Change.WRITTEN if recorded[0] != size else Change.TOUCHED
