"""The supervisor's event loop: descriptors, deadlines, signals. Sleeps in the kernel until something happens."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING, Any

from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.pidfd import LOOK_EVERY_S
from holdfast.host.process.signals import STOPS, SURVIVED

from .timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.host.process.pidfd import HeldProcess

LISTENED = SURVIVED | {signal.SIGCHLD}


class Child:
    """Work of `Loop.run_child`. While it is under way its pid is among the loop's `helpers`."""

    def __init__(self, loop: Loop, work: Offload) -> None:
        """Only `Loop.run_child` makes one."""
        self._loop, self._work = loop, work
        self.under_way = True
        loop.helpers.add(work.pid)

    def forget(self) -> None:
        """Listen to it no more; a second time is nothing."""
        if self.under_way:
            self.under_way = False
            self._loop.helpers.discard(self._work.pid)
            self._loop.timers.disarm(self)
            self._loop.remove(self._work.fileno())

    def wait(self, limit_s: float) -> Any:  # noqa: ANN401 - whatever JSON value the work returned
        """Its answer, waited for here and now instead of in the loop; the loop hears of it no more.

        Raises:
            OffloadFailed: there is none within `limit_s`.
        """
        self.forget()
        return self._work.wait(limit_s)

    def abandon(self) -> None:
        """Kill it, where it is still under way: nobody hears of it any more."""
        if self.under_way:
            self.forget()
            self._work.abandon()


class Loop:
    """Descriptors with what to call when they are readable, timers, children, and signals turned into calls.

    `helpers` are the pids of children that are none of the job's.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        """Listen to CHLD and to all that would end us; `on_signal` is called in the loop, never in a handler."""
        self.timers = Timers()
        self.helpers: set[int] = set()
        self._poller = select.poll()
        self._calls: dict[int, Callable[[], None]] = {}
        self._on_signal = on_signal
        self._wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in LISTENED:
            signal.signal(number, _leave_to_wakeup)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LISTENED)
        self.add(self._wake_read, self.take_signals)

    def add(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call `call` whenever `descriptor` is readable or at its end."""
        self._calls[descriptor] = call
        self._poller.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        """Stop listening to a descriptor; it stays open. One that is not listened to is fine."""
        if self._calls.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def add_process(self, process: HeldProcess, call: Callable[[], None]) -> None:
        """Call `call` when a process has ended; where the kernel does not tell, it is looked at again and again."""
        if process.descriptor is not None:
            self.add(process.descriptor, call)
        elif process.has_ended():
            self.timers.arm(process, 0.0, call)
        else:
            self.timers.arm(process, LOOK_EVERY_S, lambda: self.add_process(process, call))

    def remove_process(self, process: HeldProcess) -> None:
        """Listen for its end no more; it stays held."""
        self.timers.disarm(process)
        if process.descriptor is not None:
            self.remove(process.descriptor)

    def run_child(
        self,
        work: Callable[[], object],
        then: Callable[[Any], None],
        on_fail: Callable[[str], None],
        *,
        within_s: float | None = None,
    ) -> Child:
        """Have `work` done in a disposable child, beside the loop; then call `then` with the JSON value it returned.

        `on_fail` is called with words instead when it raised, was killed, or said nothing within `within_s`. Neither is
        called before this returns, nor after `Child.abandon`.

        Raises:
            OSError: there is no child to be had.
        """
        offload = Offload(work)
        child = Child(self, offload)

        def take() -> None:
            if not offload.is_done():
                return
            child.forget()
            try:
                value = offload.result()
            except OffloadFailed as error:
                on_fail(str(error))
                return
            then(value)

        def give_up() -> None:
            child.abandon()
            on_fail(f"no answer within {within_s:g} s")

        self.add(offload.fileno(), take)
        if within_s is not None:
            self.timers.arm(child, within_s, give_up)
        return child

    def run_once(self) -> None:
        """Wait for the next thing to happen and do what belongs to it."""
        for descriptor, _ in self._poller.poll(self.timers.next_delay_ms()):
            call = self._calls.get(descriptor)
            if call is not None:
                call()
        self.timers.run_due()

    def take_signals(self) -> None:
        """Call `on_signal` for each signal that has come."""
        try:
            numbers = os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        for number in dict.fromkeys(numbers):
            for _ in range(numbers.count(number) if number in STOPS else 1):
                self._on_signal(number)


def _leave_to_wakeup(_number: int, _frame: object) -> None:
    """The handler that exists so that the wakeup descriptor is written; see signal.set_wakeup_fd."""
