"""The supervisor's event loop: descriptors, deadlines, signals. Sleeps in the kernel until something happens."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

from .timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

LISTENED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class Loop:
    """Descriptors with what to call when they are readable, timers, and signals turned into calls."""

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        """Listen to INT, TERM, HUP and CHLD from now on; `on_signal` is called in the loop, never in a handler."""
        self.timers = Timers()
        self._poller = select.poll()
        self._calls: dict[int, Callable[[], None]] = {}
        self._on_signal = on_signal
        self._wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in LISTENED:
            signal.signal(number, _leave_to_wakeup)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LISTENED)
        self.add(self._wake_read, self._take_signals)

    def add(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call `call` whenever `descriptor` is readable or at its end."""
        self._calls[descriptor] = call
        self._poller.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        """Stop listening to a descriptor; it stays open. One that is not listened to is fine."""
        if self._calls.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def run_once(self) -> None:
        """Wait for the next thing to happen and do what belongs to it."""
        for descriptor, _ in self._poller.poll(self.timers.next_delay_ms()):
            call = self._calls.get(descriptor)
            if call is not None:
                call()
        self.timers.run_due()

    def _take_signals(self) -> None:
        try:
            numbers = os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        for number in dict.fromkeys(numbers):
            for _ in range(1 if number == signal.SIGCHLD else numbers.count(number)):
                self._on_signal(number)


def _leave_to_wakeup(_number: int, _frame: object) -> None:
    """The handler that exists so that the wakeup descriptor is written; see signal.set_wakeup_fd."""
