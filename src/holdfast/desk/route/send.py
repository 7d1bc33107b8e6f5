"""Has a place carry out a command line as if it had been typed there: its output, its errors, its exit code.

What only looks goes on when the link is lost (`follow`). Everything else was sent or was not: an answer that was cut
off says nothing about what happened, and is an error that says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.job.redact import NAMES_OF_SECRETS, holds_secret, redact_argv, redact_text
from holdfast.desk.author import name_author
from holdfast.desk.caller import AUTHOR, CONSENT, ENV_FROM
from holdfast.desk.terminal import ReceivedSignals, drain, listening, say, watch_reader
from holdfast.model.errors import PlaceError, UsageError

from .asking import Listener
from .follow import Beside, Following, Manner, choose_manner
from .line import Line, read_line
from .screen import Screen, describe_terminal
from .table import Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.transfer.box import Box

    from .carry import Carried

RAW = frozenset({"logs", "attach", "exec"})
"""Verbs whose standard output is the job's own."""
STARTING = frozenset({"restart", "preflight", "drill", "submit", "sweep", "queue", "doctor"})
"""Verbs with which jobs are started, or judged, in the environment of the command itself."""
EXEC, SHELL = "exec", "shell"
GOING_ON = frozenset({"stop", "restart"})
"""Verbs that go on there when the connection ends."""
ENV = "--env"
"""The verbs that have it take what a job is made of."""
EXIT_NO_CONNECTION = 255
"""ssh's own. Source: ssh(1), EXIT STATUS."""


def send(
    box: Box,
    argv: Sequence[str],
    *,
    order: bytes | None = None,
    ask: Callable[[str], bool] | None = None,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
) -> int:
    """Carry out ``holdfast ARGV`` at a place; answers the exit code of the command there, or 128 + a signal's number.

    `order` is what its job file was made into here. `ask` asks whoever types here (None: nobody can be asked, and the
    place refuses what needs consent). `tell` hears how much has come of a file that the command writes at this desk.

    Raises:
        PlaceError, Refused, NoInterpreter: as of `Box`.
        UsageError: a shell is asked for, and there is no terminal; a file of this desk cannot be read; a secret is
            among the words.
        StorageError: a file of this desk cannot be written; nothing of it is left.
        BrokenPipeError, OutputRefused: standard output takes no more.
    """
    line = read_line(list(argv))
    _refuse_secrets(box, line)
    if line.name == SHELL:
        return _open_shell(box, line)
    carried = _gather_files(line, order)
    manner = choose_manner(line)
    screen = Screen(raw=line.name in RAW, raw_errors=line.name == EXEC)
    call = _Call(box, line, screen, carried)
    if manner is not None:
        with call.input() as stdin_fd:
            box.prepare(sends=stdin_fd is not None)
            beside = Beside(stdin_fd, call.env)
            with listening() as (wake_fd, heard):
                if manner is Manner.LOGS:  # who follows a run waits for its exit code, too
                    watch_reader(1, partial(heard.hear, signal.SIGPIPE))
                return Following(box, line, manner, screen, wake_fd=wake_fd, heard=heard, beside=beside).run()
    if carried is not None and carried.target is not None:
        return call.collect(tell)
    return call.run(screen.out) if line.name in RAW or ask is None else call.converse(ask)


def _refuse_secrets(box: Box, line: Line) -> None:
    """Before it is sent: every account of a box sees the words of all commands there, and a job is recorded."""
    if line.verb is None or (line.name != EXEC and ENV not in line.verb.options):
        return
    found = []
    for given in line.given:
        text = line.text(given)
        name, is_set, value = text.partition("=")
        if given.name == ENV and is_set:
            found += [f"{ENV} {name}"] if holds_secret(name, value) else []
        elif given.name not in NAMES_OF_SECRETS and redact_text(text) != text:
            found.append(given.name)
    found += redact_argv(line.argv[line.own + 1 :])[1]
    if found:
        place = box.place.name
        beside = " with the run: what is run beside it has it in its environment" if line.name == EXEC else ""
        raise UsageError(
            f"{line.name} holds what looks like a secret: {', '.join(found)}; nothing was sent to {place}",
            hint=f"holdfast secret push {place} NAME, and --secret NAME{beside}",
        )


