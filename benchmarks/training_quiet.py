"""Waiting until nobody else uses the processors, and counting how much others did while something was measured."""

from __future__ import annotations

import os
import time

WINDOW_S = 0.5


def busy_s() -> float:
    """Seconds that all processors together have spent working since the machine started (``/proc/stat``; proc(5))."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = (int(word) for word in file.readline().split()[1:9])
    # Another machine's turn on our processor is as bad as another process's.
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Quiet:
    """Waits for quiet at most `patience_s` seconds in all, at most a fifth of that at a time."""

    def __init__(self, patience_s: float, most: float = 0.15) -> None:
        """`most` is what others may use, in processors."""
        self._left_s, self._each_s, self._most = patience_s, patience_s / 5, most
        self.waited_s = 0.0

    def wait(self) -> float:
        """Wait; answers what others used just before the return, in processors. Nothing of ours may run meanwhile."""
        began = time.monotonic()
        while True:
            before, at = busy_s(), time.monotonic()
            time.sleep(WINDOW_S)
            used = (busy_s() - before) / (time.monotonic() - at)
            waited = time.monotonic() - began
            if used <= self._most or waited >= min(self._each_s, self._left_s):
                self._left_s -= max(0.0, waited - WINDOW_S)
                self.waited_s += waited
                return used


class Others:
    """What others used of the processors between two moments, given what ours used."""

    def __init__(self) -> None:
        """From here."""
        self._busy_s, self._at = busy_s(), time.monotonic()

    def used(self, own_cpu_s: float) -> float:
        """In processors; `own_cpu_s` is the time that our processes took meanwhile."""
        return max(0.0, (busy_s() - self._busy_s - own_cpu_s) / (time.monotonic() - self._at))
