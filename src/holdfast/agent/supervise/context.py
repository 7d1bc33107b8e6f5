"""The state that the parts of one supervisor share: paths, the job, the plan, and how to emit events."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.requests import read_request
from holdfast.agent.view.retries import read_requeue, read_retry
from holdfast.core.rules.rules import Rules
from holdfast.host.files import files
from holdfast.host.files.rules_file import read_rules
from holdfast.host.gpu.allocation import imposed_allocation
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.job import Priority
from holdfast.model.run import STATES, Outcome

from .notify import STATUS, Notifier
from .priority import ChosenPriority, choose_priority

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.run.events import Event
    from holdfast.model.foreground import Foreground
    from holdfast.model.identity import ProcessId
    from holdfast.model.job import JobSpec
    from holdfast.model.profile import Profile
    from holdfast.model.run import RunRequest

    from .loop import Loop
    from .recorder import Recorder


IMPOSED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""By which a scheduler names the cards that it gave."""
ALERT = "alert"
"""In `notify.on`: whatever is told of besides the moments of a run's life."""
FAILED = "failed"
"""In `notify.on`: an end without success, or one whose success is in doubt."""
MOMENTS = frozenset(cls.__name__.lower() for cls in STATES)


class SupervisorContext:
    """Shared by the parts of a supervisor; owns nothing but small counters.

    `queued` says that the run is one of the queue; `foreground` how the supervisor stands where it is the place's own
    process (None: it is on its own); `profile` what is known of the place (None: nothing); `container_init` the first
    process of the job's container (None: without one, or before it was found); `saw_end` that a supervisor, this one or
    the one before it, saw its job end.

    `rules` are read when first asked for; `rules_problem` is set when they exist and cannot be read: no run starts
    under rules that nobody can see.
    """

    def __init__(  # noqa: PLR0917 - the one place where everything meets
        self,
        run_dir: str,
        attempt: int,
        spec: JobSpec,
        recorder: Recorder,
        loop: Loop,
        emit: Callable[[Event], None],
        reason: str,
        generation: int = 1,
    ) -> None:
        """Put the shared things together."""
        self.run_dir, self.attempt, self.spec, self.reason = run_dir, attempt, spec, reason
        self.run_id = recorder.run_id
        self.recorder, self.loop, self.emit = recorder, loop, emit
        self.environ = dict(os.environ)
        self._rules: tuple[Rules, HoldfastError | None] | None = None
        self.created_epoch_s = 0.0
        self.umask = 0o077
        self.unlocked = False
        self.generation = generation
        self.queued = False
        self.foreground: Foreground | None = None
        self.profile: Profile | None = None
        self.container_init: ProcessId | None = None
        self.saw_end = True
        self.box: tuple[float, int | None, str | None] | None = None
        self.library: str | None = None
        self.library_sought = False
        self._seen: RunRequest | None = None
        self._interrupts = 0
        self._notifier: Notifier | None = None
        self._polite: ChosenPriority | None = None

    @property
    def why_begun(self) -> str:
        """Why the attempt was begun: the reason of this supervisor, or, where it took over, what was decided before."""
        if self.reason != "adopt":
            return self.reason
        decided = read_requeue(self.run_dir, self.attempt - 1)
        if decided is not None and decided.again:
            return "requeue"
        return "retry" if read_retry(self.run_dir, self.attempt - 1).get("retry") else self.reason

    @property
    def passed_environ(self) -> dict[str, str]:
        """What of the caller's environment goes into a container: what the job names, and a scheduler's cards."""
        names = (*self.spec.container.env, *(IMPOSED if imposed_allocation(self.environ) is not None else ()))
        return {name: self.environ[name] for name in names if name in self.environ}

    @property
    def helpers(self) -> set[int]:
        """The pids of children of the supervisor that are none of the job's."""
        return self.loop.helpers

    @property
    def rules(self) -> Rules:
        """The box's rules."""
        return self._read_rules()[0]

    @property
    def rules_problem(self) -> HoldfastError | None:
        """Why the rules could not be read; None when they were, or when there are none."""
        return self._read_rules()[1]

    def choose_priority(self, asked: Priority) -> ChosenPriority:
        """What a priority comes to here; decided once for an attempt where it is left to the box."""
        if asked is not Priority.AUTO:
            return choose_priority(asked, self.rules)
        self._polite = self._polite or choose_priority(asked, self.rules)
        return self._polite

    def _read_rules(self) -> tuple[Rules, HoldfastError | None]:
        if self._rules is None:
            try:
                self._rules = read_rules(self.environ), None
            except HoldfastError as error:
                self._rules = Rules(), error
        return self._rules

    @property
    def directory(self) -> str:
        """The attempt's directory."""
        return self.recorder.directory

    def shared(self, name: str) -> str:
        """The path of a directory that all attempts share."""
        return f"{self.run_dir}/{name}"

    def read_desired(self) -> RunRequest | None:
        """What somebody wants of this attempt; None when nobody said anything readable."""
        try:
            return read_request(self.run_dir, self.generation)
        except (OSError, wire.WireError) as error:
            self.recorder.log(f"{wire.DESIRED} is not readable: {error}")
            return None

    def seen_before(self, desired: RunRequest) -> bool:
        """Whether this very request was already acted on."""
        before, self._seen = self._seen, desired
        return before == desired

    def note_interrupt(self) -> int:
        """Count an interrupt; the second one means business."""
        self._interrupts += 1
        return self._interrupts

    def notify(self, event: str, **facts: object) -> None:
        """Tell whoever asked to be told of `event`; never waits, never fails the run."""
        wanted = self.spec.notify.on
        bad = event == "ended" and (facts.get("outcome") != Outcome.SUCCEEDED.value or "doubt" in facts)
        if (
            event in wanted
            or event == STATUS
            or (event not in MOMENTS and ALERT in wanted)
            or (bad and FAILED in wanted)
        ):
            self.notifier.send(event, facts)

    @property
    def notifier(self) -> Notifier:
        """Who tells people."""
        if self._notifier is None:
            self._notifier = Notifier(self.spec, self.attempt, self.recorder, self.loop)
        return self._notifier

    @property
    def notifying(self) -> tuple[int, ...]:
        """The children that are telling somebody right now."""
        return () if self._notifier is None else self._notifier.pids

    def heartbeat(self) -> dict[str, object]:
        """The job's last heartbeat; empty when there is none that can be read."""
        try:
            data = files.read_bytes(self.recorder.path(wire.HEARTBEAT))
            return wire.clean_heartbeat(wire.parse_object(data, wire.HEARTBEAT))
        except (OSError, wire.WireError):
            return {}
