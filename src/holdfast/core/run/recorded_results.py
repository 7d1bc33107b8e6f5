"""What the end of a run recorded of its results, and whether a file is still what it was then.

``exit.json`` has size and modification time of what lies right below ``artifacts``, the first thousand names. What is
deeper is not recorded, and a change that puts the time back is not told by them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model import wire

CHANGED_BY_S = 0.002
"""The exit record keeps modification times to the millisecond."""
CHANGED = "is not what it was at the end, when it was proven"


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
