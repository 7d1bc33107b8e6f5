"""Following a live run in a terminal: its output as it comes, what it waits for, and how it ended.

Owns nothing of the run: it reads files and may die at any time. Losing the terminal or being terminated only
detaches. Ctrl-C once asks the run to stop, twice asks for KILL, a third time leaves it alone with that. The job's
bytes go to standard output untouched; everything that holdfast says goes to standard error.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from holdfast.agent import acting, observe
from holdfast.agent.changes import EVERYTHING, Changes
from holdfast.agent.observe import Presence, Reach
from holdfast.agent.tail import Follower
from holdfast.host.clock import monotonic_s, parse_utc
from holdfast.host.keeper import wait_briefly
from holdfast.host.processes import is_alive
from holdfast.model import wire
from holdfast.model.errors import EXIT_STOPPED, HoldfastError, StorageError
from holdfast.model.lease import Witness
from holdfast.model.run import Created, Finalizing, Outcome, Running, Stopping, Waiting, Wish
from holdfast.model.units import format_duration

from .render import clean, note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.agent.observe import RunView
    from holdfast.model.identity import ProcessId

_PLACES = {Witness.QUEUE: " waits in line before you", Witness.RULE: "", Witness.RESERVATION: ""}
"""What a reason to wait does; those of the house say it themselves, and everything else holds the card."""
EXIT_UNKNOWN = 69
"""The run can no longer be observed from here, and how it ended is not known."""
EXIT_BROKEN_PIPE = 141
UNSTARTED_S = 20.0
"""How long a run may stay without any supervisor before following it is given up."""
_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
NOTE_WAIT_S = 5.0
"""How long a failed run's failure note is waited for: the supervisor writes it right after the end is on record."""
NEXT_WITHIN_S = 5.0
"""How long after that decision the next attempt's directory is waited for."""
LONGEST_CAUSE = 200
"""Letters of the cause in the summary; all of it is in the failure note."""
BLIND_LOOK_S = 0.5
"""How often a run is looked at whose state cannot be read for the moment."""
_STATE_FILES = frozenset({wire.STATE, wire.EXIT, wire.STATUS, wire.FAILURE, wire.VERDICT, wire.RETRY})


class OutputRefused(OSError):
    """Standard output refused the job's bytes; the run has nothing to do with it."""


def follow(
    run_dir: str,
    attempt: int,
    *,
    stdout: BinaryIO | None = None,
    quiet: bool = False,
    offset: int = 0,
    own: bool = True,
) -> int:
    """Follow an attempt, and those that holdfast begins after it by itself, until the last one is over.

    The exit code is the job's, or holdfast's own for it.

    Args:
        run_dir: the run's directory.
        attempt: which attempt.
        stdout: where the job's bytes go (default: standard output).
        quiet: show no output and no summary (for ``--json``); notices still go to standard error.
        offset: where in the output to begin, in bytes.
        own: this process asked for the run, so its environment is the job's: a run whose supervisor dies before the job
            started may begin again. A mere onlooker has it called off.
    """
    with _listening() as (wake_fd, heard):
        code = _follow_one(run_dir, attempt, stdout, (wake_fd, heard), offset=offset, quiet=quiet, own=own)
        while (following := _find_next(run_dir, attempt)) is not None:
            attempt = following
            code = _follow_one(run_dir, attempt, stdout, (wake_fd, heard), offset=0, quiet=quiet, own=own)
        return code


def _find_next(run_dir: str, attempt: int) -> int | None:
    """The attempt that holdfast itself has begun after this one, or is about to begin; None without."""
    from holdfast.agent.retrying import read_retry

    decided = read_retry(run_dir, attempt)
    if not decided.get("retry"):
        return None
    state = f"{wire.attempt_dir(run_dir, attempt + 1)}/{wire.STATE}"
    if not wait_briefly(lambda: os.path.exists(state), NEXT_WITHIN_S):
        note(f"{os.path.basename(run_dir)}: an attempt was to follow and has not begun; holdfast restart begins it")
        return None
    pause = f" in {format_duration(decided['wait_s'])}" if decided.get("wait_s") else ""
    note(f"{os.path.basename(run_dir)}: attempt {attempt + 1} follows{pause}: {decided.get('why')}")
    return attempt + 1


