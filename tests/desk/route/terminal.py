"""A command of the desk on a terminal of its own, for tests of what is asked there."""

from __future__ import annotations

import os
import pty
import re
import select
import time
from typing import TYPE_CHECKING

from tests.cli.conftest import ENTRY
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def answer_at_terminal(
    *words: str,
    cwd: Path,
    answers: list[str],
    before: Callable[[int], None] = lambda _number: None,
    prompt: str = r"\[y/N\]: ",
) -> tuple[int, str]:
    """Exit code and text of a command on a terminal that answers each question; `before` is called with its number."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execv(ENTRY[0], [*ENTRY, *words])
    text, asked, deadline = "", 0, time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:
                break  # a terminal without a process: EIO
            if not data:
                break
            text += data.decode()
            if len(re.findall(prompt, text)) > asked:
                before(asked)
                os.write(terminal, f"{answers[asked]}\n".encode())
                asked += 1
    finally:
        os.close(terminal)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), text.replace("\r\n", "\n")
