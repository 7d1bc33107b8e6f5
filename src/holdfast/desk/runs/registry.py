"""What was last seen of runs elsewhere: one file for each place, so that a run's id or name is enough to find it.

``$XDG_STATE_HOME/holdfast/places/NAME/runs.tsv`` has a line for each run, ``ID <tab> live|ended <tab> SEEN_AT <tab>
JSON`` (a `Sighting`), and ``reach.json`` beside it when the place answered last, or how often it has not. A cache:
losing it loses nothing that `holdfast reconcile PLACE` does not bring back from the box. Invariants:

- A sighting is keyed by place and id: what one place says is never taken for another's.
- A place that does not answer changes no sighting. A run that is not there any more stays on the list as ``absent``,
  with what was seen of it last, unless this desk has removed it: its disk may be gone. Absent is not ended.
- An older look never replaces a newer one; a time that is later than now counts as old. Both files are replaced whole,
  so a kill leaves the old or the new.
- Bounded: `MOST_ENDED` ended runs of a place, the newest, and `MOST_RUNS` in all.

Finding a run reads these files and nothing else: no network, and no JSON of runs that are not meant.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.desk.places.facts import PROOFS
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import is_name, is_run_id, name_of
from holdfast.model.place import PLACE_NAME
from holdfast.model.record import record, replace
from holdfast.model.sighting import Poll, Reach, Sighting
from holdfast.store.paths import make_state_directory, state_directory

from .pending import list_unanswered, may_arrive

RUNS = "runs.tsv"
REACH = "reach.json"
LOCK = "runs.lock"
MOST_ENDED = 500
MOST_RUNS = 2000
LARGEST_BYTES = 16 << 20
LOCK_TRIES = 50
LOCK_PAUSE_S = 0.01
ABSENT = "absent"
"""The condition of a run that is not there any more; whether it had ended stands beside it."""
BACK_OFF_S = 15.0
LONGEST_BACK_OFF_S = 300.0


@record
class Known:
    """A run that a place is known to have."""

    place: str
    run_id: str
    name: str


class SeenLine(NamedTuple):
    """One line of the file: a run, whether it had ended, when it was seen, and the sighting as JSON."""

    run_id: str
    ended: bool
    seen_at: str
    text: str


@record
class Contact:
    """How a place answered last.

    `last_contact` is when it did (ISO UTC, None: never), `failures` how often in a row it has not since, `failed_at`
    the last time, with the class of the failure (`why`) and the words (`reason`). `unkept` is how many runs it had, by
    its last list, besides those that are kept here.
    """

    last_contact: str | None = None
    failures: int = 0
    failed_at: str | None = None
    why: str = ""
    reason: str = ""
    unkept: int = 0

    def is_due(self, now_s: float) -> bool:
        """Whether it may be asked again without being named: 15 s after the first failure, then 30 s ... 5 minutes."""
        if not self.failures:
            return True
        try:
            age_s = now_s - clock.parse_utc(self.failed_at or "")
        except ValueError:
            return True
        pause_s = min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2 ** min(self.failures - 1, 10))
        # One from the future: the clock was set.
        return not 0 <= age_s < pause_s


def places_directory() -> str:
    """Where everything is that the desk keeps of its places."""
    return f"{state_directory()}/places"


def list_seen_places() -> list[str]:
    """The names of the places of which something is kept, sorted; one with proofs alone was removed."""
    try:
        names = sorted(name for name in os.listdir(places_directory()) if PLACE_NAME.match(name))
    except OSError:
        return []
    return [name for name in names if not _is_removed(name)]


def _is_removed(place: str) -> bool:
    try:
        found = os.listdir(f"{places_directory()}/{place}")
    except OSError:
        return False
    return not set(found).difference(PROOFS)


def find(text: str) -> list[Known]:
    """The runs elsewhere that `text` may mean, newest first: the id, else all of that name, else all ids it begins."""
    if not is_name(text) and not is_run_id(text):
        return []
    exact: list[Known] = []
    named: list[Known] = []
    begun: list[Known] = []
    for place in list_seen_places():
        for run_id, *_ in read_lines(place, text.encode()):
            if text in run_id:
                kind = exact if run_id == text else named if name_of(run_id) == text else begun
                if kind is not begun or run_id.startswith(text):
                    kind.append(Known(place, run_id, name_of(run_id)))
    if not (exact or named or begun):
        # An order without an answer may be a run.
        pending = [
            Known(place, e.run_id, name_of(e.run_id)) for place in list_seen_places() for e in list_unanswered(place)
        ]
        exact = [known for known in pending if text in (known.run_id, known.name)]
        begun = [known for known in pending if known.run_id.startswith(text)]
    return sorted(exact or named or begun, key=lambda known: known.run_id, reverse=True)


def complete(beginning: str) -> list[tuple[str, str]]:
    """Words ``PLACE:NAME`` and ``PLACE:ID`` that begin so, newest run first, each with a help: for a TAB."""
    words: dict[str, str] = {}
    place_part, colon, _ = beginning.partition(":")
    for place in list_seen_places():
        if place == place_part if colon else place.startswith(beginning):
            for run_id, *_ in sorted(read_lines(place), reverse=True):
                words.setdefault(f"{place}:{name_of(run_id)}", f"newest: {run_id}")
                words.setdefault(f"{place}:{run_id}", "")
    return [(word, about) for word, about in words.items() if word.startswith(beginning)][:50]


def list_unfinished(place: str) -> list[str]:
    """The ids of the runs of a place that had not ended when they were last seen, newest first."""
    return sorted((line.run_id for line in read_lines(place) if not line.ended), reverse=True)


def list_sent(place: str, *, also_being_sent: bool = False) -> list[str]:
    """The ids of orders of a place that may be runs: without an answer, and never seen as a run; newest first.

    With `also_being_sent` those, too, that a command is at just now and has perhaps not sent yet.
    """
    orders = [
        each for each in list_unanswered(place) if each.may_be_there or (also_being_sent and may_arrive(each, place))
    ]
    seen = {line.run_id for line in read_lines(place)} if orders else set()
    return [each.run_id for each in orders if each.run_id not in seen]


def read_lines(place: str, needle: bytes = b"") -> Iterator[SeenLine]:
    """The last sightings of a place, none of them decoded; nothing where `needle` stands nowhere among them."""
    try:
        data = files.read_bytes(f"{places_directory()}/{place}/{RUNS}", limit=LARGEST_BYTES)
    except OSError:
        return
    if needle not in data:
        return
    for line in data.decode("ascii", "replace").split("\n"):
        parts = line.split("\t", 3)
        if len(parts) == 4 and is_run_id(parts[0]):
            yield SeenLine(parts[0], parts[1] == "ended", parts[2], parts[3])


def find_damage(place: str) -> str:
    """Why not all can be read that was kept of a place's runs, in words; empty when all can, or nothing is kept."""
    path = f"{places_directory()}/{place}/{RUNS}"
    try:
        data = files.read_bytes(path, limit=LARGEST_BYTES)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    lines = [line.split("\t", 3) for line in data.decode("ascii", "replace").split("\n") if line]
    damaged = sum(len(parts) != 4 or not is_run_id(parts[0]) or not parts[3].endswith("}") for parts in lines)
    return f"{path}: {damaged} of {len(lines)} lines are damaged" if damaged else ""