def _gather_files(line: Line, order: bytes | None) -> Carried | None:
    if not any(given.side in (Side.DESK_IN, Side.DESK_OUT) for given in line.given):
        return None
    from .carry import gather_files  # lazy: few commands have any

    return gather_files(line, order)


class _Call:
    """One command line that is sent; it answers and is done."""

    def __init__(self, box: Box, line: Line, screen: Screen, carried: Carried | None) -> None:
        self._box, self._line, self._screen, self._carried = box, line, screen, carried
        files = {} if carried is None else carried.env
        self.env = {AUTHOR: name_author(), **_choose_environment(box, line), **files}

    @contextlib.contextmanager
    def input(self) -> Iterator[int | None]:
        """What is its standard input."""
        file = None if self._carried is None else self._carried.open_input()
        if file is None:
            yield _find_input() if self._line.name == EXEC else None
            return
        with file:
            yield file.fileno()

    def run(self, out: Callable[[bytes], None], **env: str) -> int:
        """Send it, and hand on what it writes."""
        with self.input() as stdin_fd:
            self._box.prepare(sends=stdin_fd is not None)
            with listening() as (wake_fd, heard):

                def woken() -> bool:
                    drain(wake_fd)
                    return bool(heard)

                try:
                    code = self._box.follow(
                        self._line.argv,
                        out=out,
                        err=self._screen.err,
                        stdin_fd=stdin_fd,
                        wake_fd=wake_fd,
                        woken=woken,
                        env={**describe_terminal(), **self.env, **env},
                    )
                finally:
                    self._screen.end()
                return code if code != -1 else self._leave(heard)

    def _leave(self, heard: ReceivedSignals) -> int:
        runs = [self._line.text(given) for given in self._line.given if given.side is Side.RUN]
        if self._line.name in GOING_ON and len(runs) == 1:
            name = f"{self._box.place.name}:{runs[0]}"
            say(f"left; if it has arrived, the {self._line.name} of {name} goes on there: holdfast show {name}")
        return 128 + heard[0]

    def collect(self, tell: Callable[[int, int], None]) -> int:
        """Send one that writes a file of this desk, which is there whole afterwards, or not at all."""
        assert self._carried is not None
        collector = self._carried.collect(self._screen.out, tell)
        try:
            code = self.run(collector.take)
            if code == 0:
                collector.finish()
            else:
                collector.give_up()
            return code
        except PlaceError as error:
            raise collector.explain(error) from error
        finally:
            collector.abandon()

    def converse(self, ask: Callable[[str], bool]) -> int:
        """Send one that may have a question, and send it again with the answer."""
        consent, shown = "", b""
        while True:
            listener = Listener(self._screen.out, shown)
            code = self.run(listener.take, **{CONSENT: consent})
            question = listener.finish()
            if question is None:
                return code
            if not ask(question.text):
                raise UsageError("nothing was done: the answer was no")
            consent, shown = question.plan_hash, listener.shown
            self._screen.begin_again()


def _choose_environment(box: Box, line: Line) -> dict[str, str]:
    """That the command there is to have the environment of a login shell, where it starts or judges jobs."""
    starts = (line.name or "").partition(" ")[0] in STARTING
    return {ENV_FROM: box.place.env_from} if starts and box.place.env_from != "none" else {}


def _find_input() -> int | None:
    """Standard input, if anything can come from it: what it costs to send it is spared otherwise."""
    try:
        found, null = os.fstat(0), os.stat(os.devnull)
    except OSError:
        return None
    return None if stat.S_ISCHR(found.st_mode) and found.st_rdev == null.st_rdev else 0


def _open_shell(box: Box, line: Line) -> int:
    run = next((line.text(given) for given in line.given if given.name == "run"), "RUN")
    name = f"{box.place.name}:{run}"
    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError(
            "there is no terminal for a shell", hint=f"type it in one, or: holdfast exec {name} -- COMMAND"
        )
    code = box.open_terminal(line.argv)
    if code == EXIT_NO_CONNECTION:
        say(f"the connection to {box.place.name} ended; {name} is not touched by that")
    return code
