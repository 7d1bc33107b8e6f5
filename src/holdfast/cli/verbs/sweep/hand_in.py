"""What `submit` and `add` have in common: the jobs are shown, or handed in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.queue.sweep.take import preview, submit_sweep
from holdfast.agent.view.runs.roots import choose_root
from holdfast.cli.render import print_record
from holdfast.cli.render.sweep import print_contradictions, print_preview, print_taken

if TYPE_CHECKING:
    from holdfast.agent.queue.sweep.recipe import SweepPlan


def show_preview(made: SweepPlan, *, as_json: bool) -> None:
    """Print every job, checked as if it were handed in."""
    print_contradictions(made.built)
    found = preview(made, os.environ)
    print_record(found) if as_json else print_preview(found, made.built.notes)


def hand_in(made: SweepPlan, runs: str | None, *, as_json: bool, keep_recipe: bool = True, waits: bool = False) -> None:
    """Hand the jobs in and print what was taken; as JSON only where no wait follows, which prints an object itself."""
    print_contradictions(made.built)
    taken = submit_sweep(made, runs_root=choose_root(runs), environ=os.environ, keep_recipe=keep_recipe)
    if not as_json:
        print_taken(taken, made.built.notes)
    elif not waits:
        print_record(taken)
