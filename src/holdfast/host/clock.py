"""The clocks: wall time, monotonic time, time since boot, each for its own question.

What time is it for people: `utc_now`. How long since: `monotonic_s`. Which order, across processes, also through
suspend: `boottime_ns`. Is it still the same kernel: `boot_id`. A wall clock that jumps moves only what people read.
"""

from __future__ import annotations

import os
import time

_FIRST_S, _LAST_S = -30610224000.0, 253402300799.999
"""The years 1000 and 9999, their first and their last moment."""


def utc_now() -> str:
    """Now as ISO 8601 UTC with milliseconds: ``2026-11-20T10:45:01.123Z``."""
    return format_utc(time.time())


def format_utc(epoch_s: float) -> str:
    """An epoch time in seconds as ISO 8601 UTC with milliseconds; what has no year of four digits as the nearest one.

    Anybody can give a file any time: ``touch -d @99999999999999999``.
    """
    whole, milliseconds = divmod(round(min(max(epoch_s, _FIRST_S), _LAST_S) * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{milliseconds:03d}Z"


def parse_utc(text: str) -> float:
    """Epoch seconds of a text from `format_utc`.

    Raises:
        ValueError: it is not such a text.
    """
    year, month, day = int(text[0:4]), int(text[5:7]), int(text[8:10])
    seconds = int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
    fraction = float("0" + text[19:].rstrip("Z"))
    # time.strptime would do, but loads datetime, calendar and locale: a megabyte in a process that mostly sleeps.
    # Days since 1970 of a proleptic Gregorian date; years begin in March so that the leap day comes last.
    shifted, of_year = (year, month - 3) if month > 2 else (year - 1, month + 9)
    leaps = shifted // 4 - shifted // 100 + shifted // 400
    days = shifted * 365 + leaps + (153 * of_year + 2) // 5 + day - 1 - 719468
    whole = days * 86400 + seconds
    if format_utc(whole)[:19] != text[:19] or not 0 <= fraction < 1:
        raise ValueError(f"{text[:40]!r} is no time like 2026-11-20T10:45:01.123Z")
    return whole + fraction


def find_age(text: object, now_s: float | None = None) -> float | None:
    """Seconds from a recorded time to `now_s`, without it to now, never below 0; None where it is no such text."""
    try:
        return (
            max(0.0, (epoch_s() if now_s is None else now_s) - parse_utc(text))
            if isinstance(text, str) and text
            else None
        )
    except ValueError:
        return None


def find_begin(run_id: str, *moments: str | None) -> float | None:
    """Epoch seconds of the first of these moments that is one, else of when the run was made, by its id."""
    made = f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}T{run_id[9:11]}:{run_id[11:13]}:{run_id[13:15]}Z"
    for text in (*moments, made):
        try:
            return parse_utc(text if isinstance(text, str) else "")
        except ValueError:
            continue
    return None


def epoch_s() -> float:
    """Seconds since 1970 by the wall clock."""
    return time.time()


def monotonic_s() -> float:
    """Seconds on a clock that no one can set; meaningful only within one boot."""
    return time.monotonic()


def boottime_ns() -> int:
    """Nanoseconds since boot, suspend included: one order for all processes of a boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_epoch_s() -> float:
    """When this boot began, in epoch seconds by the wall clock as it is set now."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The kernel's id of this boot, empty where it tells none: none is made up, it would equal nothing.

    Source: proc_sys_kernel(5), random/boot_id; new at each boot (tested with UML). ``HOLDFAST_BOOT_ID`` stands in for
    tests of a reboot without one.
    """
    override = os.environ.get("HOLDFAST_BOOT_ID")
    if override is not None:
        return override
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_other_boot(recorded: str) -> bool:
    """Whether what was recorded is provably of another boot: where either id is not known, nothing is."""
    here = boot_id()
    return bool(recorded and here) and recorded != here
