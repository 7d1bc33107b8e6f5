"""One attempt followed to its end: what it is, its output as it comes, and when nothing more is to be waited for.

Owns nothing of the run: it reads files and may die at any time. Who follows asks in a circle: `look`, `read`, `judge`,
`rest`. The watch is older than every look, so whatever is written between a look and a rest ends the rest.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.agent.view import observe, run_view
from holdfast.agent.view.changes import EVERYTHING, ChangeWatch
from holdfast.agent.view.follow import GONE_S, UNSTARTED_S, is_untaken, watch_processes
from holdfast.agent.view.live.tail import TailReader, find_last_lines
from holdfast.agent.view.retries import read_retry
from holdfast.agent.view.run_view import RunReach
from holdfast.host.clock import monotonic_s
from holdfast.host.process.processes import is_alive
from holdfast.host.process.wait import wait_briefly
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.agent.view.run_view import RunView
    from holdfast.model.identity import ProcessId
    from holdfast.model.verdict import Verdict

NEXT_WITHIN_S = 5.0
"""How long after that decision the next attempt's directory is waited for."""
BLIND_LOOK_S = 0.5
"""How often a run is looked at whose state cannot be read for the moment."""
SCHEDULED_LOOK_S = 5.0
"""How often one is looked at that its scheduler has not begun."""
_STATE_FILES = frozenset({wire.STATE, wire.EXIT, wire.STATUS})


class Standing(str, Enum):
    """Whether there is something to wait for."""

    GOES_ON = "goes_on"
    BLIND = "blind"
    """Its state cannot be read, and its supervisor lives and writes the end."""
    OVER = "over"
    GONE = "gone"
    """Nobody is left who could write its end."""
    UNSTARTED = "unstarted"
    """No supervisor has taken it up."""
    UNREADABLE = "unreadable"


@record
class Next:
    """The attempt that was decided to follow by itself; `begun` is False when it did not come."""

    attempt: int
    begun: bool
    wait_s: float
    why: str


@record
class Followed:
    """A run that was followed to its end, and the exit code for whoever followed it; `doubt` on a success, if any.

    `failure` is the class of an end without success, with its `cause` and the `action`; empty on a success. `place` is
    where it ran, by the name that the desk has for it; null: on this machine.
    """

    run_id: str
    run_dir: str
    attempt: int
    exit_code: int
    condition: str
    note: str
    doubt: str = ""
    failure: str = ""
    cause: str = ""
    action: str = ""
    place: str | None = None


