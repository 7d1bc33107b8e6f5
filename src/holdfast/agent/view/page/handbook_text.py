"""The handbook of a run: how to look at it, stop it and go on with it from a fresh shell, with its real paths.

For somebody who was not there: a colleague, or the same person a month later. It names holdfast's commands first, and
then the files, so that it is of use where holdfast is not installed any more.
"""

from __future__ import annotations

import os
from shlex import join, quote

from holdfast.agent.view.observe import find_durable_step
from holdfast.agent.view.run_view import RunReach, RunView
from holdfast.core.job.redact import redact_argv
from holdfast.host.formats.own_bundle import build_own_command
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.job import JobSpec
from holdfast.model.origin import RunOrigin
from holdfast.model.units import format_duration


def render_handbook(run_dir: str, attempt: int, spec: JobSpec, *, box: str | None = None) -> str:
    """The handbook's text, in Markdown; for a desk elsewhere that calls this machine `box` the run is its id."""
    run_dir = os.path.abspath(run_dir)
    place = quote(run_dir) if box is None else os.path.basename(run_dir)
    directory = quote(wire.attempt_dir(run_dir, attempt))
    command = join(redact_argv(spec.command)[0])
    times = ((spec.timeouts.total_s, "for this attempt from its start"), (spec.timeouts.run_s, "for the job"))
    limit = ", ".join(f"{format_duration(s)} {words}" for s, words in times if s is not None) or "none"
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

    holdfast restart {place}         # the same command as the next attempt; --timeout 8h ... changes the job
    holdfast limit {place} --timeout +2h     # other limits while it runs
    holdfast adopt {place}           # when its supervisor was killed and the job still runs
    holdfast reconcile               # the same for all runs, and what was lost is recorded as lost
    holdfast sentinel {place} --for ended    # wait for it

The job finds its checkpoints in `{run_dir}/{wire.CHECKPOINTS}` (`HOLDFAST_CHECKPOINT_DIR`) and why it was started in
`HOLDFAST_REASON`.

## Without holdfast{"" if box is None else f", logged in to {box}"}

    tail -f {directory}/{wire.OUTPUT}
    python3 -m json.tool {directory}/{wire.STATE}      # where it stands; pids with their start times
    python3 -m json.tool {directory}/{wire.EXIT}       # how it ended, once it has
    cat {directory}/{wire.FAILURE}                     # why it failed, if it did

- results: `{run_dir}/{wire.ARTIFACTS}`
- what ran: `{run_dir}/{wire.RUN}`, copies in `{run_dir}/{wire.SNAPSHOT}`
- earlier attempts: `{run_dir}/{wire.ATTEMPTS}`
"""


def render_now(view: RunView, *, box: str | None = None) -> str:
    """The handbook made anew from what is so now: first where the run stands and the first thing to do (MON-04).

    `box` is as for `render_handbook`.

    Raises:
        StorageError: its `run.json` cannot be read, so there is nothing to make a handbook from.
    """
    try:
        wire.decode(RunOrigin, view.record, wire.RUN)
        job = wire.decode(JobSpec, view.spec, wire.RUN)
    except wire.WireError as error:
        raise StorageError(
            f"{view.run_dir}: its {wire.RUN} cannot be read ({error})",
            hint=f"cat {view.run_dir}/{wire.HANDBOOK} may have an older handbook",
        ) from error
    title, _, rest = render_handbook(view.run_dir, max(view.attempt, 1), job, box=box).partition("\n\n")
    return f"{title}\n\n{_render_state(view, box)}\n{rest}"


def _render_state(view: RunView, box: str | None) -> str:
    """Where it stands, and the one command to begin with."""
    step, durable = view.heartbeat.get("step"), find_durable_step(view)
    lines = [f"Now ({view.observed_at}): {view.condition}{f': {view.note}' if view.note else ''}."]
    if step is not None:
        lines.append(f"Step {step}" + (f", durable checkpoint of step {durable}." if durable is not None else "."))
    lines += [f"Cannot be read: {item.path}: {item.reason}." for item in view.unreadable]
    first = _first_command(view, quote(os.path.abspath(view.run_dir)) if box is None else view.run_id)
    lines += ["", "First command:", "", *(_explain_program() if box is None else ()), f"    {first}", ""]
    return "\n".join(lines)


def _explain_program() -> list[str]:
    """How `holdfast` is called where the shell does not find it; nothing where it does."""
    return [] if _is_on_path("holdfast") else [f"    alias holdfast={quote(join(build_own_command()))}"]


def _first_command(view: RunView, place: str) -> str:
    if view.reach is RunReach.ELSEWHERE:
        return f"ssh {view.host} holdfast show {place}"
    if view.over:
        verbs = {"succeeded": "show", "failed": "diagnose", "lost": "diagnose"}
        return f"holdfast {verbs.get(view.condition, 'restart')} {place}"
    if view.state is None:
        return f"holdfast show {place}"
    if view.vanished:
        return "holdfast reconcile"
    if view.supervised:
        return f"holdfast attach {place}"
    return f"holdfast adopt {place}" if view.job_lives else f"holdfast restart {place}"


def _is_on_path(program: str) -> bool:
    """As `shutil.which`, which loads three compressors."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(os.path.join(place, program), os.X_OK) for place in places if place)
