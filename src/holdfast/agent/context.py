"""What the parts of one supervisor share: where they are, what is wanted, and how they say that something happened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..host import files
from ..host.clock import utc_now
from ..model import wire
from ..model.run import STATES

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.events import Event
    from ..core.rules import Rules
    from ..model.errors import HoldfastError
    from ..model.job import JobSpec
    from ..model.run import Desired
    from .loop import Loop
    from .notify import Notifier
    from .record import Recorder


ALERT = "alert"
"""In `notify.on`: whatever is told of besides the moments of a run's life."""
MOMENTS = frozenset(cls.__name__.lower() for cls in STATES)


class Context:
    """Shared by the parts of a supervisor; owns nothing but small counters.

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
    ) -> None:
        """Put the shared things together."""
        self.run_dir, self.attempt, self.spec, self.reason = run_dir, attempt, spec, reason
        self.run_id = recorder.run_id
        self.recorder, self.loop, self.emit = recorder, loop, emit
        self.environ = dict(os.environ)
        self._rules: tuple[Rules, HoldfastError | None] | None = None
        self.created_epoch_s = 0.0
        self.umask = 0o077
        self.box: tuple[float, int | None, str | None] | None = None
        self.library: str | None = None
        self.library_sought = False
        self._seen: Desired | None = None
        self._interrupts = 0
        self._notifier: Notifier | None = None
        self.helpers: set[int] = set()

    @property
    def rules(self) -> Rules:
        """The box's rules."""
        return self._read_rules()[0]

    @property
    def rules_problem(self) -> HoldfastError | None:
        """Why the rules could not be read; None when they were, or when there are none."""
        return self._read_rules()[1]

    def _read_rules(self) -> tuple[Rules, HoldfastError | None]:
        if self._rules is None:
            from ..core.rules import Rules
            from ..host.rulesfile import read_rules
            from ..model.errors import HoldfastError

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

    def seen_before(self, desired: Desired) -> bool:
        """Whether this very wish was already acted on."""
        before, self._seen = self._seen, desired
        return before == desired

    def note_interrupt(self) -> int:
        """Count an interrupt; the second one means business."""
        self._interrupts += 1
        return self._interrupts

    def notify(self, event: str, **facts: object) -> None:
        """Tell whoever asked to be told of `event`; never waits, never fails the run."""
        wanted = self.spec.notify.on
        if event in wanted or (event not in MOMENTS and ALERT in wanted):
            message = {"run_id": self.run_id, "attempt": self.attempt, "state": event, "run_dir": self.run_dir}
            self.notifier.send({**message, "at": utc_now(), **facts})

    @property
    def notifier(self) -> Notifier:
        """Who tells people."""
        if self._notifier is None:
            from .notify import Notifier

            self._notifier = Notifier(self.spec.notify, self.recorder, self.loop)
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
