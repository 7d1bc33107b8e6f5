"""Following a live run in a terminal: its output as it comes, what it waits for, and how it ended.

The terminal half of `agent.view.live.attempt`. Losing the terminal or being terminated only detaches. Ctrl-C once asks
the run to stop, twice asks for KILL, a third time leaves it alone with that; in a notebook it only detaches. The job's
bytes go to standard output untouched; everything that holdfast says goes to standard error.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.cards.line import find_place_in_line
from holdfast.agent.control.stop import ask_stop
from holdfast.agent.queue.wait.run import code_of_gone, describe_gone
from holdfast.agent.view.grace import grace_of
from holdfast.agent.view.live.attempt import FollowAttempt, Standing, find_next
from holdfast.agent.view.live.summary import read_summary
from holdfast.agent.view.live.undelivered import list_start_warnings
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.page.run_cards import name_cards
from holdfast.agent.view.run_view import Presence, is_never_taken
from holdfast.agent.view.scheduled import SchedulerEar, apply_word, is_open, judge_end
from holdfast.desk.caller import CALLER
from holdfast.desk.route.frames import build_end
from holdfast.desk.terminal import OutputRefused, drain, listening, write_fully
from holdfast.host.process.surroundings import find_notebook
from holdfast.model import wire
from holdfast.model.errors import EXIT_STOPPED, HoldfastError, StorageError
from holdfast.model.lease import HOLDING
from holdfast.model.pattern import compile_later
from holdfast.model.run import Finalizing, RequestKind, Running, Stopping, Waiting, say_condition
from holdfast.model.scheduler import Phase
from holdfast.model.units import format_duration

from .errors import EXIT_BROKEN_PIPE
from .job_output import JobOutput
from .render import note
from .render.summary import print_summary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent.view.run_view import RunView

_MEASURED = compile_later(r"\b\d[\d.,]*(?: [smhd]\b|[mhd]\d\d[smh]\b| ?[kKMGT]?i?B\b| ?%| (?=GPU-hours)|:\d\d\b)")
"""An age, a size, a share, the time of day in a reason to wait: another at each look, and no other reason."""
EXIT_UNKNOWN = 69
"""The run can no longer be observed from here, and how it ended is not known."""
SCHEDULER_LOOK_S = 1.0


def follow_run(
    run_dir: str,
    attempt: int,
    *,
    quiet: bool = False,
    offset: int = 0,
    anchor: bytes = b"",
    listened: tuple[int, list[int]] | None = None,
) -> int:
    """Follow an attempt, and those that holdfast begins after it by itself, until the last one is over.

    The exit code is the job's, or holdfast's own for it. `quiet` shows no output and no summary (for ``--json``);
    notices still go to standard error. `offset` is where in the output to begin, in bytes, and `anchor` what stands
    before, if that is known. `listened` is what a caller of `listening` was given: signals that came before count.
    """
    with listening() if listened is None else nullcontext(listened) as (wake_fd, heard):
        code, left = _follow_one(run_dir, attempt, (wake_fd, heard), start=(offset, anchor), quiet=quiet)
        while not left and _announce_next(run_dir, attempt, wake_fd, heard):
            attempt += 1
            code, left = _follow_one(run_dir, attempt, (wake_fd, heard), start=(0, b""), quiet=quiet)
        if CALLER.follows and not quiet and not left:
            _tell_end(run_dir)
        return code


def _tell_end(run_dir: str) -> None:
    """Let a desk that follows know that this is all, and what its list is to say of the run."""
    from holdfast.agent.place.poll import describe_view  # lazy: for a desk that follows alone

    row = describe_view(observe_run(run_dir))
    sys.stdout.flush()
    write_fully(sys.stdout.buffer, build_end(row))


def _announce_next(run_dir: str, attempt: int, wake_fd: int, heard: list[int]) -> bool:
    """Whether another attempt has begun after this one by itself; said, also when it was to and did not."""
    following, run_id = find_next(run_dir, attempt), os.path.basename(run_dir)
    view = observe_run(run_dir, attempt=attempt)
    if following is None and is_open(view) and not is_never_taken(view):
        return _await_scheduler(view, wake_fd, heard)
    if following is None:
        return False
    if not following.begun:
        note(f"{run_id}: an attempt was to follow and has not begun; holdfast restart begins it")
        return False
    pause = f" in {format_duration(following.wait_s)}" if following.wait_s else ""
    note(f"{run_id}: attempt {following.attempt} follows{pause}: {following.why}")
    return True


def _await_scheduler(view: RunView, wake_fd: int, heard: list[int]) -> bool:
    """Whether the run's scheduler has begun another attempt after this one, which may take long; any signal leaves."""
    state = f"{wire.attempt_dir(view.run_dir, view.attempt + 1)}/{wire.STATE}"
    note(f"{view.run_id}: attempt {view.attempt} {say_condition(view.condition)}: {view.note}")
    ear, told = SchedulerEar(), ""
    while not os.path.exists(state):
        found = ear.listen(view)
        if found.over:
            return False
        # What it says of times is another at each look.
        if found.word is not None and (state_there := f"{found.word.state} {found.word.reason}") != told:
            told = state_there
            note(f"{view.run_id}: {found.word.evidence}; waiting for attempt {view.attempt + 1}")
        if heard or select.select([wake_fd], [], [], SCHEDULER_LOOK_S)[0]:
            note(f"{view.run_id} goes on without us: holdfast attach {view.run_id}")
            return False
    note(f"{view.run_id}: attempt {view.attempt + 1} has begun")
    return True


