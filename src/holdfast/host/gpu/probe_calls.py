"""How the probe child calls NVML: a thread of its own for each card, one function at a time, each failure noted.

Part of `probe` and loaded only in that child. Invariants: of each thread is known which function it is in and since
when, so a call that blocks is reported by whoever waits; a value that a card does not have is None and no error; a card
that is lost ends the work on it, with what was read before.

It must not know which values are read, nor what a request is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import ModuleType
from typing import Any

Entry = dict[str, Any]  # JSON: decoded and checked by host.gpu.inventory

NOT_SUPPORTED = 3
ABSENT_CODES = frozenset({NOT_SUPPORTED, 4, 13})
"""NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND: this card or driver has no such value for us, which is no fault.
Source: nvml.h, nvmlReturn_t."""
FINAL_CODES = frozenset({1, 15})
"""UNINITIALIZED and GPU_IS_LOST: nothing else of this card can be read."""
SERIOUS_CODES = FINAL_CODES | {16}
"""As before, and RESET_REQUIRED."""


class CardUnreadable(Exception):
    """A call said that nothing more of this card can be read now."""


class ProbeThread:
    """A thread that does one thing at a time and of which is always known what it is blocked in.

    `at` is None when idle, else (function, monotonic start). `partial` is what the current work has found so far.
    """

    def __init__(self, index: int | None, results: SimpleQueue[tuple[int, ProbeThread]]) -> None:
        """Start the thread; `index` is the card, None for the driver as a whole."""
        self.index = index
        self.at: tuple[str, float] | None = None
        self.partial: Entry = {}
        self.identity: Entry = {}
        self._results = results
        self._work: SimpleQueue[tuple[int, Callable[[ProbeThread], None]]] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, request: int, work: Callable[[ProbeThread], None]) -> None:
        """Have `work` done; the finished worker is put on the results queue with the request's number."""
        self.partial = dict(self.identity)
        self.at = ("begin", time.monotonic())
        self._work.put((request, work))

    def mark(self, function: str) -> None:
        """Note which call comes next."""
        self.at = (function, time.monotonic())

    def _run(self) -> None:
        while True:
            request, work = self._work.get()
            try:
                work(self)
            except CardUnreadable:
                pass  # the code is in `partial`
            except Exception as error:  # noqa: BLE001 - one card's surprise must not silence the others
                note_error(self.partial, self.at[0] if self.at else "?", -1, f"{type(error).__name__}: {error}")
            self.at = None
            self._results.put((request, self))


def note_error(entry: Entry, function: str, code: int, text: str) -> None:
    """Add one failed call to an entry."""
    entry.setdefault("errors", []).append([function, code, text])


def call(nvml: ModuleType, worker: ProbeThread, function: str, *arguments: object) -> Any:  # noqa: ANN401 - ctypes
    """One NVML call by name; None where the value does not exist or cannot be read (then noted).

    Raises:
        CardUnreadable: the card is lost or NVML was shut down below us.
    """
    worker.mark(function)
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        if error.value == NOT_SUPPORTED:
            worker.partial.setdefault("unsupported", []).append(function)
        if error.value in ABSENT_CODES:
            return None
        note_error(worker.partial, function, error.value, str(error))
        if error.value in FINAL_CODES:
            raise CardUnreadable from error
        return None


def call_optional(nvml: ModuleType, worker: ProbeThread, key: str, function: str, *arguments: object) -> Any:  # noqa: ANN401
    """As `call` for a value that no card must have: only a lost card or one that wants a reset is an error.

    Cards and drivers answer such a call with all sorts of codes (INVALID_ARGUMENT for a sensor that they lack), and
    none of them says that the card is bad. `key` is noted where the card itself says that it has no such value.

    Raises:
        CardUnreadable: as `call`.
    """
    worker.mark(function)
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        if error.value == NOT_SUPPORTED:
            worker.partial.setdefault("unsupported", []).append(key)
        elif error.value in SERIOUS_CODES:
            note_error(worker.partial, function, error.value, str(error))
            if error.value in FINAL_CODES:
                raise CardUnreadable from error
        return None
