"""This process was sent by a desk: what it prints names the place, so that its hints can be typed at that desk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO, cast

from holdfast.cli.errors import wants_json
from holdfast.core.reader import READER
from holdfast.desk.caller import CALLER
from holdfast.desk.route.hints import find_own_run, name_place
from holdfast.model.errors import HoldfastError


def begin(arguments: Sequence[str]) -> None:
    """Take what the desk said out of the environment, and name the place in what is printed for people."""
    CALLER.take(os.environ)
    if CALLER.place is None:
        return
    CALLER.words = tuple(arguments)
    READER.zone = CALLER.zone
    if not wants_json(arguments):
        sys.stdout = cast("TextIO", NamingStream(sys.stdout, CALLER.place))
    # On the desk's terminal a remark stands behind what it is about, as on a terminal here.
    ahead = sys.stdout if CALLER.width is not None else None
    sys.stderr = cast("TextIO", NamingStream(sys.stderr, CALLER.place, ahead=ahead))
    if CALLER.env_from == "login":
        _become_login()


def _become_login() -> None:
    """Go on in the environment of a login shell; without one the command goes on in its own, and says so."""
    from holdfast.agent.login_environment import take_login_environment  # lazy: where a desk asks for it alone

    try:
        found = take_login_environment(os.environ)
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return
    os.environ.clear()
    os.environ.update(found)


def carry_out(words: list[str], dispatch: Callable[[list[str]], int]) -> int:
    """Carry out a command line, with the files of the desk that belong to it; the exit code.

    Raises:
        HoldfastError: as of the command; or its files did not come whole.
    """
    if not CALLER.files:
        return dispatch(words)
    from holdfast.cli.placed.desk_files import run_with_files  # lazy: few commands have any
    from holdfast.desk.route.carry import parse_files  # lazy: few commands have any

    return run_with_files(words, parse_files(CALLER.files), dispatch)


class NamingStream:
    """A stream of text for people, in which commands name the place. What goes to its `buffer` is left alone."""

    def __init__(self, stream: TextIO, place: str, *, ahead: TextIO | None = None) -> None:
        """`stream` stays as it is, and is flushed through this one; what was written to `ahead` goes out before."""
        self._stream, self._place, self._run = stream, place, find_own_run(sys.argv[1:])
        self._ahead = ahead

    def write(self, text: str) -> int:
        """Write a piece of text; a command is never printed in two."""
        if self._ahead is not None:
            self._ahead.flush()
        self._stream.write(name_place(text, self._place, self._run))
        return len(text)

    def __getattr__(self, name: str) -> object:
        """Everything else is the stream's own."""
        return getattr(self._stream, name)