def _follow_one(
    run_dir: str, attempt: int, listened: tuple[int, list[int]], *, start: tuple[int, bytes], quiet: bool
) -> tuple[int, bool]:
    """The exit code, and whether it was left before its end: by a signal, or with nobody who reads."""
    run_id = os.path.basename(run_dir)
    wake_fd, heard = listened
    offset, anchor = start
    try:
        with FollowAttempt(run_dir, attempt, wake_fd=wake_fd, offset=offset, anchor=anchor) as following:
            output = None if quiet else JobOutput(run_id, attempt, following.output)
            shown = _FollowedAttempt(following, run_id, output)
            return shown.run(wake_fd, heard), shown.left
    except BrokenPipeError:
        note(f"standard output was closed; {run_id} goes on: holdfast attach {run_id}")
        return EXIT_BROKEN_PIPE, True
    except OutputRefused as error:
        raise StorageError(
            f"standard output takes no more: {error.strerror}; {run_id} is not affected",
            hint=f"follow it again: holdfast attach {run_id}    its output: {run_dir}",
        ) from error


class _FollowedAttempt:
    """One attempt shown in a terminal."""

    def __init__(self, attempt: FollowAttempt, run_id: str, output: JobOutput | None) -> None:
        """`output` None: it is for a program, which gets no output and no summary."""
        self._attempt, self.run_id = attempt, run_id
        self._output = output
        self._notices: set[str] = set()
        self._ear, self._heard = SchedulerEar(), ""
        self._interrupts = 0
        self._checked = False
        self.left = False

    def run(self, wake_fd: int, heard: list[int]) -> int:
        while True:
            view = self._attempt.look()
            self._tell(view)
            self._pump(self._attempt.read())
            standing = self._attempt.judge()
            code = self._finish(standing, view)
            if code is None and view.scheduler and is_never_taken(view):
                code = self._tell_scheduled(view)
            if code is None:
                code = self._wait(view, wake_fd, heard)
            if code is not None:
                return code

    def _wait(self, view: RunView, wake_fd: int, heard: list[int]) -> int | None:
        """Show output until something else than output changes; an exit code ends the following."""
        while True:
            if heard:
                drain(wake_fd)
                while heard:
                    code = self._on_signal(heard.pop(0), view)
                    if code is not None:
                        self.left = True
                        return code
            look = self._attempt.rest()
            self._pump(self._attempt.read())
            if look and not heard:
                return None

    def _finish(self, standing: Standing, view: RunView) -> int | None:
        """Say how it ended where there is nothing to wait for; the exit code then."""
        if standing is Standing.BLIND:
            self._notice(f"{view.note}; its supervisor (pid {self._attempt.supervisor_pid}) goes on")
        if standing in {Standing.BLIND, Standing.GOES_ON}:
            return None
        self._pump(self._attempt.read_rest())
        if standing is Standing.OVER:
            # One that its scheduler may begin again is told of by who waits for that.
            if self._output is not None and not is_open(view):
                print_summary(read_summary(view))
            return view.exit_code if view.exit_code is not None else EXIT_UNKNOWN
        if standing is Standing.GONE:
            note(describe_gone(view))
            return code_of_gone(view)
        unstarted = f"no supervisor took it up; see {view.attempt_dir}/{wire.SUPERVISOR_LOG}"
        why = unstarted if standing is Standing.UNSTARTED else view.note
        note(f"{self.run_id}: {why}\nlook at it with: holdfast show {self.run_id}")
        return EXIT_UNKNOWN

    def _tell_scheduled(self, view: RunView) -> int | None:
        """Say what its scheduler has it wait for; the exit code where that says that it never begins."""
        heard = self._ear.listen(view)
        if heard.word is None:
            return None
        if heard.over:
            note(f"{self.run_id}: {apply_word(view, heard.word).note}")
            return judge_end(view, heard.word)[1]
        # What it says of times is another at each look; without a reason it has not looked at the job yet.
        state = f"{heard.word.state} {heard.word.reason}"
        if heard.word.phase is Phase.WAITING and heard.word.reason and state != self._heard:
            self._heard = state
            self._notice(apply_word(view, heard.word).note)
        return None

    def _pump(self, pieces: Iterable[bytes]) -> None:
        if self._output is not None:
            self._output.write(pieces)

    def _on_signal(self, number: int, view: RunView) -> int | None:
        if number == signal.SIGHUP:
            return 128 + number
        if number == signal.SIGTERM:
            note(f"detached by SIGTERM; {self.run_id} goes on: holdfast attach {self.run_id}")
            return 128 + number
        notebook = find_notebook(os.environ)
        if notebook is not None:
            # Interrupting any cell interrupts what every other cell has started: it asks nobody's run to stop.
            note(
                f"{self.run_id} goes on: in a notebook ({notebook}) an interrupt stops no run; "
                f"to end it: holdfast stop {self.run_id}"
            )
            return EXIT_STOPPED
        self._interrupts += 1
        if self._interrupts > 2:
            note(f"detached; the stop of {self.run_id} goes on: holdfast show {self.run_id}")
            return EXIT_STOPPED
        request = RequestKind.STOP if self._interrupts == 1 else RequestKind.STOP_NOW
        try:
            ask_stop(view, request, by=f"{describe_caller()}, Ctrl-C")
        except HoldfastError as error:
            note(f"{error}; detached, {self.run_id} goes on")
            return EXIT_STOPPED
        if request is RequestKind.STOP:
            grace = format_duration(grace_of(view))
            note(f"asked {self.run_id} to stop; it has {grace} to save. Ctrl-C again kills it at once")
        else:
            note(f"asked for KILL. Ctrl-C again leaves {self.run_id} to its supervisor")
        return None

    def _tell(self, view: RunView) -> None:
        """Say once what is new and not in the job's own output."""
        state = view.state.state if view.state is not None else None
        if isinstance(state, (Waiting, Running)) and not self._checked:
            self._checked = True
            for text in list_start_warnings(view.run_dir, view.attempt):
                note(text)
        if isinstance(state, Waiting):
            self._tell_waiting(state)
        elif isinstance(state, Running) and self._notices:
            cards = name_cards(view)
            self._notice(f"running since {state.since}" + (f", {cards}" if cards else ""))
        elif isinstance(state, Stopping):
            self._notice(f"stopping ({state.request.words}): {state.rung.value.upper()} sent")
        elif isinstance(state, Finalizing) and state.copying is not None:
            self._notice(
                f"the training succeeded; copying its results to {view.results.get('to') or 'where they last'}"
            )
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
        for busy in state.blocked_by:
            since = f" since {busy.since}" if busy.since else ""
            held = ", held by" if busy.witness in HOLDING else ":"
            doing = f" ({busy.command})" if busy.command else ""
            text = f"waiting for {busy.label}{held} {busy.holder}{since}{doing}"
            self._notice(text, about=_MEASURED.sub("#", text))
        place_in_line = find_place_in_line(self.run_id) if state.blocked_by else None
        if place_in_line is not None:
            self._notice("you are number {} of {} in line".format(*place_in_line))

    def _notice(self, text: str, about: str = "") -> None:
        """Say something once; one word about the same (by default: the same text) is enough."""
        if (about or text) not in self._notices:
            self._notices.add(about or text)
            note(text)
