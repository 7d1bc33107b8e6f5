"""The end of a terminal, or of a desk's connection, while something goes on that must not be left half done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hold_hangups() -> Iterator[None]:
    """Let HUP wait until the end of the block. Only in the main thread.

    A handler, and no mask, which a process that is started meanwhile would inherit. Where it is ignored it stays so.
    """
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        if heard:
            signal.raise_signal(signal.SIGHUP)
