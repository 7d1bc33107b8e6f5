"""The handbook of a run: how to look at it, stop it and go on with it from a fresh shell, with its real paths.

For somebody who was not there: a colleague, or the same person a month later. It names holdfast's commands first, and
then the files, so that it is of use where holdfast is not installed any more.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..core.redact import redact_argv
from ..host import files
from ..model import wire
from ..model.units import format_duration

if TYPE_CHECKING:
    from ..model.job import JobSpec


def write_handbook(run_dir: str, attempt: int, spec: JobSpec) -> None:
    """Write ``handbook.md`` for the newest attempt of a run.

    Raises:
        OSError: it cannot be written.
    """
    files.commit(
        f"{run_dir}/{wire.HANDBOOK}", render_handbook(run_dir, attempt, spec).encode("utf-8", "replace"), durable=False
    )


def render_handbook(run_dir: str, attempt: int, spec: JobSpec) -> str:
    """The handbook's text, in Markdown."""
    from shlex import join, quote

    run_dir = os.path.abspath(run_dir)
    place = quote(run_dir)
    directory = quote(wire.attempt_dir(run_dir, attempt))
    command = join(redact_argv(spec.command)[0])
    limit = format_duration(spec.timeouts.run_s) if spec.timeouts.run_s is not None else "none"
    return f"""\
# {os.path.basename(run_dir)}

Attempt {attempt} of `{command}` in `{spec.workdir}` on {os.uname().nodename}. Time limit: {limit}.

## Look

    holdfast show {place}
    holdfast logs -f {place}
    holdfast attach {place}          # as if it had been started here; Ctrl-C asks it to stop

    holdfast checkpoint {place}      # save now and go on, where the script uses holdfast.training

## Stop

    holdfast stop {place}            # asks, waits for its last checkpoint, then insists
    holdfast stop --now {place}      # no grace

A closed terminal or a lost connection stops nothing.

## Go on

    holdfast restart {place}         # the same command as the next attempt, in the same directory
    holdfast adopt {place}           # when its supervisor was killed and the job still runs

The job finds its checkpoints in `{run_dir}/{wire.CHECKPOINTS}` (`HOLDFAST_CHECKPOINT_DIR`) and why it was started in
`HOLDFAST_REASON`.

## Without holdfast

    tail -f {directory}/{wire.OUTPUT}
    python3 -m json.tool {directory}/{wire.STATE}      # where it stands; pids with their start times
    python3 -m json.tool {directory}/{wire.EXIT}       # how it ended, once it has
    cat {directory}/{wire.FAILURE}                     # why it failed, if it did

- results: `{run_dir}/{wire.ARTIFACTS}`
- what ran: `{run_dir}/{wire.RUN}`, copies in `{run_dir}/{wire.SNAPSHOT}`
- earlier attempts: `{run_dir}/{wire.ATTEMPTS}`
"""
