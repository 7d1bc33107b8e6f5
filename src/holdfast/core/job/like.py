"""The job of an earlier run as one of its own: without what the sweep gave it that it was a job of. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.job import JobSpec
from holdfast.model.record import replace

PLACE_IN_SWEEP = frozenset({"HOLDFAST_JOB", "HOLDFAST_GROUP"})
PARAMETER = "HOLDFAST_PARAM_"


def leave_sweep(before: JobSpec, command: Sequence[str]) -> tuple[JobSpec, tuple[str, ...]]:
    """The job without the variables of its sweep, and sentences about those that went.

    Its place in the sweep is never that of another run. Its parameters stay with its own command, which may read them;
    with another `command` they go, too.
    """
    gone = [name for name in before.env if name in PLACE_IN_SWEEP or (command and name.startswith(PARAMETER))]
    if not gone:
        return before, ()
    job = replace(before, env={name: value for name, value in before.env.items() if name not in gone})
    words = [f"left out, of the sweep that it was a job of: {', '.join(gone)}"]
    text = " ".join(command or before.command)
    if used := [name for name in gone if name in text]:
        words.append(f"the command names {', '.join(used)}: give it with --env {used[0]}=VALUE")
    return job, tuple(words)
