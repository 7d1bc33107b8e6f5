"""Clocks, each for its own question.

What time is it for people: `utc_now`. How long since: `monotonic_s`. Which order, across processes, also through
suspend: `boottime_ns`. Is it still the same kernel: `boot_id`. A wall clock that jumps moves only what people read.
"""

from __future__ import annotations

import os
import time


def utc_now() -> str:
    """Now as ISO 8601 UTC with milliseconds: ``2026-11-20T10:45:01.123Z``."""
    return format_utc(time.time())


def format_utc(epoch_s: float) -> str:
    """An epoch time in seconds as ISO 8601 UTC with milliseconds."""
    whole = int(epoch_s // 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((epoch_s - whole) * 1000):03d}Z"


def parse_utc(text: str) -> float:
    """Epoch seconds of a text from `format_utc`.

    Raises:
        ValueError: it is not such a text.
    """
    import calendar

    whole = calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    return whole + float("0" + text[19:].rstrip("Z"))


def epoch_s() -> float:
    """Seconds since 1970 by the wall clock."""
    return time.time()


def monotonic_s() -> float:
    """Seconds on a clock that no one can set; meaningful only within one boot."""
    return time.monotonic()


def boottime_ns() -> int:
    """Nanoseconds since boot, suspend included: one order for all processes of a boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The kernel's id of this boot. Source: proc_sys_kernel(5), random/boot_id; new at each boot (tested with UML).

    ``HOLDFAST_BOOT_ID`` stands in for tests of a reboot without one.
    """
    override = os.environ.get("HOLDFAST_BOOT_ID")
    if override:
        return override
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
