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
    from .observe import RunView


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
    holdfast diagnose {place}        # why it died, hangs or is slow; `holdfast explain` knows the words
    holdfast patrol                  # one look at every run here: who needs a person

## Stop

    holdfast stop {place}            # asks, waits for its last checkpoint, then insists
    holdfast stop --now {place}      # no grace

A closed terminal or a lost connection stops nothing.

## Go on

    holdfast restart {place}         # the same command as the next attempt, in the same directory
    holdfast adopt {place}           # when its supervisor was killed and the job still runs
    holdfast reconcile               # the same for all runs, and what was lost is recorded as lost
    holdfast sentinel {place} --for ended    # wait for it

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


def render_now(view: RunView) -> str:
    """The handbook made anew from what is so now: first where the run stands and the first thing to do (MON-04).

    Raises:
        StorageError: its `run.json` cannot be read, so there is nothing to make a handbook from.
    """
    from ..model.errors import StorageError
    from ..model.origin import RunOrigin

    try:
        origin = wire.decode(RunOrigin, view.record, wire.RUN)
    except wire.WireError as error:
        raise StorageError(
            f"{view.run_dir}: its {wire.RUN} cannot be read ({error})",
            hint=f"cat {view.run_dir}/{wire.HANDBOOK} may have an older handbook",
        ) from error
    title, _, rest = render_handbook(view.run_dir, max(view.attempt, 1), origin.job).partition("\n\n")
    return f"{title}\n\n{_render_state(view)}\n{rest}"


def _render_state(view: RunView) -> str:
    """Where it stands, and the one command to begin with."""
    from shlex import quote

    step, durable = view.heartbeat.get("step"), view.heartbeat.get("last_durable_step")
    lines = [f"Now ({view.observed_at}): {view.condition}{f': {view.note}' if view.note else ''}."]
    if step is not None:
        lines.append(f"Step {step}" + (f", durable checkpoint of step {durable}." if durable is not None else "."))
    lines += [f"Cannot be read: {item.path}: {item.reason}." for item in view.unreadable]
    first = _first_command(view, quote(os.path.abspath(view.run_dir)))
    lines += ["", "First command:", "", *_explain_program(), f"    {first}", ""]
    return "\n".join(lines)


def _explain_program() -> list[str]:
    """How `holdfast` is called where the shell does not find it; nothing where it does."""
    import shutil
    import sys
    from shlex import quote

    return [] if shutil.which("holdfast") else [f"    alias holdfast={quote(f'{quote(sys.executable)} -m holdfast')}"]


def _first_command(view: RunView, place: str) -> str:
    from .observe import Reach

    if view.reach is Reach.OTHER_HOST:
        return f"ssh {view.host} holdfast show {place}"
    if view.ended:
        verbs = {"succeeded": "show", "failed": "diagnose", "lost": "diagnose"}
        return f"holdfast {verbs.get(view.condition, 'restart')} {place}"
    if view.state is None:
        return f"holdfast show {place}"
    if view.vanished:
        return "holdfast reconcile"
    if view.supervised:
        return f"holdfast attach {place}"
    return f"holdfast adopt {place}" if view.job_lives else f"holdfast restart {place}"
