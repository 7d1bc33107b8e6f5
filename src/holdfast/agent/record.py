"""What the supervisor writes down: state, events, manifest, exit record, its own log.

State and manifest are committed (durable) before anything is done that they announce. Events and the log are appended
and may lose their last line in a power cut. No storage fault ends the supervisor: records go to the fallback place,
the fault is said once on the log and once as an event, and the run goes on (OBS-11).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ..host import fallback, files
from ..host.clock import monotonic_s, utc_now
from ..model import wire
from ..model.identity import ABANDONED, WaitStatus
from ..model.run import CheckpointWish, Desired, Ended, Running, RunState, Starting, Stopping, StopRecord

if TYPE_CHECKING:
    from typing import TypeVar

    from ..model.finding import Finding


if TYPE_CHECKING:
    R = TypeVar("R", WaitStatus, Desired, CheckpointWish)

LOCK_NAME = "supervisor.lock"
"""The attempt's file on which its supervisor holds a lock."""


class Recorder:
    """The pen of one attempt. `degraded` tells whether the run directory currently refuses records."""

    def __init__(self, run_dir: str, run_id: str, attempt: int) -> None:
        """Write into `run_dir`'s attempt; the directory exists already."""
        self.run_dir, self.run_id, self.attempt = run_dir, run_id, attempt
        self.directory = wire.attempt_dir(run_dir, attempt)
        self.degraded = False
        self._sequence = self._count_events()

    def path(self, name: str) -> str:
        """The path of one of the attempt's files."""
        return f"{self.directory}/{name}"

    def _count_events(self) -> int:
        try:
            return sum(1 for _ in files.read_lines(self.path(wire.EVENTS)))
        except OSError:
            return 0

    def commit(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Commit one record of the attempt, in the fallback place if need be."""
        self._note_degraded(not fallback.commit(self.run_id, self.attempt, self.path(name), data, durable=durable))

    def commit_state(self, state: RunState) -> None:
        """Commit where the run stands: before anything is done that this state announces.

        Only a state whose loss in a power cut would let the run look like less than it was waits for the disk: one with
        a job, and the end. (Before, nothing was done yet; while finalizing, ``status.json`` is on disk.) Somebody waits
        for each millisecond of the others: the next run for this one's cards, a person for the start.
        """
        step = state.state
        durable = isinstance(step, (Running, Stopping, Ended)) or (isinstance(step, Starting) and step.job is not None)
        self.commit(wire.STATE, wire.to_bytes(state), durable=durable)

    def read_state(self) -> RunState:
        """The committed state.

        Raises:
            OSError: there is none that can be read.
            WireError: it does not parse.
        """
        return wire.from_bytes(RunState, self._read(wire.STATE), wire.STATE)

    def read_status(self) -> WaitStatus | None:
        """How the leader ended, if that was written; None when not, or unreadable, or when it never ran."""
        status = self._read_raw_status()
        return None if status is None or status.source == ABANDONED else status

    def was_abandoned(self) -> bool:
        """Whether the last job brought up left without having run: its supervisor died before the word to go."""
        status = self._read_raw_status()
        return status is not None and status.source == ABANDONED

    def forget_status(self) -> None:
        """Before a start: what an abandoned one has left is not the new job's end."""
        for directory in (self.directory, fallback.directory(self.run_id, self.attempt)):
            if directory is not None:
                files.remove_quietly(f"{directory}/{wire.STATUS}")

    def _read_raw_status(self) -> WaitStatus | None:
        return self._read_or_none(WaitStatus, wire.STATUS)

    def read_desired(self) -> Desired | None:
        """What somebody wants of this attempt; None when nobody said anything readable."""
        return self._read_or_none(Desired, wire.DESIRED)

    def read_checkpoint_wish(self) -> CheckpointWish | None:
        """What somebody wants saved; None when nobody said anything readable."""
        return self._read_or_none(CheckpointWish, wire.CHECKPOINT_WANTED)

    def read_stop(self) -> StopRecord | None:
        """What the training library wrote on leaving, in this attempt; None when it said nothing that can be read.

        One that is there and cannot be read is told: it may have said that the run was interrupted.
        """
        try:
            data = files.read_bytes(self.path(wire.STOP), limit=wire.LARGEST_STOP_BYTES)
            found = wire.clean_stop(wire.parse_object(data, wire.STOP))
            problem = "it does not say why"
        except FileNotFoundError:
            return None
        except (OSError, wire.WireError) as error:
            found, problem = None, str(error)
        if found is None:
            self.event("stop_record_unreadable", path=self.path(wire.STOP), error=problem)
        return found

    @property
    def event_count(self) -> int:
        """How many events there are."""
        return self._sequence

    def read_exit(self) -> dict[str, Any]:
        """The exit record.

        Raises:
            OSError: there is none that can be read.
            WireError: it does not parse.
        """
        return wire.parse_object(self._read(wire.EXIT), wire.EXIT)

    def read_manifest(self) -> dict[str, Any]:
        """The manifest as it is; empty when there is none that can be read."""
        try:
            return wire.parse_object(self._read(wire.MANIFEST), wire.MANIFEST)
        except (OSError, wire.WireError):
            return {}

    def _read_or_none(self, cls: type[R], name: str) -> R | None:
        try:
            return wire.from_bytes(cls, self._read(name), name)
        except FileNotFoundError:
            return None
        except (OSError, wire.WireError) as error:
            self.log(f"{name} is not readable: {error}")
            return None

    def _read(self, name: str) -> bytes:
        return fallback.read(self.run_id, self.attempt, self.path(name))

    def findings(self, name: str, findings: tuple[Finding, ...]) -> None:
        """Commit a list of findings (preflight or postflight)."""
        self.commit(name, wire.to_bytes({"findings": findings}), durable=False)

    def event(self, event: str, **data: object) -> None:
        """Append one event: sequence number, UTC, monotonic seconds, name, data."""
        self._sequence += 1
        line = {
            "seq": self._sequence,
            "utc": utc_now(),
            "monotonic_s": round(monotonic_s(), 6),
            "event": event,
            "data": wire.encode(data),
        }
        self._append(wire.EVENTS, (json.dumps(line) + "\n").encode())

    def sample(self, values: dict[str, object]) -> None:
        """Append one health sample."""
        self._append(wire.HEALTH, (json.dumps({"utc": utc_now(), **values}) + "\n").encode())

    def _append(self, name: str, data: bytes) -> None:
        try:
            files.append(self.path(name), data)
        except OSError as error:
            self._note_degraded(True, str(error))

    def log(self, text: str) -> None:
        """A timestamped line on the supervisor's own log (its standard error)."""
        try:
            files.write_all(2, f"{utc_now()} {text}\n".encode())
        except OSError:
            return

    def _note_degraded(self, degraded: bool, why: str = "") -> None:  # noqa: FBT001 - the fact itself
        if degraded == self.degraded:
            return
        self.degraded = degraded
        place = fallback.directory(self.run_id, self.attempt)
        if degraded:
            self.log(f"the run directory refuses records ({why or 'see df'}); they go to {place}; the job goes on")
        else:
            self.log("the run directory takes records again")

    def restore(self) -> None:
        """At the end: bring records from the fallback place home if the disk takes them now."""
        aside = fallback.directory(self.run_id, self.attempt)
        if aside is None or not os.path.isdir(aside):
            return
        try:
            for name in os.listdir(aside):
                if not name.startswith("."):
                    files.commit(self.path(name), files.read_bytes(f"{aside}/{name}"))
        except OSError:
            return
        fallback.clear(self.run_id, self.attempt)
