"""Remembers what the last patrol reported: all that a patrol writes, and only on request.

A memory that cannot be read is an empty one, and says so: then everything is told again, which is the safe side.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.messages.tries import Undelivered, describe_untold
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.record import field, record
from holdfast.store.paths import make_state_directory, state_directory

if TYPE_CHECKING:
    from .tick import PatrolResult

NAME = "patrol.json"


@record
class PatrolMemory:
    """When the last patrol was (ISO UTC, empty: never), and what it told of each run, by directory.

    `besides` names what else was told. What no channel has taken is not told: it is news still, and `untold` says why.
    """

    at: str = ""
    told: dict[str, str] = field(default_factory=dict)
    besides: tuple[str, ...] = ()
    untold: Undelivered | None = None
    notice: str = ""


def load_memory(below: str = "") -> PatrolMemory:
    """The memory of this account, of runs elsewhere in a directory `below`; an empty one when it cannot be read."""
    path = f"{state_directory()}/{below}/{NAME}"
    try:
        return wire.from_bytes(PatrolMemory, files.read_bytes(path), path)
    except FileNotFoundError:
        return PatrolMemory()
    except (OSError, wire.WireError) as error:
        return PatrolMemory(notice=f"the memory of earlier patrols cannot be read, so everything is told anew: {error}")


def save_memory(
    tick: PatrolResult,
    before: PatrolMemory,
    below: str = "",
    *,
    besides: tuple[str, ...] = (),
    untold: Undelivered | None = None,
) -> None:
    """Remember what this tick told, and of what it did not look at what was told before; runs that are gone go.

    With `untold` its news that need a person were not told; `besides` are names as of `PatrolMemory`.

    Raises:
        HoldfastError, OSError: it cannot be written.
    """
    directory = make_state_directory(below)
    blind = {text.partition(":")[0] for text in tick.blind}
    looked_at = set(tick.roots) - blind
    told = {run_dir: text for run_dir, text in before.told.items() if os.path.dirname(run_dir) not in looked_at}
    for seen in tick.seen:
        if untold is None or not (seen.escalate and seen.news):
            told[seen.run_dir] = seen.told
        elif seen.run_dir in before.told:
            told[seen.run_dir] = before.told[seen.run_dir]
    now = PatrolMemory(at=tick.at, told=told, besides=besides, untold=untold)
    files.commit(f"{directory}/{NAME}", wire.to_bytes(now), durable=False)


def say_untold_of(run_dir: str) -> str:
    """What earlier patrols could not tell anybody (`describe_untold`), where it concerns this run; else empty."""
    untold = load_memory().untold
    return describe_untold(untold, clock.epoch_s()) if untold is not None and run_dir in untold.runs else ""