def decode_line(place: str, line: SeenLine) -> Sighting | None:
    """The sighting of a line; None when it is damaged, or another's."""
    try:
        sighting = wire.decode(Sighting, json.loads(line.text))
    except (ValueError, RecursionError):
        return None
    return sighting if (sighting.place, sighting.run_id) == (place, line.run_id) else None


def read_sightings(place: str) -> list[Sighting]:
    """The last sightings of a place, newest run first."""
    lines = sorted(read_lines(place), reverse=True)
    return [sighting for line in lines if (sighting := decode_line(place, line)) is not None]


def read_contact(place: str) -> Contact:
    """How a place answered last; nothing is known when that cannot be read."""
    try:
        return wire.from_bytes(Contact, files.read_bytes(f"{places_directory()}/{place}/{REACH}"), REACH)
    except (OSError, wire.WireError):
        return Contact()


def record_poll(poll: Poll) -> None:
    """Keep what a look at a place has shown; of a place that gave no answer only that.

    What cannot be kept is done without: it is a cache. Two commands that look at once wait for each other.
    """
    try:
        directory = make_state_directory(f"places/{poll.place}")
        with _locked(directory):
            before = read_contact(poll.place)
            if poll.unreachable is None:
                kept = _write_lines(directory, _merge(read_lines(poll.place), poll))
                before = replace(before, unkept=count_unkept(poll, kept, before))
            _write_contact(directory, _follow(before, poll))
    except (OSError, HoldfastError):
        return


def record_taken(place: str, run_id: str, condition: str | None = None, exit_code: int | None = None) -> None:
    """Keep that a place has taken a run, so that it is found before anybody has looked.

    `condition` is how far it was (None: not known; what was seen of it stands), `exit_code` how it ended, if it has.
    """
    if condition is None and any(line.run_id == run_id for line in read_lines(place)):
        return
    at, ended = clock.utc_now(), exit_code is not None
    seen = Sighting(place, run_id, at, "desk", Reach.HERE, condition or "created", ended=ended, exit_code=exit_code)
    record_poll(Poll(place, at, {run_id: seen}))


def forget(place: str, run_ids: Collection[str]) -> None:
    """Drop runs that this desk has removed; what cannot be dropped is seen to be absent at the next look."""
    if not run_ids:
        return
    try:
        directory = make_state_directory(f"places/{place}")
        with _locked(directory):
            _write_lines(directory, [line for line in read_lines(place) if line.run_id not in run_ids])
    except (OSError, HoldfastError):
        return


