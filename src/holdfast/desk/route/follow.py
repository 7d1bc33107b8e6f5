"""Following at a place what goes on there, for as long as it takes, over a link that may be lost.

The run is not told of it. A lost link is tried again, with pauses that grow, and goes on behind the last byte that
came; when that does not help for long, the following ends and says that the run goes on. Interrupts mean what they
mean to somebody who follows here: the first asks for a stop, the second for KILL, the third leaves; TERM and HUP leave.
"""

from __future__ import annotations

import json
import select
import signal
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.desk.author import name_author
from holdfast.desk.caller import AUTHOR, FILES
from holdfast.desk.orders.journal import note_end
from holdfast.desk.runs.poll import record_row
from holdfast.desk.terminal import OutputRefused, ReceivedSignals, drain, say
from holdfast.model.errors import EXIT_STOPPED, CutOff, HoldfastError, PlaceError, StorageError, Unreachable
from holdfast.model.record import field, record
from holdfast.model.run import Outcome
from holdfast.model.units import format_duration
from holdfast.transport.base import MOST_BYTES

from .frames import FrameReader, write_position
from .screen import Screen, describe_terminal

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

    from .line import Line

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 10.0
"""A link that held so long was well."""
GIVE_UP_S = 1200.0
"""A link that is away for longer is not waited for: the run goes on, and can be attached to."""
ASK_LIMIT_S = 30.0
ASK_WAIT = "0s"
JOIN_LIMIT_S = 2.0
"""What an unfinished question may delay the end."""
EXIT_BROKEN_PIPE = 141
FOLLOWED = "followed"
"""The run that was followed, among the details of the error that gives it up."""
_ENDS = frozenset(outcome.value for outcome in Outcome)
_CODES = frozenset({0, 76, 124})
"""Exit codes of a `stop` that has asked."""


def _tells_end(data: bytes | bytearray) -> bool:
    """Whether the object of ``attach --json`` is of a run that is over: who leaves before prints how it stands, too."""
    try:
        value = json.loads(data)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("condition") in _ENDS


class _KilledError(CutOff):
    """The command that followed was ended on the box; the link stands."""


class Manner(Enum):
    """What is followed, and so what an interrupt means, and what is said again after a cut."""

    ATTACH = "attach"
    """A run with its output: interrupts ask it to stop."""
    RESTART = "restart"
    """As `ATTACH`, once it has begun."""
    LOGS = "logs"
    """Output alone: an interrupt ends the look."""

    @property
    def stops(self) -> bool:
        """Whether interrupts are for the run."""
        return self in (Manner.ATTACH, Manner.RESTART)


def choose_manner(line: Line) -> Manner | None:
    """How a command line follows; None for one that answers and is done."""
    if line.name == "attach":
        return Manner.ATTACH
    if line.name == "restart" and line.has("-f", "--follow") and not line.has("--dry-run"):
        return Manner.RESTART
    if line.name == "logs" and _follows(line):
        # Lines of several runs, or some lines of one, have no place in one file where a lost link could go on.
        runs = [line.text(given) for given in line.given if given.name == "names"]
        grep = any(given.name == "--grep" for given in line.given)
        return None if grep or len(runs) > 1 or runs[0].endswith("/") else Manner.LOGS
    return None


def _follows(line: Line) -> bool:
    """Whether ``-f`` is given, alone or with other letters (``-fn5``)."""
    short = (word for word in line.argv[: line.own] if word.startswith("-") and not word.startswith("--"))
    return line.has("--follow") or any("f" in word[1:].partition("n")[0] for word in short)


@record
class Beside:
    """What goes along with a command: its input (None: empty), with the command as it was given alone; and `env`."""

    stdin_fd: int | None = None
    env: dict[str, str] = field(default_factory=dict)


