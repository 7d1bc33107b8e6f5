"""What the last patrol told, in the user's own state directory: all that a patrol writes, and only on request.

A memory that cannot be read is an empty one, and says so: then everything is told again, which is the safe side.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...host import clock, files
from ...model import wire
from ...store.index import state_directory

if TYPE_CHECKING:
    from ..patrol import Tick

NAME = "patrol.json"


@dataclass(frozen=True, slots=True)
class Memory:
    """When the last patrol was (ISO UTC, empty: never), and what it told of each run, by directory."""

    at: str = ""
    told: dict[str, str] = field(default_factory=dict)
    notice: str = ""


def load() -> Memory:
    """The memory of this account; empty when there is none or it is damaged."""
    path = f"{state_directory()}/{NAME}"
    try:
        value = wire.parse_object(files.read_bytes(path), path)
    except FileNotFoundError:
        return Memory()
    except (OSError, wire.WireError) as error:
        return Memory(notice=f"the memory of earlier patrols cannot be read, so everything is told anew: {error}")
    told, at = value.get("told"), value.get("at")
    return Memory(
        at=at if isinstance(at, str) else "",
        told={key: text for key, text in told.items() if isinstance(text, str)} if isinstance(told, dict) else {},
    )


def save(tick: Tick, before: Memory) -> None:
    """Remember what this tick told, and of what it did not look at what was told before; runs that are gone go.

    Raises:
        OSError: it cannot be written.
    """
    directory = state_directory()
    os.makedirs(directory, mode=0o700, exist_ok=True)
    blind = {text.partition(":")[0] for text in tick.blind}
    looked_at = set(tick.roots) - blind
    kept = {run_dir: told for run_dir, told in before.told.items() if os.path.dirname(run_dir) not in looked_at}
    content = {"at": tick.at, "told": {**kept, **{seen.run_dir: seen.told for seen in tick.seen}}}
    files.commit(f"{directory}/{NAME}", wire.to_bytes(content), durable=False)


def age_s(memory: Memory) -> float | None:
    """Seconds since the last remembered patrol; None when there was none."""
    try:
        return max(0.0, clock.epoch_s() - clock.parse_utc(memory.at)) if memory.at else None
    except ValueError:
        return None
