"""The step of the newest checkpoint of a run, by the names on disk: a name is there once all of it is durable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.host.files.job_change import list_checkpoint_places
from holdfast.training.storage import step_names

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView


def find_newest_step(run_dir: str, job: Mapping[str, Any]) -> int | None:
    """Complete steps in the newest checkpoint of the training library; None: there is none of its own, or unreadable.

    A job that hangs or was killed did not hear of its last save, so its own word may be one behind.
    """
    return max((step for place in list_checkpoint_places(run_dir, job) for step in _list_steps(place)), default=None)


def find_durable_step(view: RunView) -> int | None:
    """The step of an attempt's newest checkpoint; None where none is known.

    Of the newest attempt it is the one on disk, from which a restart goes on; of an earlier one, or where none is seen
    on disk, the one that the training told of.
    """
    found = find_newest_step(view.run_dir, view.spec) if view.attempt == max(view.attempts, default=0) else None
    if found is not None:
        return found
    left = None if view.end is None else view.end.stop
    told = (None if left is None else left.checkpoint_step, view.heartbeat.get("last_durable_step"))
    return max((step for step in told if isinstance(step, int)), default=None)


def _list_steps(place: str) -> list[int]:
    try:
        return [step for name in os.listdir(place) if (step := step_names.parse_step(name)) is not None]
    except OSError:
        return []
