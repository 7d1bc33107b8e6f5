"""Signals as a flag, for verbs that have started something and end it before they leave."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interruptible(*numbers: signal.Signals) -> Iterator[Callable[[], bool]]:
    """These signals set a flag, which the function that is given tells; what was ignored stays so."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: seen.append(number))
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
