"""The removal of a container beside the supervisor's loop: the last that is done of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.container.runtime import RuntimeProblem

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.host.container.runtime import Runtime

WITHIN_S = 30.0


class ContainerRemoval:
    """One removal; `under_way` from `expect` until it is done, or has failed, or its time is over.

    Where it fails that is said, and `holdfast reconcile` does it later.
    """

    def __init__(self, context: SupervisorContext) -> None:
        """Nothing is to be removed yet."""
        self._context = context
        self._container = ""
        self.under_way = False

    def expect(self) -> None:
        """It is going to `begin`: its time runs."""
        self.under_way = True
        self._context.loop.timers.arm("removal", WITHIN_S, lambda: self._end("no answer in time"))

    def begin(self, runtime: Runtime, container: str) -> None:
        """Remove the container of that id or name, if it is this run's: another's may have the name."""
        self._container = container
        run_id, run_dir = self._context.run_id, self._context.run_dir

        def work() -> object:
            try:
                if found := runtime.find_own(container, run_id, run_dir):
                    runtime.remove(found)
            except RuntimeProblem as error:
                return f"{error.why}; {error.remedy}"
            return ""

        self._context.loop.run_child(work, lambda answer: self._end(str(answer)), self._end)

    def stop(self) -> None:
        """We are to leave now. What was begun goes on by itself."""
        if self.under_way:
            self._end("was told to leave")

    def _end(self, problem: str) -> None:
        if not self.under_way:
            return
        self.under_way = False
        self._context.loop.timers.disarm("removal")
        if problem:
            self._context.recorder.event("container_left", id=self._container, why=problem[:400])
