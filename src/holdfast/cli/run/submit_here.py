"""``holdfast submit`` to the queue of this machine: hand in or show, and wait when that was asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.queue.submit.hand_in import build_submission, submit
from holdfast.agent.queue.submit.preview import preview
from holdfast.agent.view.runs.roots import choose_root
from holdfast.cli.job.config_syntax import refuse_bad_configs
from holdfast.cli.render import keep_done, note, print_record
from holdfast.cli.render.submit import describe_taken, print_preview, print_submitted
from holdfast.cli.wait import wait as wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.queue.submit_options import SubmitOptions
    from holdfast.model.job import JobSpec
    from holdfast.model.queue import NewJob


def submit_here(
    spec: JobSpec,
    jobs: Sequence[NewJob],
    wishes: SubmitOptions,
    *,
    lines: str | None,
    runs: str | None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Hand `jobs` over `spec` in, made from the file `lines` (None: from the command line); the exit code."""
    refuse_bad_configs((spec.config, *(made.change.get("config") for made in jobs)))
    root = choose_root(runs, remember=not dry_run)
    source = None if lines is None else os.path.abspath(lines)
    submission = build_submission(spec, jobs, wishes, runs_root=root, source=source)
    if dry_run:
        planned = preview(spec, submission, wishes, os.environ)
        print_record(planned) if as_json else print_preview(planned)
        return 0
    taken = submit(spec, submission, wishes, os.environ)
    keep_done(describe_taken(taken.group, taken.jobs))
    if not as_json:
        print_submitted(taken)
    elif not wait:
        print_record(taken)
    else:
        # What is printed is one object, that of the wait.
        for text in (*taken.notes, *taken.stops):
            note(text)
    if not wait:
        return 0
    names = [f"{taken.group}/"] if lines is not None else [made.job for made in taken.jobs]
    return wait_for(names, as_json=as_json)
