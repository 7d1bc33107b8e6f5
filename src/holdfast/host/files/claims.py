"""Claims of jobs in a directory that several boxes share: one box runs a job, and never two (QUEUE-12).

A job has a directory; a claim is a file in it that can be made only once: ``000001.claim``, then ``000002.claim``, and
so on. The highest number holds. Its owner shows every few seconds that it lives (``000001.beat``); whoever has watched
the beat stand still for the expiry, on a monotonic clock of its own, may make the next number. No clock is compared
with another box's. The number is the fencing token: an owner that finds a higher one has lost the job and must end
what it runs, and what an owner of a lower number says about the end (``000001.end``) no longer counts.

Files are made aside and linked, because link(2) is exclusive on every network file system, and its answer may be lost
on the way, so the link count is what tells (open(2), O_EXCL). Everything here may hang with the file system: call it
where that costs nothing, or in a disposable child.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from enum import Enum

from holdfast.core.digest import sha256_hex
from holdfast.host.clock import boot_id, utc_now
from holdfast.model import wire
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.pattern import compile_later
from holdfast.model.record import record

from . import files
from .ownership import describe_weakness

SETTINGS = "claims.json"
EXPIRY_S = 60.0
"""How long a beat must stand still before a claim is taken over, unless the directory was made with another time."""
BEATS = 6
"""So many beats fall into one expiry."""
LONGEST_NAME = 100
LEAST_EXPIRY_S = 1.0
_SAFE = compile_later(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*", re.ASCII)
_NUMBERED = compile_later(r"(\d{6})\.(claim|beat|end)", re.ASCII)


@record
class Claim:
    """One claim: the job's directory, its number, and the secret that tells its owner from all others."""

    directory: str
    number: int
    token: str

    def path(self, kind: str) -> str:
        """The claim's file of a kind: ``claim``, ``beat`` or ``end``."""
        return f"{self.directory}/{self.number:06d}.{kind}"


@record
class ClaimEnd:
    """What the owner of a claim said about the end: an `Outcome` value (``released`` when it never ran), and where."""

    outcome: str
    host: str
    run_dir: str
    at: str
    exit_code: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether anybody may claim the job again: nothing was decided about it."""
        return self.outcome in {"released", "preempted", "lost"}


@record
class ClaimView:
    """One look at a job. `number` 0: never claimed. `beat` changes while the owner lives; `end` is of that number."""

    number: int = 0
    token: str = ""
    host: str = ""
    since: str = ""
    beat: str = ""
    end: ClaimEnd | None = None
    sha256: str = ""

    @property
    def claimable(self) -> bool:
        """Whether the next number may be made without waiting for anybody."""
        return self.number == 0 or (self.end is not None and self.end.is_open)


class Renewal(Enum):
    """What a beat found."""

    OURS = "ours"
    FENCED = "fenced"


@record
class ClaimDirectory:
    """A directory of claims, as it was made: everybody who uses it waits equally long."""

    path: str
    expiry_s: float

    def job_directory(self, job: str) -> str:
        """The directory of a job, named with its group (``GROUP/NAME``): jobs of two groups are never one.

        What makes no file name, or a long one, is named by its hash.
        """
        group, slash, name = job.partition("/")
        # A group's name has no "=", so no two pairs make one word, nor does any make that of another file here.
        readable = f"{group}={name}" if slash and "=" not in group else ""
        if len(readable) <= LONGEST_NAME and _SAFE.fullmatch(readable):
            return f"{self.path}/{readable}"
        return f"{self.path}/_{sha256_hex(job.encode())[:32]}"


def open_directory(path: str, *, expiry_s: float = EXPIRY_S, make: bool = True) -> ClaimDirectory:
    """The directory of claims at `path`; with `make` it is made, with this expiry, when there is none.

    Never with the directories above it, nor by who claims: where the shared disk is not mounted, each box would make
    one of its own, and they would all run every job.

    Raises:
        NotPermitted: it belongs to another account, or others may write in it or replace it: they could take every
            claim.
        StorageError: it is not there, cannot be made or read, or its settings are damaged.
    """
    if not make and not os.path.lexists(f"{path}/{SETTINGS}"):
        raise StorageError(f"claims directory {path} is not there any more", hint="is the shared disk mounted?")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode=0o700)
        facts = os.stat(path)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            seen = f"belongs to uid {facts.st_uid}, mode {facts.st_mode & 0o7777:04o}"
            raise NotPermitted(f"claims directory {path} {seen}", hint="use one of your own that only you can write")
        # Only before there is work: a sweep under way is not ended for what its directory always was.
        if make and (weakness := describe_weakness(path)):
            words = f"claims directory {path} could be replaced by others: {weakness}"
            raise NotPermitted(words, hint="use one in a place that only you, or root, can write")
        settings = f"{path}/{SETTINGS}"
        if not os.path.lexists(settings):
            files.make_once(settings, wire.to_bytes({"expiry_s": max(LEAST_EXPIRY_S, expiry_s)}))
        found = wire.parse_object(files.read_bytes(settings), settings).get("expiry_s")
    except OSError as error:
        hint = "name one on the shared disk; is that mounted?"
        raise StorageError(f"claims directory {path}: {error.strerror}", hint=hint) from error
    except wire.WireError as error:
        raise StorageError(str(error), hint="remove that file when no box uses the directory") from error
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not LEAST_EXPIRY_S <= found < float("inf"):
        raise StorageError(f"{settings}: expiry_s is {found!r}", hint="remove that file when no box uses the directory")
    return ClaimDirectory(path, float(found))


def look_at_claim(directory: str) -> ClaimView:
    """One look at a job's directory.

    Raises:
        OSError: it cannot be read; that says nothing about whether the job is claimed.
        WireError: a file in it is damaged.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return ClaimView()
    numbers = [int(found[1]) for name in names if (found := _NUMBERED.fullmatch(name)) and found[2] == "claim"]
    if not numbers:
        return ClaimView()
    claim = Claim(directory, max(numbers), "")
    owner = wire.parse_object(files.read_bytes(claim.path("claim")), claim.path("claim"))
    return ClaimView(
        number=claim.number,
        token=str(owner.get("token")),
        host=str(owner.get("host")),
        since=str(owner.get("since")),
        beat=_read_beat(claim),
        end=_read_end(claim),
        sha256=str(owner.get("sha256") or ""),
    )


