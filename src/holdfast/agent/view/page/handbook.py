"""The handbook of a run as it is now, as a record."""

from __future__ import annotations

import os

from holdfast.agent.view.observe import observe_run
from holdfast.model.record import record

from .handbook_text import render_now


@record
class Handbook:
    """How to look at, stop and resume a run, by its condition now."""

    run_id: str
    run_dir: str
    condition: str
    text: str


def read_handbook(run_dir: str, *, box: str | None = None) -> Handbook:
    """The handbook of one run, with its real paths; `box` is what a desk that asks calls this machine."""
    view = observe_run(run_dir)
    return Handbook(os.path.basename(run_dir), run_dir, view.condition, render_now(view, box=box))
