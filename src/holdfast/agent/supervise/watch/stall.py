"""Diagnoses a stalled job for its report: `holdfast diagnose` in a disposable child.

Only for a stall that is reported. Where the job file has the job stopped for it, the stop does not wait for this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.job import JobControl
    from holdfast.agent.supervise.lease.lease import Lease
    from holdfast.agent.supervise.loop import Child

WITHIN_S = 12.0
"""Two looks 5 s apart, and what is asked of the job and of the disks in between."""

Told = dict[str, object]


class StallDiagnosis:
    """One diagnosis at a time."""

    def __init__(self, context: SupervisorContext, job: JobControl, lease: Lease) -> None:
        """Nothing is looked at before `begin`."""
        self._context, self._job, self._lease = context, job, lease
        self._child: Child | None = None
        self._then: Callable[[Told], None] | None = None

    def begin(self, limit_s: float, then: Callable[[Told], None]) -> None:
        """Look; `then` gets the verdict, or why there is none (``failed``), within 12 s in any case.

        `limit_s` is the limit that ran out: a step that is as old is overdue for the diagnosis, too.
        """
        if self._child is not None and self._child.under_way:
            then({"failed": "another diagnosis is under way"})
            return
        context, containment = self._context, self._job.containment
        group = None if containment is None else containment.group
        groups = () if group is None else tuple(group.directories())
        processes, cards = tuple(self._job.list_processes()), self._lease.leased_cards

        def look() -> Told:
            from .stall_look import diagnose_stall  # lazy: the diagnosis is loaded by this child alone

            return diagnose_stall(
                context.run_id,
                context.run_dir,
                context.directory,
                processes,
                group_dirs=groups,
                cards=cards,
                limit_s=limit_s,
            )

        self._then = then
        try:
            self._child = context.loop.run_child(
                look, self._tell, lambda why: self._tell({"failed": why}), within_s=WITHIN_S
            )
        except OSError as error:
            self._tell({"failed": error.strerror or str(error)})

    def end(self) -> None:
        """The job no longer stands still but is being ended: say what there is."""
        if self._child is not None and self._child.under_way:
            self._child.abandon()
            self._tell({"failed": "the job's end came first"})

    def _tell(self, found: Told) -> None:
        then, self._then = self._then, None
        assert then is not None, "each look is told once"
        self._context.recorder.event("diagnosed", **found)
        then(found)