def _follow_one(
    run_dir: str,
    attempt: int,
    stdout: BinaryIO | None,
    listening: tuple[int, list[int]],
    *,
    offset: int,
    quiet: bool,
    own: bool,
) -> int:
    following = _Following(run_dir, attempt, stdout or sys.stdout.buffer, offset=offset, quiet=quiet, own=own)
    try:
        return following.run(*listening)
    except BrokenPipeError:
        note(f"standard output was closed; {following.run_id} goes on: holdfast attach {following.run_id}")
        return EXIT_BROKEN_PIPE
    except OutputRefused as error:
        raise StorageError(
            f"standard output takes no more: {error.strerror}; {following.run_id} is not affected",
            hint=f"follow it again: holdfast attach {following.run_id}    its output: {following.run_dir}",
        ) from error
    finally:
        following.close()


@contextmanager
def _listening() -> Iterator[tuple[int, list[int]]]:
    """Turn INT, HUP and TERM into numbers in a list and a readable descriptor; put everything back afterwards."""
    heard: list[int] = []
    wake_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    previous = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda seen, _frame: heard.append(seen))
    try:
        yield wake_fd, heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous)
        os.close(wake_fd)
        os.close(write_fd)


class _Following:
    """One attempt being followed."""

    def __init__(self, run_dir: str, attempt: int, stdout: BinaryIO, *, offset: int, quiet: bool, own: bool) -> None:
        self.run_dir, self.attempt = run_dir, attempt
        self.run_id = os.path.basename(run_dir)
        self._stdout = stdout
        self._quiet = quiet
        self._own = own
        self._output = Follower(f"{wire.attempt_dir(run_dir, attempt)}/{wire.OUTPUT}", offset)
        self._notices: set[str] = set()
        self._interrupts = 0
        self._settled_after: ProcessId | None = None
        self._settled_at = 0.0
        self._began = monotonic_s()
        self._over_since: float | None = None
        self._supervisor: ProcessId | None = None

    def close(self) -> None:
        self._output.close()

    def run(self, wake_fd: int, heard: list[int]) -> int:
        view = observe.observe(self.run_dir, attempt=self.attempt)
        local = view.reach is Reach.HERE
        with Changes(view.attempt_dir, wake_fd=wake_fd, local=local) as changes:
            while True:
                view = observe.observe(self.run_dir, attempt=self.attempt)
                if view.state is not None and view.reach is Reach.HERE:
                    self._supervisor = view.state.supervisor or self._supervisor
                self._tell(view)
                self._pump(last=False)
                code = self._judge(view)
                if code is not None:
                    return code
                acting.watch_processes(changes, view)
                code = self._wait(changes, view, wake_fd, heard)
                if code is not None:
                    return code

    def _wait(self, changes: Changes, view: RunView, wake_fd: int, heard: list[int]) -> int | None:
        """Show output until something else than output changes; an exit code ends the following."""
        # Whatever was written between the look and the watch is seen because the watch is older than the look.
        patience_s = UNSTARTED_S if _is_unstarted(view) else acting.ADOPT_WAIT_S if view.vanished else None
        if view.over:
            patience_s = NOTE_WAIT_S  # woken before by the note, the decision, and the supervisor's end
        elif view.state is None:
            patience_s = BLIND_LOOK_S
        while True:
            if heard:
                _drain(wake_fd)
                while heard:
                    code = self._on_signal(heard.pop(0), view)
                    if code is not None:
                        return code
            changed = changes.wait(patience_s)
            self._pump(last=False)
            if not heard and (changed == EVERYTHING or changed & _STATE_FILES or not changed):
                return None

    def _judge(self, view: RunView) -> int | None:
        if view.over or (view.ended and not view.supervised and not view.vanished):
            if self._awaits_more(view):
                return None
            self._pump(last=True)
            if not self._quiet:
                print_summary(view)
            return view.exit_code if view.exit_code is not None else EXIT_UNKNOWN
        if view.vanished and not self._settle(view):
            return self._give_up(f"nobody could finish its record; see {view.attempt_dir}/{wire.SUPERVISOR_LOG}")
        if _is_unstarted(view) and monotonic_s() - self._began > UNSTARTED_S:
            return self._give_up(f"no supervisor took it up; see {view.attempt_dir}/{wire.SUPERVISOR_LOG}")
        if view.condition == observe.UNREADABLE and view.state is None:
            # The job may have removed its own run directory: its supervisor still knows the end, and writes it.
            if self._supervisor is None or not is_alive(self._supervisor):
                return self._give_up(view.note)
            self._notice(f"{view.note}; its supervisor (pid {self._supervisor.pid}) goes on")
        return None

    def _awaits_more(self, view: RunView) -> bool:
        """Whether more is about to be written: the failure note that the summary names, or that it goes on."""
        if view.end is None or view.end.outcome is Outcome.SUCCEEDED or view.end.refusal is not None:
            return False
        supervisor = view.state.supervisor if view.state is not None else None
        if supervisor is None or view.reach is not Reach.HERE or not is_alive(supervisor):
            return False
        self._over_since = self._over_since or monotonic_s()
        waited_s = monotonic_s() - self._over_since
        if not os.path.exists(f"{view.attempt_dir}/{wire.FAILURE}"):
            return waited_s < NOTE_WAIT_S
        from holdfast.agent.retrying import is_undecided

        return waited_s < acting.DECISION_WAIT_S and is_undecided(view.run_dir, view.attempt)

    def _settle(self, view: RunView) -> bool:
        """Have a vanished run finished, once; False when that failed: the new supervisor is gone too, or never came."""
        assert view.state is not None
        supervisor = view.state.supervisor
        if self._settled_after is None:
            self._notice(f"{self.run_id}: nobody is left who could end it ({view.note}); a new supervisor does")
            self._settled_after, self._settled_at = supervisor, monotonic_s()
            return acting.settle(view, begin=self._own)
        return supervisor == self._settled_after and monotonic_s() - self._settled_at < acting.ADOPT_WAIT_S

    def _give_up(self, why: str) -> int:
        self._pump(last=True)
        note(f"{self.run_id}: {why}\nlook at it with: holdfast show {self.run_id}")
        return EXIT_UNKNOWN

    def _pump(self, *, last: bool) -> None:
        if self._quiet:
            return
        for data in self._output.read_rest() if last else self._output.read():
            write_fully(self._stdout, data)

    def _on_signal(self, number: int, view: RunView) -> int | None:
        if number == signal.SIGHUP:
            return 128 + number
        if number == signal.SIGTERM:
            note(f"detached by SIGTERM; {self.run_id} goes on: holdfast attach {self.run_id}")
            return 128 + number
        self._interrupts += 1
        if self._interrupts > 2:
            note(f"detached; the stop of {self.run_id} goes on: holdfast show {self.run_id}")
            return EXIT_STOPPED
        wish = Wish.STOP if self._interrupts == 1 else Wish.STOP_NOW
        try:
            acting.ask_stop(view, wish, by=f"{acting.describe_caller()}, Ctrl-C")
        except HoldfastError as error:
            note(f"{error}; detached, {self.run_id} goes on")
            return EXIT_STOPPED
        if wish is Wish.STOP:
            grace = format_duration(acting.grace_of(view))
            note(f"asked {self.run_id} to stop; it has {grace} to save. Ctrl-C again kills it at once")
        else:
            note(f"asked for KILL. Ctrl-C again leaves {self.run_id} to its supervisor")
        return None

    def _tell(self, view: RunView) -> None:
        """Say once what is new and not in the job's own output."""
        state = view.state.state if view.state is not None else None
        if isinstance(state, Waiting):
            self._tell_waiting(state)
        elif isinstance(state, Running) and self._notices:
            self._notice(f"running since {state.since}" + _name_cards(view))
        elif isinstance(state, Stopping):
            self._notice(f"stopping ({state.request.words}): {state.rung.value.upper()} sent")
        elif isinstance(state, Finalizing) and state.stuck:
            self._notice("survived KILL so far: " + "; ".join(state.stuck))
        if view.supervisor is Presence.GONE and view.job_lives:
            self._notice(f"its supervisor is gone, the job goes on unsupervised: holdfast adopt {self.run_id}")
        for item in view.unreadable:
            # The job may be writing its heartbeat at this moment; only what is ours is worth a word.
            if item.path.endswith(wire.HEARTBEAT):
                continue
            self._notice(f"{item.path} cannot be read: {item.reason}")

    def _tell_waiting(self, state: Waiting) -> None:
        from .cards import find_place_in_line

        for busy in state.blocked_by:
            since = f" since {busy.since}" if busy.since else ""
            place = _PLACES.get(busy.witness, " holds it")
            doing = f" ({busy.command})" if busy.command else ""
            self._notice(f"waiting for {busy.label}: {busy.holder}{place}{since}{doing}")
        place_in_line = find_place_in_line(self.run_id) if state.blocked_by else None
        if place_in_line is not None:
            self._notice("you are number {} of {} in line".format(*place_in_line))

    def _notice(self, text: str) -> None:
        if text not in self._notices:
            self._notices.add(text)
            note(text)