class Following:
    """One command that is followed at a place."""

    def __init__(
        self,
        box: Box,
        line: Line,
        manner: Manner,
        screen: Screen,
        *,
        wake_fd: int,
        heard: ReceivedSignals,
        beside: Beside | None = None,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        """`wake_fd` becomes readable when a signal's number was added to `heard`.

        `beside` goes along with the command.
        """
        self._box, self._line, self._manner, self._screen = box, line, manner, screen
        self._wake_fd, self._heard = wake_fd, heard
        self._beside = Beside() if beside is None else beside
        self._give_up_s = give_up_s
        self._framed = not line.has("--json")
        self._holds = manner is Manner.ATTACH and not self._framed
        """Whether what comes is one object, shown when it is whole: what was cut short is no end."""
        self._held = bytearray()
        self._frames = FrameReader(screen.out, screen.job, self._hear_end)
        self._interrupts = 0
        self._code: int | None = None
        self._lost_since: float | None = None
        self._is_back = ""
        self._answered = False
        self._has_ended = False
        self._asking: list[threading.Thread] = []
        self._has_asked = False

    def run(self) -> int:
        """Follow to the end; the exit code.

        Raises:
            PlaceError: it could not be reached from the beginning, or no more for long.
        """
        try:
            return self._run()
        except BrokenPipeError:
            say(f"standard output was closed; {self._name} goes on: holdfast attach {self._name}")
            return EXIT_BROKEN_PIPE
        except OutputRefused as error:
            raise StorageError(
                f"standard output takes no more: {error.strerror}; {self._name} is not affected",
                hint=f"follow it again: holdfast attach {self._name}",
            ) from error
        finally:
            self._screen.end()
            for asking in self._asking:
                asking.join(JOIN_LIMIT_S)

    def _run(self) -> int:
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                code = self._follow_once()
                if self._is_cut_short(code):
                    raise _KilledError(f"{self._box.place.name}: what followed there was ended ({code})")
            except PlaceError as error:
                self._lose(error)
                # What is ended each time as soon as it answers is not begun again without a pause.
                held = self._answered and time.monotonic() - began >= STEADY_S
                pause_s = FIRST_PAUSE_S if held else pause_s
                self._answered = False
                self._rest(pause_s)
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            except HoldfastError as error:
                # Not let in any more, or no interpreter: nothing that another try mends, and nothing of the run's.
                if self._lost_since is None:
                    raise
                words, hint = f"{error}; the run goes on", f"{error.hint}; then: holdfast attach {self._name}"
                raise type(error)(words, hint=hint, details=error.details) from error
            else:
                if code != -1:
                    if self._holds:
                        self._show_held()
                    return code
            if self._code is not None:
                return self._code

    def _is_cut_short(self, code: int) -> bool:
        """Whether the command there was killed: the code of a signal is the job's only where its end came with it."""
        return code >= 128 and not self._saw_end and self._code is None

    def _show_held(self) -> None:
        if self._saw_end:
            note_end(self._box.place.name, self._run_word)
        self._screen.out(bytes(self._held))

    @property
    def _saw_end(self) -> bool:
        """Whether the end of what is followed came: behind its output, or in the one object of ``--json``."""
        if self._framed:
            return self._has_ended
        return not self._holds or _tells_end(self._held)

    def _follow_once(self) -> int:
        self._frames.restart()
        self._held.clear()
        env = {**describe_terminal(), **self._beside.env}
        argv = self._build_argv()
        if argv != self._line.argv:
            env.pop(FILES, None)
        if self._framed:
            env["HOLDFAST_FOLLOW"] = write_position(self._frames.position)
        return self._box.follow(
            argv,
            out=self._out,
            err=self._err,
            stdin_fd=self._beside.stdin_fd if FILES in env else None,
            wake_fd=self._wake_fd,
            woken=self._woken,
            env=env,
        )

    def _build_argv(self) -> tuple[str, ...]:
        """The command as it was given; later the run by its id, which a name might not mean any more."""
        position = self._frames.position
        if position is None:
            return self._line.argv
        if self._manner is Manner.RESTART:
            return ("attach", position.run_id)
        argv = list(self._line.argv)
        for given in self._line.given:
            if given.name == "run":
                argv[given.index] = argv[given.index][: given.begin] + position.run_id
        return tuple(argv)

    # ---------------------------------------------------------------------------------------------------- output

    def _out(self, data: bytes) -> None:
        self._hear_place()
        if self._framed:
            self._frames.feed(data)
        elif self._holds:
            self._held += data[: MOST_BYTES - len(self._held)]
        else:
            self._screen.out(data)

    def _err(self, data: bytes) -> None:
        self._hear_place()
        self._screen.err(data)

    def _hear_end(self, row: bytes) -> None:
        """The run is over: the next list says so, also when its place cannot be asked any more."""
        self._has_ended = True
        place, position = self._box.place.name, self._frames.position
        if position is not None and record_row(place, position.run_id, row):
            note_end(place, position.run_id)

    def _hear_place(self) -> None:
        self._answered = True
        if self._lost_since is not None:
            self._lost_since = None
            say(self._is_back)

    @property
    def _run_word(self) -> str:
        position = self._frames.position
        if position is not None:
            return position.run_id
        runs = [self._line.text(given) for given in self._line.given if given.name == "run"]
        return runs[0] if runs else "RUN"

    @property
    def _name(self) -> str:
        """What is followed, as it is named at the desk."""
        return f"{self._box.place.name}:{self._run_word}"

    # ----------------------------------------------------------------------------------------------- a lost link

    def _lose(self, error: PlaceError) -> None:
        """Note that the link is away.

        Raises:
            PlaceError: there is nothing to go on with, or it is away for too long.
        """
        never_met = self._frames.position is None and not self._answered
        if isinstance(error, Unreachable) and never_met and self._lost_since is None:
            raise error
        if self._manner is Manner.RESTART and self._frames.position is None:
            raise error
        if self._screen.printed and not self._framed:
            # What it printed would be printed twice.
            raise error
        now = time.monotonic()
        if self._lost_since is None:
            place = self._box.place.name
            was_killed = isinstance(error, _KilledError)
            self._lost_since = now
            self._is_back = f"{self._name} is followed again" if was_killed else f"the link to {place} is back"
            lost = f"what followed at {place} was ended" if was_killed else f"link to {place} lost"
            say(f"{lost}, trying again; the run goes on")
            self._screen.begin_again()
        if now - self._lost_since >= self._give_up_s:
            raise self._give_up(error) from error

    def _give_up(self, error: PlaceError) -> CutOff:
        place, away = self._box.place.name, format_duration(self._give_up_s)
        return CutOff(
            f"the link to {place} is lost for {away} ({error}); the run goes on",
            hint=f"when {place} can be reached again: holdfast attach {self._name}",
            details={**error.details, "place": place, FOLLOWED: self._name},
        )

    def _rest(self, pause_s: float) -> None:
        """Pause; a signal is heard at once."""
        deadline = time.monotonic() + pause_s
        while self._code is None and (left := deadline - time.monotonic()) > 0:
            select.select([self._wake_fd], [], [], left)
            self._woken()

    # --------------------------------------------------------------------------------------------------- signals

    def _woken(self) -> bool:
        drain(self._wake_fd)
        while self._heard and self._code is None:
            self._hear_signal(self._heard.pop(0))
        return self._code is not None

    def _hear_signal(self, number: int) -> None:
        if number == signal.SIGPIPE:
            raise BrokenPipeError
        if number == signal.SIGHUP:
            self._code = 128 + number
        elif number == signal.SIGTERM:
            say(f"detached by SIGTERM; {self._name} goes on: holdfast attach {self._name}")
            self._code = 128 + number
        elif not self._manner.stops:
            self._code = EXIT_STOPPED
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 2:
            goes_on = f"the stop of {self._name} goes on"
            told = goes_on if self._has_asked else f"whether {self._name} was asked to stop is not known"
            say(f"detached; {told}: holdfast show {self._name}")
            self._code = EXIT_STOPPED
            return
        # A link that is lost must not keep the next interrupt from being heard.
        asking = threading.Thread(target=self._ask, args=(self._interrupts == 2,), daemon=True)
        self._asking.append(asking)
        asking.start()

    def _ask(self, force: bool) -> None:  # noqa: FBT001 - a thread's argument
        """Ask for the stop by a call of its own."""
        argv = ["stop", "--wait", ASK_WAIT, "--reason", "Ctrl-C at the desk", *(["--now"] if force else [])]
        try:
            done = self._box.run([*argv, self._run_word], env={AUTHOR: name_author()}, limit_s=ASK_LIMIT_S)
        except PlaceError as error:
            arrived = "" if isinstance(error, Unreachable) else "; whether the stop has arrived is not known"
            self._leave(f"{error}{arrived}")
            return
        except HoldfastError as error:
            self._leave(f"{error}")
            return
        if done.code not in _CODES:
            lines = done.err.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.code}"]
            self._leave(f"the stop was refused: {lines[0].removeprefix('holdfast: ')}")
            return
        self._has_asked = True
        if force:
            say(f"asked for KILL. Ctrl-C again leaves {self._name} to its supervisor")
        else:
            say(f"asked {self._name} to stop; it has its grace to save. Ctrl-C again kills it at once")

    def _leave(self, why: str) -> None:
        """End the following: it could not be asked for."""
        say(f"{why}; detached: holdfast show {self._name}")
        self._code = EXIT_STOPPED
        self._heard.wake()