def rebuild(poll: Poll) -> None:
    """Make anew what is known of a place from a look at all of it; what is not there any more stays as absent.

    Raises:
        OSError: it cannot be written.
    """
    directory = make_state_directory(f"places/{poll.place}")
    with _locked(directory):
        lines = [line for line in read_lines(poll.place) if line.run_id not in poll.sightings]
        whole = [line for line in lines if decode_line(poll.place, line) is not None]
        kept = _write_lines(directory, _merge(whole, poll))
        _write_contact(directory, _follow(Contact(unkept=count_unkept(poll, kept, Contact())), poll))
        for name in os.listdir(directory):
            if files.is_temporary(name) and name.startswith((f".{RUNS}.", f".{REACH}.")):
                files.remove_quietly(f"{directory}/{name}")


def count_unkept(poll: Poll | None, lines: Iterable[SeenLine], before: Contact) -> int:
    """How many runs a place has, by its answer, that are not among `lines`; as `before` where it does not say."""
    if poll is None or poll.known is None:
        return before.unkept
    return max(0, poll.known - sum(line.run_id in poll.sightings or _is_counted(line, poll) for line in lines))


def _is_counted(line: SeenLine, poll: Poll) -> bool:
    """Whether a run that the answer does not show is one that it counts: it was there, below a root that is there."""
    if line.text and not poll.missing_roots and f'"{ABSENT}"' not in line.text:
        return True
    sighting = decode_line(poll.place, line)
    return sighting is not None and sighting.condition != ABSENT and _root_of(sighting) not in poll.missing_roots


def _merge(known: Iterable[SeenLine], poll: Poll) -> list[SeenLine]:
    """The sightings of a place after a look at it."""
    merged = {line.run_id: line for line in known}
    for run_id, sighting in poll.sightings.items():
        if run_id not in merged or not _is_newer(merged[run_id].seen_at, sighting.seen_at):
            merged[run_id] = _encode(sighting)
    for run_id in [each for each in merged if each not in poll.sightings] if poll.complete else poll.absent:
        line = merged.get(run_id)
        before = None if line is None or _is_newer(line.seen_at, poll.at) else decode_line(poll.place, line)
        if before is None:
            continue
        if (root := _root_of(before)) in poll.missing_roots:
            merged[run_id] = _encode(replace(before, reach=Reach.UNREACHABLE, reason=f"{root} cannot be read there"))
        elif before.condition != ABSENT:
            reason = f"it was {before.condition} at {before.seen_at}, and is not there any more"
            gone = replace(before, condition=ABSENT, seen_at=poll.at, reason=reason, last_there=before.seen_at)
            merged[run_id] = _encode(gone)
    return list(merged.values())


def _is_newer(seen_at: str, at: str) -> bool:
    """Whether a look of `seen_at` is newer than one of `at`; one from the future is not: the clock was set."""
    return at < seen_at <= clock.utc_now()


def _root_of(sighting: Sighting) -> object:
    return None if sighting.row is None else sighting.row.get("root")


def _follow(before: Contact, poll: Poll) -> Contact:
    if poll.unreachable is None:
        last = before.last_contact
        at = last if last is not None and _is_newer(last, poll.at) else poll.at
        return Contact(last_contact=at, unkept=before.unkept)
    return replace(
        before, failures=before.failures + 1, failed_at=poll.at, why=poll.why, reason=poll.unreachable[:1000]
    )


def _encode(sighting: Sighting) -> SeenLine:
    return SeenLine(sighting.run_id, sighting.ended, sighting.seen_at, json.dumps(wire.encode(sighting)))


def _write_lines(directory: str, lines: Iterable[SeenLine]) -> list[SeenLine]:
    """Write those that there is room for; these."""
    newest = sorted(lines, reverse=True)
    live = [line for line in newest if not line.ended]
    ended = [line for line in newest if line.ended][:MOST_ENDED]
    kept = (live + ended)[:MOST_RUNS]
    text = "".join(
        f"{line.run_id}\t{'ended' if line.ended else 'live'}\t{line.seen_at}\t{line.text}\n" for line in kept
    )
    _replace_file(f"{directory}/{RUNS}", text.encode())
    return kept


def _write_contact(directory: str, contact: Contact) -> None:
    _replace_file(f"{directory}/{REACH}", wire.to_bytes(contact))


def _replace_file(path: str, data: bytes) -> None:
    """After a power cut the old content may be back, which was true at its time."""
    files.commit(path, data, durable=False)


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Nobody else of this account writes here meanwhile; a process that was stopped with it is not waited for.

    Raises:
        OSError: it was not to be had.
    """
    descriptor = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for left in range(LOCK_TRIES, -1, -1):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    raise
                time.sleep(LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)
