"""Waiting as several verbs do it: with a line that tells how far it is, and in the end what is missing."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.agent.queue.wait.names import wait_for_names
from holdfast.desk.caller import CALLER
from holdfast.desk.route.frames import WAITED, build_pin
from holdfast.model.record import replace

from .named_run import find_ending
from .render import note, print_record
from .render.wait import ProgressLine, print_waited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.queue.wait.names import Waited


def wait(names: Sequence[str], *, deadline: float | None = None, quiet: bool = False, as_json: bool) -> int:
    """Wait for jobs, groups and runs, without names for the whole queue; the exit code.

    Raises:
        NoSuchRun: a name means nothing, or the queue is empty.
    """
    line = ProgressLine(silent=quiet or as_json)
    try:
        waited = wait_for_names(names, deadline=deadline, find_run=_find_run, tell=line)
    except KeyboardInterrupt:
        line.close()
        if not quiet:
            note("the wait has ended; what was waited for goes on")
        raise
    line.close()
    print_record(_name_place(waited)) if as_json else print_waited(waited)
    return waited.exit_code


def tell_end() -> None:
    """Tell the desk that the wait came to its own end."""
    sys.stdout.flush()
    sys.stdout.buffer.write(WAITED)
    sys.stdout.flush()


def _name_place(waited: Waited) -> Waited:
    """For a program at a desk: commands are those that can be typed there."""
    if CALLER.place is None:
        return waited
    from holdfast.desk.route.hints import name_place  # lazy: for a program at a desk alone

    runs = tuple(replace(run, gone=name_place(run.gone, CALLER.place)) for run in waited.runs)
    whole, failed, cancelled = (
        name_place(command, CALLER.place) for command in (waited.rerun, waited.rerun_failed, waited.rerun_cancelled)
    )
    return replace(waited, rerun=whole, rerun_failed=failed, rerun_cancelled=cancelled, runs=runs)


def _find_run(name: str) -> str:
    view = find_ending(name, None)
    if CALLER.follows:
        # After a cut the desk waits for this very run: its name may be a newer one's by then.
        sys.stdout.buffer.write(build_pin(name, os.path.basename(view.run_dir)))
        sys.stdout.flush()
    return view.run_dir
