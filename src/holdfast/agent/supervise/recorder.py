"""Writes the supervisor's records: state, events, manifest, exit record, its own log.

State and manifest are committed (durable) before anything is done that they announce. Events and the log are appended
and may lose their last line in a power cut. No storage fault ends the supervisor: records go to the fallback place,
the fault is said once on the log and once as an event, and the run goes on (OBS-11).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from holdfast.agent.requests import read_own
from holdfast.host.clock import monotonic_s, utc_now
from holdfast.host.files import fallback, files
from holdfast.model import wire
from holdfast.model.identity import ABANDONED, WaitStatus
from holdfast.model.run import (
    CheckpointRequest,
    Ended,
    LimitsRequest,
    PlaceGone,
    Running,
    RunState,
    Starting,
    State,
    Stopping,
    StopRecord,
)

if TYPE_CHECKING:
    from typing import TypeVar

    from holdfast.model.finding import Finding

    R = TypeVar("R", WaitStatus, CheckpointRequest, LimitsRequest, PlaceGone)


SYNCED_AT_THE_END = (wire.PREFLIGHT, wire.POSTFLIGHT, wire.MANIFEST, wire.VERDICT, wire.FAILURE)
UNTOLD = frozenset({"kind", "devices", "keeper"})
"""Fields of states that no event repeats."""
LAST_EVENTS_BYTES = 1 << 20
"""Where the newest event is looked for; one takes far less."""


class Recorder:
    """The pen of one attempt. `degraded` tells whether the run directory currently refuses records."""

    def __init__(self, run_dir: str, run_id: str, attempt: int) -> None:
        """Write into `run_dir`'s attempt; the directory exists already."""
        self.run_dir, self.run_id, self.attempt = run_dir, run_id, attempt
        self.directory = wire.attempt_dir(run_dir, attempt)
        self.degraded = False
        self._mended = False
        self._last_seq: int | None = None

    def path(self, name: str) -> str:
        """The path of one of the attempt's files."""
        return f"{self.directory}/{name}"

    @property
    def event_count(self) -> int:
        """How many events there are. Not asked before the lock of the run is held: another may still write."""
        if self._last_seq is None:
            self._last_seq = self._find_last_seq()
        return self._last_seq

    def _find_last_seq(self) -> int:
        """The number of the newest event; a line that a killed supervisor has torn has none."""
        try:
            lines = files.read_last_lines(self.path(wire.EVENTS), LAST_EVENTS_BYTES)
        except OSError:
            return 0
        for line in reversed(lines):
            try:
                number = wire.parse_object(line, wire.EVENTS).get("seq")
            except wire.WireError:
                continue
            if isinstance(number, int):
                return number
        return 0

    def commit(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Commit one record of the attempt, in the fallback place if need be."""
        self._note_degraded(not fallback.commit(self.run_id, self.attempt, self.path(name), data, durable=durable))

    def note_deadlines(self, **moved: float | None) -> None:
        """Note deadlines that were moved beside those moved before: epoch seconds, None without one any more."""
        path = self.path(wire.DEADLINE)
        try:
            known = wire.parse_object(files.read_bytes(path), path)
        except (OSError, wire.WireError):
            known = {}
        self.commit(wire.DEADLINE, wire.to_bytes({**known, **moved}), durable=False)

    def commit_exit(self, record: dict[str, Any]) -> None:
        """Commit the exit record, the last of all; what the attempt's other records say is on the disk before it is.

        Their names are made durable by the sync of the directory that follows.
        """
        for name in SYNCED_AT_THE_END:
            files.sync_quietly(self.path(name))
        self.commit(wire.EXIT, wire.to_bytes(record))

    def commit_state(self, state: RunState) -> None:
        """Commit where the run stands: before anything is done that this state announces.

        Only a state whose loss in a power cut would let the run look like less than it was waits for the disk: one with
        a job, and the end. (Before, nothing was done yet; while finalizing, ``status.json`` is on disk.) Somebody waits
        for each millisecond of the others: the next run for this one's cards, a person for the start.
        """
        step = state.state
        durable = isinstance(step, (Running, Stopping, Ended)) or (isinstance(step, Starting) and step.job is not None)
        self.commit(wire.STATE, wire.to_bytes(state), durable=durable)

    def mend_state(self, state: RunState) -> None:
        """Commit the state again where somebody else has damaged or removed it, but not a run that is being removed."""
        try:
            self.read_state()
        except (OSError, wire.WireError) as error:
            if not os.path.lexists(f"{self.run_dir}/{wire.RUN}") or not os.path.isdir(self.directory):
                return
            if not self._mended:
                self._mended = True
                self.log(f"somebody has damaged {self.path(wire.STATE)} ({error}); it is written anew")
                self.event("state_mended", path=self.path(wire.STATE), why=str(error))
            self.commit_state(state)

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

    def read_checkpoint_request(self) -> CheckpointRequest | None:
        """What somebody wants saved; None when nobody said anything readable."""
        return self._read_or_none(CheckpointRequest, wire.CHECKPOINT_WANTED, said=True)

    def read_limits_request(self) -> LimitsRequest | None:
        """What somebody wants of the limits; None when nobody said anything readable."""
        return self._read_or_none(LimitsRequest, wire.LIMITS_WANTED, said=True)

    def was_answered(self, request_id: str, *events: str) -> bool:
        """Whether this supervisor, or one before it, has treated a request: whether one of these events names it."""
        try:
            lines = files.read_last_lines(self.path(wire.EVENTS))
        except OSError:
            return False
        names = [f'"event": "{event}"'.encode() for event in events]
        sign = f'"id": "{request_id}"'.encode()
        return any(sign in line and any(name in line for name in names) for line in lines)

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

    def read_gone(self) -> PlaceGone | None:
        """Whose word it is that the place of this attempt is gone; None when nobody said so."""
        return self._read_or_none(PlaceGone, wire.GONE, said=True)

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

    def _read_or_none(self, cls: type[R], name: str, *, said: bool = False) -> R | None:
        """A record; with `said` one by which somebody says what is to be done, which only some may (`read_own`)."""
        try:
            return wire.from_bytes(cls, read_own(self.run_dir, self.path(name)) if said else self._read(name), name)
        except FileNotFoundError:
            return None
        except (OSError, wire.WireError) as error:
            self.log(f"{name} is not readable: {error}")
            return None

    def _read(self, name: str) -> bytes:
        return fallback.read(self.run_id, self.attempt, self.path(name))

    def state_event(self, name: str, state: State, **more: object) -> None:
        """Tell of a state in the event stream: what of it is worth a word, and `more`."""
        values = wire.encode(state).items()
        told = {key: value for key, value in values if key not in UNTOLD and value not in (None, [], "")}
        self.event(name, **told, **more)

    def findings(self, name: str, findings: tuple[Finding, ...]) -> None:
        """Commit a list of findings (preflight or postflight)."""
        self.commit(name, wire.to_bytes({"findings": findings}), durable=False)

    def event(self, event: str, **data: object) -> None:
        """Append one event: sequence number, UTC, monotonic seconds, name, data."""
        self._last_seq = self.event_count + 1
        line = {
            "seq": self._last_seq,
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
        fallback.bring_home(self.run_id, self.attempt, self.directory)
