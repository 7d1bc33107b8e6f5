"""The contract of a transport: commands on one box, framed so that the end of an answer is known (docs/places.md).

A command is a script of ours for ``sh -c`` and words for its ``$1``, ``$2`` ... Login shells of all kinds read the line
that carries them, so both are of few characters: `check_call` refuses others. Data of any kind goes through standard
input, or base64 in a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.model.record import record

MOST_BYTES = 8 << 20
"""The largest answer that is kept in memory."""
MOST_NOISE_BYTES = 64 << 10
"""How much a login shell may print before the answer begins."""
LONGEST_LINE = 100_000
"""Bytes of one command line. Source: Linux takes 128 KiB in one word (MAX_ARG_STRLEN, execve(2))."""

SAFE_WORD = re.compile(r"[A-Za-z0-9._/+@:-][A-Za-z0-9._/+=@:-]*\Z")
"""Not `=` first: zsh would look for a command of that name."""
UNSAFE_IN_SCRIPT = re.compile(r"['\\!\n]")


@record
class Done:
    """A command that ran to its end there: its exit code (128 + number for a signal) and what it wrote.

    `cut`: it wrote more than was to be kept, and the rest of its output was dropped.
    """

    code: int
    out: bytes
    err: bytes
    cut: bool = False


class Transport(Protocol):
    """Bytes to and from one box. All methods may be used from several threads at once.

    Raises (all methods that send):
        Unreachable: nothing was sent; another try later may succeed.
        Refused: the key, a password, a second factor or the host key; another try cannot succeed by itself.
        CutOff: it was sent, and the link ended before the end of the answer: the effect is unknown.
        TooLate: no end within `limit_s`; the effect is unknown.
    """

    name: str
    """For messages: ``local``, ``ssh gpu1``."""

    def run(
        self,
        script: str,
        words: Sequence[str] = (),
        *,
        stdin: bytes | Iterable[bytes] = b"",
        limit_s: float,
        most_bytes: int = MOST_BYTES,
        stall_s: float | None = None,
    ) -> Done:
        """Run a command to its end and answer what it wrote.

        `stall_s`: how long input may stand still while nothing comes, either (None: five minutes).
        """
        ...

    def follow(
        self,
        script: str,
        words: Sequence[str] = (),
        *,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
        stdin_fd: int | None = None,
        wake_fd: int | None = None,
        woken: Callable[[], bool] | None = None,
    ) -> int:
        """Run a command for as long as it takes, hand on what it writes as it comes, and answer its exit code.

        `stdin_fd` is passed on as its standard input (None: empty). When `wake_fd` becomes readable `woken` is called;
        True ends the following: the command loses its connection, and the answer is -1.
        """
        ...

    def open_terminal(self, script: str, words: Sequence[str] = ()) -> int:
        """Run a command on this process's terminal, until it ends; its exit code. Nothing of it is framed."""
        ...


def check_call(script: str, words: Sequence[str]) -> None:
    """Refuse what some login shell would read otherwise than it is meant.

    Raises:
        ValueError: a fault of ours; no text of a user gets here unencoded.
    """
    if UNSAFE_IN_SCRIPT.search(script):
        raise ValueError(f"not for every login shell: {script!r}")
    for word in words:
        if not SAFE_WORD.match(word):
            raise ValueError(f"not for every login shell: {word!r}")
    if len(script) + sum(map(len, words)) + len(words) > LONGEST_LINE:
        raise ValueError("too long for a command line; send it through standard input")