def _is_unstarted(view: RunView) -> bool:
    return view.state is not None and isinstance(view.state.state, Created) and view.state.supervisor is None


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 512):
            pass
    except BlockingIOError:
        return


def write_fully(stdout: BinaryIO, data: bytes) -> None:
    """Write bytes at once, also to a terminal that somebody made non-blocking.

    Raises:
        BrokenPipeError: nobody reads any more.
        OutputRefused: it takes no more for another reason, a full disk for one.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(stdout.fileno(), view) :]
        except BlockingIOError:
            select.select([], [stdout.fileno()], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputRefused(error.errno, error.strerror) from error


def print_summary(view: RunView) -> None:
    """Three lines on standard error: how it ended, what it used and left, where everything is."""
    for line in build_summary(view):
        print(clean(line, keep_newlines=True), file=sys.stderr)
    sys.stderr.flush()


def build_summary(view: RunView) -> list[str]:
    """The three lines of `print_summary`, then warnings, then the remedy, or why it failed and what to do."""
    end = view.end
    duration = _duration(view)
    took = f" after {duration}" if duration else ""
    reason = end.evidence if end is not None else view.note
    lines = [f"holdfast: {view.name} {view.condition}{took} (exit {view.exit_code}): {reason}"]
    lines.append(f"  attempt {view.attempt}, {_count_artifacts(view)}{_name_cards(view)}")
    lines.append(f"  {view.run_dir}  (holdfast show {view.run_id})")
    lines += [f"  warning: {warning}" for warning in (end.warnings if end is not None else ())]
    if end is not None and end.refusal is not None and end.refusal.hint:
        lines.append(f"  {end.refusal.hint}")
    elif os.path.exists(f"{view.attempt_dir}/{wire.FAILURE}"):
        lines += _say_why(view)
        lines.append(f"  more: {view.attempt_dir}/{wire.FAILURE}")
    return lines


def _say_why(view: RunView) -> list[str]:
    """Class, cause and action as they were judged at the end, and why nothing follows where something could have."""
    from holdfast.agent.retrying import read_retry
    from holdfast.diagnosis.ended.judge import read_judgement
    from holdfast.model.verdict import Retry

    judgement = read_judgement(view.run_dir, view.attempt)
    verdict = judgement.verdict if judgement is not None else None
    if verdict is None:
        return []
    cause = verdict.cause if len(verdict.cause) <= LONGEST_CAUSE else f"{verdict.cause[:LONGEST_CAUSE]}..."
    lines = [f"  why: {verdict.kind.value} ({verdict.confidence.value}){f': {cause}' if cause else ''}"]
    lines.append(f"  do: {verdict.action}")
    decided = read_retry(view.run_dir, view.attempt)
    if verdict.retry is not Retry.NEVER and decided.get("retry") is False and decided.get("why"):
        lines.append(f"  not tried again: {decided['why']}")
    return lines


def _duration(view: RunView) -> str:
    seconds = duration_of(view)
    return "" if seconds is None else format_duration(seconds)


def duration_of(view: RunView) -> float | None:
    """Seconds from the job's exec to its end; None when it never ran or has not ended."""
    recorded = view.exit.get("duration_s")
    if isinstance(recorded, (int, float)):
        return float(recorded)
    end = view.end
    if end is None or not end.started_at:
        return None
    try:
        return max(0.0, parse_utc(end.at) - parse_utc(end.started_at))
    except ValueError:
        return None


def _count_artifacts(view: RunView) -> str:
    directory = f"{view.run_dir}/{wire.ARTIFACTS}"
    count = sum(len(names) for _, _, names in os.walk(directory))
    return f"{count} file{'s' if count != 1 else ''} in {directory}" if count else "no artifacts"


def _name_cards(view: RunView) -> str:
    from .cards import name_cards

    names = name_cards(view)
    return f", {names}" if names else ""
