"""What people wanted to be told and were not, of groups of the queue and by sentinels, for a patrol to say.

Who tells it is gone, or nobody takes it. Nothing is changed or sent here.
"""

from __future__ import annotations

import os

from holdfast.agent.messages.group_end import find_untold, read_told
from holdfast.agent.messages.tries import is_due
from holdfast.agent.patrol.sentinel import records
from holdfast.agent.queue.open import look_at_queue, look_for_worker
from holdfast.agent.queue.presence import was_just_started
from holdfast.host.clock import epoch_s
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.store.paths import queue_directory, state_directory

LOOK_S = 5.0
MOST = 5


def list_untold() -> dict[str, str]:
    """What a person is to know, in words by a name of its own. Takes `LOOK_S` at most."""
    if not os.path.lexists(state_directory()) and not os.path.lexists(queue_directory()):
        return {}
    try:
        found: dict[str, str] = Offload(_look).wait(LOOK_S)
    except (OffloadFailed, OSError) as error:
        return {"untold": f"whether people were told of groups and by sentinels cannot be seen: {error}"}
    return found


def _look() -> dict[str, str]:
    return {**list_untold_groups(), **records.list_untold()}


def list_untold_groups(*, due: bool = False) -> dict[str, str]:
    """The same of the queue's groups alone; with `due` what a worker would tell if one were started now.

    Raises:
        HoldfastError: the queue cannot be opened.
    """
    if not os.path.lexists(queue_directory()):
        return {}
    with look_at_queue() as queue:
        at_work = look_for_worker(queue)[0] is not None or was_just_started(queue.directory)
        found, told = {}, read_told(queue)
        if not at_work and (left := len(queue.active())):
            jobs = f"{left} job{'s' if left > 1 else ''} of the queue"
            found["queue"] = f"{jobs} had not ended when its worker did; `holdfast reconcile` starts one"
        for end in find_untold(queue, told):
            tried = told.untold.get(end.group)
            # Without a time it is under way, or its worker was killed.
            why = tried.problem if tried is not None and tried.key == end.key and tried.tried_at else ""
            if due and (at_work or not is_due(tried, end.key, epoch_s())):
                continue
            if (why or not at_work) and len(found) < MOST:
                found[f"group {end.group}"] = f"{end.summary}; nobody was told{f': {why}' if why else ''}"
        return found
