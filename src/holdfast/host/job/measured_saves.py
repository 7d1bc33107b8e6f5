"""How long a run's saves take, as its own heartbeats say. Looks at the newest attempts first."""

from __future__ import annotations

import os

from holdfast.host.files import files
from holdfast.model import wire

LARGEST_BYTES = 1 << 20
MOST_ATTEMPTS = 50
LONGEST_SAVE_S = 86_400.0
"""The job writes how long its saves take: more than a day is no save."""


def find_save_s(run_dir: str) -> float | None:
    """How long the last measured save of a run took, in the newest attempt that has one; None without."""
    for number in list_newest(run_dir)[:MOST_ATTEMPTS]:
        path = f"{wire.attempt_dir(run_dir, number)}/{wire.HEARTBEAT}"
        try:
            beat = wire.clean_heartbeat(wire.parse_object(files.read_bytes(path, limit=LARGEST_BYTES), path))
        except (OSError, wire.WireError):
            continue
        taken = wire.as_number(beat.get("save_seconds"))
        if taken is not None and 0 < taken < LONGEST_SAVE_S:
            return taken
    return None


def list_newest(run_dir: str) -> list[int]:
    """The numbers of the attempts of a run, the newest first; none when they cannot be read."""
    try:
        names = os.listdir(f"{run_dir}/{wire.ATTEMPTS}")
    except OSError:
        return []
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)