def make_claim(directory: str, after: int, *, facts: Mapping[str, object] | None = None) -> Claim | None:
    """Make the claim with the number after `after`; None when somebody else made it first.

    Raises:
        OSError: it cannot be written.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    claim = Claim(directory, after + 1, os.urandom(16).hex())
    owner = {
        "token": claim.token,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "since": utc_now(),
        **(facts or {}),
    }
    return claim if files.make_once(claim.path("claim"), wire.to_bytes(owner)) else None


def renew_claim(claim: Claim) -> Renewal:
    """Show that the owner lives, unless the job has been taken over.

    Raises:
        OSError, WireError: whether it has cannot be told; the beat stands still.
    """
    seen = look_at_claim(claim.directory)
    if seen.number != claim.number or seen.token != claim.token:
        return Renewal.FENCED
    files.commit(claim.path("beat"), os.urandom(8).hex().encode(), durable=False)
    return Renewal.OURS


def end_claim(claim: Claim, end: ClaimEnd) -> bool:
    """Say how it ended, once; False when the claim is no longer ours, and what we ran does not count.

    Raises:
        OSError, WireError: it cannot be told, or cannot be written.
    """
    seen = look_at_claim(claim.directory)
    if seen.number != claim.number or seen.token != claim.token:
        return False
    files.make_once(claim.path("end"), wire.to_bytes(end))
    return True


class BeatWatch:
    """How long the beats of other boxes have stood still, by a monotonic clock of ours."""

    def __init__(self) -> None:
        """Nothing has been seen yet."""
        self._last: dict[str, tuple[int, str, float]] = {}

    def has_expired(self, job: str, seen: ClaimView, now_s: float, expiry_s: float) -> bool:
        """Whether the same claim has been seen without a new beat for `expiry_s` seconds, from our first look on."""
        number, beat, since_s = self._last.get(job, (-1, "", now_s))
        if (number, beat) != (seen.number, seen.beat):
            self._last[job] = (seen.number, seen.beat, now_s)
            return False
        return now_s - since_s >= expiry_s

    def forget(self, job: str) -> None:
        """It has been claimed or has ended."""
        self._last.pop(job, None)


def _read_beat(claim: Claim) -> str:
    try:
        return files.read_bytes(claim.path("beat"), limit=1024).decode("ascii", "replace")
    except FileNotFoundError:
        return ""


def _read_end(claim: Claim) -> ClaimEnd | None:
    path = claim.path("end")
    try:
        return wire.from_bytes(ClaimEnd, files.read_bytes(path), path)
    except FileNotFoundError:
        return None
