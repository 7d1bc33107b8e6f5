"""Pulls one run into a directory: as many streams as it takes, until what is here is what the source's roster says.

The roster is made by the source behind the last byte of a stream. What it has otherwise than it is here (it was written
meanwhile) is pulled again, against a new one. A link that is cut, a stream that goes silent and one that arrives
damaged are gone on with behind what arrived, as long as each try brings something.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.core.code.manifest import DIRECTORY, DIRECTORY_SUM, FILE, LINK, CodeEntry, Manifest
from holdfast.core.control_characters import clean
from holdfast.core.pull import stream
from holdfast.core.pull.choose import Choice
from holdfast.core.pull.stream import About, Have, Wish
from holdfast.core.run.recorded_results import Change
from holdfast.model import wire
from holdfast.model.errors import CutOff, HoldfastError, PlaceError, StorageError, TooLate, Unreachable, UsageError
from holdfast.model.record import field, record, replace
from holdfast.model.units import format_count
from holdfast.transfer.answers import read_answer
from holdfast.transfer.contact import ENTRY
from holdfast.transport.base import Done

from .arrive import Arrival, Damaged
from .copy import GOES_ON, Copy

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

STALL_S = 30.0
"""A stream that was silent for so long is stuck: the other side says something every few seconds."""
FIRST_S = 120.0
"""So long may the first word take: a box that starts slowly, a disk that sleeps."""
PAUSES_S = (0.2, 1.0, 5.0, 20.0, 60.0)
"""Between tries that bring nothing; after one that brought something, the first."""
MOST_ROUNDS = 3
"""So often a run that has ended is pulled again because somebody writes it still."""
ASK_LIMIT_S = 120.0
LONGEST_MESSAGE = 4096
ENOUGH = 1 << 20
NO_FILE = (LINK, DIRECTORY)


@record
class PullResult:
    """What a pull brought: the source's whole roster, what is said of it, and what of it is here now.

    `received` and `sent` are files and bytes that came, `again` how often it was gone on with; `growing` are files that
    were written while they were copied: the copy has their beginning, or an earlier state. `changed` are results that
    are not what the end recorded, at the source, with how; `kept` are those of which the copy keeps the one that an
    earlier pull brought: it is as the end recorded, and the source has other bytes now, or none.
    `mended` are files here that were not any more what an earlier pull had proven, and came again.
    """

    roster: Manifest
    about: About
    here: tuple[CodeEntry, ...]
    received: int
    sent: int
    again: int = 0
    growing: tuple[str, ...] = ()
    changed: dict[str, Change] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()


def ask_roster(box: Box, run: str, how: str, wish: Wish | None = None) -> tuple[About, bytes]:
    """What a run's directory holds now, as the entry `roster` says it: what is said of it, and the manifest (deflated).

    Raises:
        PlaceError: no answer, or none that can be read.
        HoldfastError: as of the entry.
    """
    words = [ENTRY, "roster", run, how]
    if wish is not None:
        words.append(json.dumps((wish.only, wish.without)))
    limit_s = ASK_LIMIT_S if how == "quick" else 3600.0
    done = box.run(words, limit_s=limit_s, most_bytes=stream.MOST_PACKED + stream.LONGEST_ABOUT)
    line, _, packed = done.out.partition(b"\n")
    answer = read_answer(box.place.name, "roster", Done(done.code, line, done.err, done.cut))
    answer.pop("schema", None)
    try:
        return wire.decode(About, answer), packed
    except wire.WireError as error:
        raise PlaceError(f"{box.place.name} answered something else than a roster: {error}") from error


def take_run(
    box: Box,
    wish: Wish,
    copy: Copy,
    *,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
    count: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    stall_s: float = STALL_S,
    pauses_s: Sequence[float] = PAUSES_S,
) -> PullResult:
    """Have the run in the directory of `copy`, which is held.

    Raises:
        UsageError: the options leave nothing.
        StorageError: the target does not take it; or somebody writes the run on and on.
        PlaceError: the place gave no answer; the same command goes on.
    """
    fetching = _Fetching(box, wish, copy, tell, count, say, stall_s, tuple(pauses_s))
    choice = Choice(wish.only, wish.without)
    for left in reversed(range(MOST_ROUNDS)):
        while (found := fetching.try_once()) is None:
            pass
        roster, about = found
        wanted = [entry for entry in roster.entries if not choice.refuse(entry.path)]
        absent = [entry for entry in wanted if not _is_here(copy, entry)]
        spared = copy.find_good(about)
        others = [entry for entry in absent if entry.path not in spared]
        if not others or about.live:
            break
        if not left:
            raise StorageError(
                f"{box.place.name}:{wish.run} has ended, and is written still: {clean(others[0].path)} and "
                f"{len(others) - 1} more changed while they were pulled, {MOST_ROUNDS} times",
                hint="see what writes there (`holdfast exec`, lsof), then run the same command again",
            )
        what = format_count(len(others), "file was written while it was", "files were written while they were")
        say(f"{what} pulled: once more")
    _require_any(wanted, wish)
    told = {path: how for path, how in about.changed.items() if not choice.refuse(path)}
    stay = {path for path, how in told.items() if how is Change.GONE and copy.is_as_proven(path)}
    told |= {entry.path: Change.GONE for entry in absent if entry.path in spared and entry.kind in NO_FILE}
    _tell_left(copy, {entry.path for entry in roster.entries} | stay, say)
    _tell_replaced(copy, about, fetching.wrong or (), say)
    holding = {os.path.dirname(path) for path in stay}  # a directory may be empty there alone
    here = tuple(entry for entry in wanted if _is_here(copy, entry) and entry.path not in holding)
    partly = [_describe_here(copy, entry.path, entry.kind) for entry in absent if entry.path in copy.placed]
    partly += [_describe_here(copy, path, FILE) for path in sorted(stay)]
    kept = ({entry.path for entry in absent} & spared) | stay
    return PullResult(
        roster,
        about,
        (*here, *partly),
        fetching.received,
        fetching.sent,
        fetching.again,
        growing=tuple(entry.path for entry in others),
        # What is here as it was at the end, byte for byte, has another time there and nothing else.
        changed={path: how for path, how in told.items() if path in kept or path not in spared},
        kept=tuple(sorted(kept)),
        mended=tuple(path for path in fetching.wrong or () if copy.is_as_proven(path)),
    )


@record(frozen=False)
class _Fetching:
    """Streams of one pull. `failures` are those in a row that brought nothing; each has a longer pause behind it.

    `wrong` are files that were not as an earlier pull proved them when this one began.
    """

    box: Box
    wish: Wish
    copy: Copy
    tell: Callable[[int, int], None]
    count: Callable[[int], None]
    say: Callable[[str], None]
    stall_s: float
    pauses_s: tuple[float, ...]
    failures: int = 0
    again: int = 0
    received: int = 0
    sent: int = 0
    wrong: tuple[str, ...] | None = None

    def try_once(self) -> tuple[Manifest, About] | None:
        """One stream, with the roster behind it; None where it did not come to its end, and another one may.

        Raises:
            HoldfastError: none will.
        """
        have = _look(self.copy, self.count)
        if self.wrong is None:
            files = (path for path, digest in self.copy.earlier.proven.items() if digest != DIRECTORY_SUM)
            self.wrong = tuple(path for path in files if not self.copy.is_as_proven(path))
        arrival = Arrival(self.copy, have, self.tell)
        good = tuple(filter(self.copy.is_as_proven, self.copy.earlier.good))
        wish = replace(self.wish, attempt=self.copy.earlier.attempt, good=good)
        try:
            _stream(self.box, stream.build_request(wish, have.items()), arrival, self.stall_s)
        except (Damaged, CutOff, TooLate, Unreachable) as error:
            brought = arrival.files or (arrival.received >= ENOUGH and not isinstance(error, Damaged))
            self.failures = 0 if brought else self.failures + 1
            if self.failures > len(self.pauses_s) or (isinstance(error, Unreachable) and not self.sent):
                raise _give_up(error, self.box.place.name) from error
            self.again += 1
            self.say(f"{error}; going on")
            time.sleep(self.pauses_s[max(0, self.failures - 1)] if self.pauses_s else 0)
            return None
        finally:
            arrival.close()
            self.received += arrival.files
            self.sent += arrival.received
        assert arrival.roster is not None
        assert arrival.about is not None
        return arrival.roster, arrival.about


def _look(copy: Copy, count: Callable[[int], None]) -> dict[str, Have]:
    done = [0]

    def add(size: int) -> None:
        done[0] += size
        count(done[0])

    return copy.look(add)


def _is_here(copy: Copy, entry: CodeEntry) -> bool:
    placed = copy.placed.get(entry.path)
    return placed is not None and placed.sha256 == entry.sha256


def _describe_here(copy: Copy, path: str, kind: str) -> CodeEntry:
    """The entry of a file as the copy has it. Of a result that stays, the run may have a link or a directory there."""
    placed = copy.placed[path]
    kind = FILE if kind in NO_FILE and path in copy.earlier.good else kind
    return CodeEntry(path, kind, placed.sha256, placed.size)


def _tell_left(copy: Copy, there: set[str], say: Callable[[str], None]) -> None:
    """Name what an earlier pull brought that the run has no more: it stays, and no receipt is about it."""
    files = (path for path, placed in copy.placed.items() if placed.sha256 != DIRECTORY_SUM)
    if left := sorted(path for path in files if path not in there):
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        say(f"not in the run any more, and kept here, unproven: {clean(', '.join(left[:3]))}{more}")


def _tell_replaced(copy: Copy, about: About, wrong: Sequence[str], say: Callable[[str], None]) -> None:
    """Name what was here as an attempt that succeeded left it, and is now what a later one made of it."""
    if about.proven != copy.earlier.attempt:
        return
    good = set(copy.earlier.good).intersection(about.rewritten).difference(wrong)
    if gone := sorted(path for path in good if not copy.is_as_proven(path)):
        more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
        say(
            f"replaced here, what attempt {about.proven} had proven, by what a later attempt wrote, which has not "
            f"succeeded: {clean(', '.join(gone[:3]))}{more}"
        )


def _require_any(wanted: list[CodeEntry], wish: Wish) -> None:
    """Nothing of nothing is no success."""
    only = Choice(wish.only, ())
    wanted = [entry for entry in wanted if entry.kind != DIRECTORY]
    if not wanted or (wish.only and not any(only.names(entry.path) for entry in wanted)):
        words = " ".join(f"--only {pattern}" for pattern in wish.only) or "this"
        raise UsageError(
            f"{words} leaves no file of {wish.run}", hint="`holdfast files` lists what a run has; patterns are of paths"
        )


def _give_up(error: Exception, place: str) -> HoldfastError:
    if isinstance(error, HoldfastError):
        return type(error)(str(error), hint=f"{GOES_ON}; {error.hint}", details=error.details)
    return StorageError(f"{place}: what arrives is not what was sent: {error}", hint=f"see the link; {GOES_ON}")


def _stream(box: Box, request: bytes, arrival: Arrival, stall_s: float) -> None:
    """One stream, to its end. A box that is not known yet is met before: that has limits of its own.

    Raises:
        CutOff: it ended before, or was silent for too long.
        Damaged, HoldfastError: as of `Arrival.feed` and `Box.follow`.
    """
    box.prepare(sends=True)
    errors = bytearray()
    silence = _Silence(FIRST_S)

    def feed(data: bytes) -> None:
        silence.begin(stall_s)
        arrival.feed(data)

    def hear(data: bytes) -> None:
        errors.extend(data[: LONGEST_MESSAGE - len(errors)])

    place = box.place.name
    with tempfile.TemporaryFile() as file, _watched(silence) as (wake_fd, stalled):
        file.write(request)
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        code = box.follow(
            (ENTRY, "send"), out=feed, err=hear, stdin_fd=file.fileno(), wake_fd=wake_fd, woken=stalled.is_set
        )
    if not arrival.over:
        said = errors.decode("utf-8", "replace").strip().splitlines() or [f"exit code {code}"]
        what = (
            f"the stream was silent for {silence.limit_s:g} s"
            if stalled.is_set()
            else f"the stream ended early: {said[-1]}"
        )
        raise CutOff(f"{place}: {clean(what)}", hint="see the link", details={"place": place})


class _Silence:
    """How long a stream may be silent now, in seconds, and when that is over."""

    def __init__(self, limit_s: float) -> None:
        self.begin(limit_s)

    def begin(self, limit_s: float) -> None:
        """Something came; or it begins."""
        self.limit_s, self.until = limit_s, time.monotonic() + limit_s


@contextmanager
def _watched(silence: _Silence) -> Iterator[tuple[int, threading.Event]]:
    """A descriptor that becomes readable when the silence lasted too long, and whether it did."""
    wake_fd, write_fd = os.pipe()
    over, stalled = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(min(1.0, silence.limit_s / 4)):
            if time.monotonic() > silence.until:
                stalled.set()
                os.write(write_fd, b"\0")
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield wake_fd, stalled
    finally:
        over.set()
        thread.join()
        os.close(wake_fd)
        os.close(write_fd)
