"""Which signals nothing of ours is to be ended by."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.host.process.signals import STOPS, SURVIVED, hold_back

pytestmark = pytest.mark.process


@pytest.mark.slow
def test_every_signal_that_ends_by_default_is_survived_or_tells_of_a_fault() -> None:
    """Asked of the kernel: a child that has the default action is sent each of them."""
    faults = {"SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS", "SIGKILL"}
    pythons_own = {"SIGPIPE", "SIGXFSZ"}
    ending = {number for number in signal.valid_signals() if _ends(number)}
    left = {signal.Signals(number).name for number in ending - SURVIVED}
    assert left == faults | pythons_own
    assert STOPS < SURVIVED
    assert not {number for number in SURVIVED if number not in ending}


def _ends(number: int) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            # Neither a core file in the test's directory, nor what this process has set.
            os.chdir("/proc/self")
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.kill(os.getpid(), number)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return False
    return os.WIFSIGNALED(status)


def test_a_signal_that_is_held_back_waits() -> None:
    pid = os.fork()
    if pid == 0:
        hold_back()
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7 if signal.SIGTERM in signal.sigpending() else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
