"""Waiting at several places at once: ``holdfast wait`` runs at each, and is followed until it ends.

The box itself knows best when a run, with all its retries, a job or a group is done, so each place waits with its own
`wait`, which its files wake. A link that ends says nothing of what is waited for: it is made again, later and later,
and the wait goes on. Who is not reached for `GIVE_UP_S` ends the wait with exit code 69, which is no end of the run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.core.control_characters import clean
from holdfast.desk.caller import FOLLOW
from holdfast.desk.route.frames import WAITED, take_pins
from holdfast.model.errors import EXIT_TIMED_OUT, CutOff, HoldfastError, PlaceError, Unreachable
from holdfast.model.place import Place
from holdfast.model.record import record

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
GIVE_UP_S = 3600.0
"""How long a place may be out of reach; a laptop that sleeps does not count it (the clock is monotonic)."""
STEADY_S = 10.0
"""A link that held so long was well: what ends it begins a new time out of reach. Waiting for one is no link."""
LEAVE_S = 2.0
"""What ending the command of a place may take when the wait is left."""
MOST_BYTES = 8 << 20
EXIT_INCOMPLETE = 1
SIGNALLED = 128
"""From here on exit codes may be those of a command that was ended there, by hand or for memory."""


class Followed(Protocol):
    """What of `transfer.box.Box` is used here."""

    def follow(
        self,
        argv: Sequence[str],
        *,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
        wake_fd: int | None = None,
        woken: Callable[[], bool] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Run ``holdfast ARGV`` there for as long as it takes."""
        ...


@record
class Wait:
    """What is waited for at one place: the words of ``holdfast wait`` without ``--timeout``, names behind ``--``."""

    place: Place
    words: tuple[str, ...]


@record
class WaitedPlace:
    """How the wait at one place ended: its exit code, and what it printed. `reason` says why it could not be told."""

    place: str
    exit_code: int
    out: str = ""
    err: str = ""
    reason: str = ""


class PlaceWaits:
    """Waits that go on in threads; use as a context manager, which leaves them alone in the end."""

    def __init__(
        self,
        waits: Sequence[Wait],
        *,
        deadline: float | None,
        open_box: Callable[[Place], Followed],
        tell: Callable[[str], None],
    ) -> None:
        """Begin to wait; `deadline` is on the monotonic clock, `tell` hears of links that ended and came back."""
        self._waits, self._deadline, self._open_box, self._tell = waits, deadline, open_box, tell
        self._ended = threading.Event()
        self._wake, self._release = os.pipe()
        self._found: list[WaitedPlace | Exception | None] = [None] * len(waits)
        # Not `Thread.join`: one that Ctrl-C interrupts has the thread count as ended before Python 3.13 (bpo-45274).
        self._over = [threading.Event() for _ in waits]
        for number, wait in enumerate(waits):
            threading.Thread(target=self._run, args=(number,), name=f"wait {wait.place.name}", daemon=True).start()

    def __enter__(self) -> PlaceWaits:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        """Answer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what is still waiting; the commands at the places lose their connections."""
        self._ended.set()
        os.close(self._release)
        if all(over.wait(LEAVE_S) for over in self._over):
            os.close(self._wake)

    def collect(self) -> list[WaitedPlace]:
        """How each has ended, once all have."""
        for over in self._over:
            over.wait()
        found = []
        for item in self._found:
            if isinstance(item, Exception):
                raise item
            assert item is not None
            found.append(item)
        return found

    def _run(self, number: int) -> None:
        try:
            self._found[number] = self._wait(self._waits[number])
        except Exception as error:  # noqa: BLE001 - a fault of ours: raised again by whoever waits for the answer
            self._found[number] = error
        finally:
            self._over[number].set()

    def _wait(self, wait: Wait) -> WaitedPlace:
        name, pause_s, lost_since = wait.place.name, FIRST_PAUSE_S, None
        pins: dict[str, str] = {}
        while True:
            out, err, began = _Kept(), _Kept(), time.monotonic()
            try:
                code = self._open_box(wait.place).follow(
                    self._build_words(wait, pins),
                    out=out.take,
                    err=err.take,
                    wake_fd=self._wake,
                    woken=self._ended.is_set,
                    env={FOLLOW: ""},
                )
                if code >= SIGNALLED and not out.has_ended:
                    raise CutOff(f"what waited there was ended: {code}")
                return WaitedPlace(name, code, out.text(), err.text())
            except PlaceError as error:
                pins.update(take_pins(out.data())[0])
                now = time.monotonic()
                held = now - began >= STEADY_S and not isinstance(error, Unreachable)
                if lost_since is None or held:
                    lost_since, pause_s = now, FIRST_PAUSE_S
                    self._tell(f"{name} does not answer ({error}); what is waited for goes on, and so does the wait")
                if self._deadline is not None and now >= self._deadline:
                    return WaitedPlace(name, EXIT_TIMED_OUT, reason=str(error))
                if now - lost_since >= GIVE_UP_S:
                    return WaitedPlace(name, PlaceError.exit_code, reason=str(error))
            except HoldfastError as error:
                return WaitedPlace(name, error.exit_code, reason=f"{error}; {error.hint}" if error.hint else str(error))
            left_s = pause_s if self._deadline is None else min(pause_s, self._deadline - time.monotonic())
            if self._ended.wait(max(0.0, left_s)):
                return WaitedPlace(name, PlaceError.exit_code, reason="the wait has ended")
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def _build_words(self, wait: Wait, pins: Mapping[str, str]) -> list[str]:
        """The words of the command there; a name whose run is known is its id, which no newer run can have."""
        flags = wait.words.index("--") + 1
        words = [*wait.words[:flags], *(pins.get(name, name) for name in wait.words[flags:])]
        if self._deadline is None:
            return ["wait", *words]
        left_s = max(1, round(self._deadline - time.monotonic()))
        return ["wait", "--timeout", f"{left_s}s", *words]


def join_codes(codes: Sequence[int]) -> int:
    """The exit code of several waits: of one its own; else 0 when all are, 124 or 69 when one is, else 1."""
    if len(codes) == 1 or not any(codes):
        return codes[0] if codes else 0
    for code in (EXIT_TIMED_OUT, PlaceError.exit_code):
        if code in codes:
            return code
    return EXIT_INCOMPLETE


class _Kept:
    """What a place printed, as far as it is kept."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._left = MOST_BYTES
        self._last = b""

    def take(self, data: bytes) -> None:
        self._chunks.append(data[: self._left])
        self._left -= len(self._chunks[-1])
        self._last = (self._last + data[-len(WAITED) :])[-len(WAITED) :]

    @property
    def has_ended(self) -> bool:
        """Whether the command there came to its own end."""
        return self._last == WAITED

    def data(self) -> bytes:
        return b"".join(self._chunks)

    def text(self) -> str:
        rest = take_pins(self.data())[1].removesuffix(WAITED)
        return clean(rest.decode("utf-8", "replace"), keep_newlines=True)