class FollowAttempt:
    """Looks at an attempt, with sleeps between; use as a context manager.

    `offset` is where in its output to begin, in bytes, and `anchor` what stands before; a `rest` also ends when
    `wake_fd` is readable. `output` is the reader of its output.
    """

    def __init__(self, run_dir: str, attempt: int, *, wake_fd: int, offset: int = 0, anchor: bytes = b"") -> None:
        """Look for the first time."""
        self._run_dir, self._attempt = run_dir, attempt
        self.output = TailReader(f"{wire.attempt_dir(run_dir, attempt)}/{wire.OUTPUT}", offset, anchor)
        self.view = observe.observe_run(run_dir, attempt=attempt)
        self._changes = ChangeWatch(self.view.attempt_dir, wake_fd=wake_fd, local=self.view.reach is RunReach.HERE)
        self._gone_since: float | None = None
        self._untaken_since: float | None = None
        self._supervisor: ProcessId | None = None

    def __enter__(self) -> FollowAttempt:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        """Answer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give every descriptor back."""
        self._changes.close()
        self.output.close()

    def look(self) -> RunView:
        """The attempt now; also in `view`."""
        self.view = observe.observe_run(self._run_dir, attempt=self._attempt)
        if self.view.reach is RunReach.HERE:
            self._supervisor = self.view.supervisor_process or self._supervisor
        return self.view

    def read(self) -> Iterator[bytes]:
        """What the job has written since the last time."""
        return self.output.read()

    def read_rest(self) -> Iterator[bytes]:
        """What is left of it, after the end."""
        return self.output.read_rest()

    def judge(self) -> Standing:
        """Whether there is something to wait for, by the last look."""
        view = self.view
        if view.over:
            return Standing.OVER
        self._gone_since = (self._gone_since or monotonic_s()) if view.vanished else None
        if self._gone_since is not None and monotonic_s() - self._gone_since >= GONE_S:
            return Standing.GONE
        if is_untaken(view):
            self._untaken_since = self._untaken_since or monotonic_s()
        else:
            self._untaken_since = None
        if self._untaken_since is not None and monotonic_s() - self._untaken_since > UNSTARTED_S:
            return Standing.UNSTARTED
        if view.condition == run_view.UNREADABLE and view.state is None:
            # The job may have removed its own run directory: its supervisor still knows the end, and writes it.
            gone = self._supervisor is None or not is_alive(self._supervisor)
            return Standing.UNREADABLE if gone else Standing.BLIND
        return Standing.GOES_ON

    @property
    def supervisor_pid(self) -> int | None:
        """The last supervisor that was seen."""
        return None if self._supervisor is None else self._supervisor.pid

    def rest(self) -> bool:
        """Sleep until something has changed; True when more than the output may have, so that a look is due."""
        watch_processes(self._changes, self.view)
        changed = self._changes.wait(self._choose_patience())
        return changed == EVERYTHING or bool(changed & _STATE_FILES) or not changed

    def _choose_patience(self) -> float | None:
        if self.view.state is None:
            return BLIND_LOOK_S
        if self.view.state.supervisor is None and self.view.scheduler:
            return SCHEDULED_LOOK_S
        return UNSTARTED_S if self.view.state.supervisor is None else GONE_S if self.view.vanished else None


def find_next(run_dir: str, attempt: int) -> Next | None:
    """The attempt that holdfast itself has begun after this one, or is about to begin; None without."""
    decided = read_retry(run_dir, attempt)
    if not decided.get("retry"):
        return None
    state = f"{wire.attempt_dir(run_dir, attempt + 1)}/{wire.STATE}"
    begun = wait_briefly(lambda: os.path.exists(state), NEXT_WITHIN_S)
    return Next(attempt + 1, begun, decided.get("wait_s") or 0.0, str(decided.get("why")))


def find_newest(run_dir: str) -> RunView:
    """The newest attempt of a run.

    Raises:
        NoSuchRun: there is none yet.
    """
    view = observe.observe_run(run_dir)
    if not view.attempts:
        raise NoSuchRun(f"{view.run_id} has no attempt yet", hint=f"holdfast show {view.run_id}")
    return view


def find_offset(run_dir: str, attempt: int, lines: int | None) -> int:
    """Where the last `lines` of an attempt's output begin, in bytes; its beginning with None."""
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.OUTPUT}"
    return 0 if lines is None else find_last_lines(path, lines)


def describe_doubt(view: RunView) -> str:
    """What speaks against a success, in words; empty without."""
    if not view.doubt:
        return ""
    verdict = _read_verdict(view)
    return f"{view.doubt}: {verdict.cause}" if verdict is not None and verdict.cause else view.doubt


def _read_verdict(view: RunView) -> Verdict | None:
    from holdfast.diagnosis.ended.judgement import read_judgement  # lazy: most runs end well

    judged = read_judgement(view.run_dir, view.attempt)
    return None if judged is None else judged.verdict


def read_followed(run_dir: str, exit_code: int, place: str | None = None) -> Followed:
    """How a run that was followed stands now; `place` as of `Followed`."""
    view = observe.observe_run(run_dir)
    failure = view.exit.get("failure_class")
    verdict = _read_verdict(view) if failure else None
    return Followed(
        run_id=view.run_id,
        run_dir=run_dir,
        attempt=view.attempt,
        exit_code=exit_code,
        condition=view.condition,
        note=view.note,
        doubt=describe_doubt(view),
        failure=failure if isinstance(failure, str) else "",
        cause="" if verdict is None else verdict.cause,
        action="" if verdict is None else verdict.action,
        place=place,
    )
