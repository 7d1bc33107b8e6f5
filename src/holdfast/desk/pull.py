"""Pulls runs home: which run and whereto, then files (`transfer.pull`), proof, mark and receipt."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from holdfast.agent.view.find import find_run, require_readable
from holdfast.core.code.manifest import DIRECTORY, ROSTER, RUN_FORMAT, CodeEntry, Manifest, build_manifest
from holdfast.core.control_characters import clean
from holdfast.core.digest import sha256_hex
from holdfast.core.pull import stream
from holdfast.core.pull.choose import Choice
from holdfast.core.pull.stream import UNKNOWN, About, Have, Wish
from holdfast.core.run.recorded_results import CHANGED, Change
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.formats.copy_mark import read_mark
from holdfast.model.errors import PlaceError, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.place import LOCAL
from holdfast.model.receipt import NOT_WANTED, LeftOut, Receipt
from holdfast.model.record import record
from holdfast.model.units import format_bytes, format_count
from holdfast.transfer.pull.copy import Copy, explain
from holdfast.transfer.pull.earlier import read_earlier
from holdfast.transfer.pull.pull import PullResult, ask_roster, take_run
from holdfast.transfer.pull.trial import Trial, reread, try_copy

from .connect import find_place, open_box
from .fetch import find_run_place
from .receipts import keep_receipt
from .route.router import split_run

STAYS = "the one that is here still is, and stays"
KEPT = f"{STAYS} (--accept puts the other in its place)"
OTHER = "is not what was pulled before, with the size and the time of then"
MOST_MENDED = 1000


@record
class PullSource:
    """A run that is pulled: `word` is how its place is told of it."""

    place: str
    run_id: str
    word: str


@record
class Pulled:
    """What a pull came to. `received` files and `sent` bytes came this time, `again` times after a lost link.

    `files` and `bytes` are those of the copy. `mended` are files here that were not any more what an earlier pull had
    proven, and came again.
    """

    place: str
    run_id: str
    directory: str
    files: int
    bytes: int
    received: int
    sent: int
    again: int
    receipt: Receipt
    mended: tuple[str, ...] = ()


@record
class PullPlan:
    """What a pull would bring: `lacking` files of `files`, with `sent` bytes. `left_out` is what is never pulled."""

    place: str
    run_id: str
    directory: str
    files: int
    bytes: int
    lacking: int
    sent: int
    live: bool
    left_out: tuple[LeftOut, ...] = ()


@record
class PulledRuns:
    """Several runs, in the order in which they were named."""

    runs: tuple[Pulled, ...]


@record
class PullPlans:
    """What pulls of several runs would bring."""

    runs: tuple[PullPlan, ...]


def find_source(text: str) -> PullSource:
    """The run that ``[PLACE:]RUN`` names.

    Raises:
        UsageError: there is no such place, several have such a run, or it is itself a copy.
        NoSuchRun, NotPermitted: as of `find_run`.
        HoldfastError: as of the place.
    """
    place, name = split_run(text)
    if not name:
        raise UsageError(f"{text!r} names a place and no run", hint=f"holdfast ls --on {place} lists the runs")
    place = place or find_run_place(name)
    if place == LOCAL:
        found = find_run(name)
        require_readable(found)
        mark = read_mark(found.run_dir)
        if mark is not None:
            whose = f"{mark.place}:{mark.run_id}"
            hint = f"holdfast pull {whose}; whether the copy is whole: holdfast pull {found.run_dir} --verify"
            raise UsageError(f"{found.run_dir} is itself a copy of {whose}", hint=hint)
        return PullSource(LOCAL, found.run_id, found.run_dir)
    if is_run_id(name):
        return PullSource(place, name, name)
    about, _ = ask_roster(open_box(find_place(place)), name, "quick")
    if not is_run_id(about.run_id):
        raise PlaceError(f"{place} answered something else than a run: {clean(about.run_id)}")
    return PullSource(place, about.run_id, about.run_id)


def plan_pull(source: PullSource, directory: str, wish: Wish, *, accept: tuple[str, ...] = ()) -> PullPlan:
    """What would be pulled; nothing is changed, and no large file is read at the source.

    Raises:
        UsageError: something else is in the directory.
        HoldfastError: as of the place.
    """
    copy = Copy(directory, source.place, source.run_id, os.environ)
    copy.check()
    about, packed = ask_roster(open_box(find_place(source.place)), source.word, "quick", wish)
    roster = _unpack(packed, source.place)
    choice = Choice(wish.only, wish.without)
    copy.earlier = read_earlier(copy.directory, accept)
    here = copy.look() if os.path.isdir(copy.directory) else {}
    spared = copy.find_good(about)
    wanted = [entry for entry in roster.entries if not choice.refuse(entry.path)]
    lacking = [entry for entry in wanted if entry.path not in spared and _is_lacking(entry, here.get(entry.path))]
    return PullPlan(
        source.place,
        source.run_id,
        copy.directory,
        _count_files(wanted),
        sum(entry.size for entry in wanted),
        _count_files(lacking),
        sum(entry.size for entry in lacking),
        about.live,
        _list_left_out(about, ()),
    )


def _is_lacking(entry: CodeEntry, have: Have | None) -> bool:
    return have is None or have.size != entry.size or entry.sha256 not in (UNKNOWN, have.sha256)


def pull(
    source: PullSource,
    directory: str,
    wish: Wish,
    *,
    accept: tuple[str, ...] = (),
    tell: Callable[[int, int], None] = lambda _done, _total: None,
    count: Callable[[int], None] = lambda _: None,
    tries: Callable[[int, int], None] = lambda _done, _total: None,
    say: Callable[[str], None] = lambda _: None,
) -> Pulled:
    """Have the run in the directory, whole, proven and tried, with its receipt there and at the desk.

    `accept` are patterns of damaged files that are taken as they are. `tell` gets the bytes of the run that are here
    and how many there are, `count` those of what was here already as they are hashed, `tries` those that were tried;
    `say` words for people.

    Raises:
        UsageError: something else is in the directory, or the options leave nothing.
        StorageError: it cannot be written there, or is written at its source still. What arrived is kept.
        PlaceError: the place gave no answer; the same command goes on.
    """
    copy = Copy(directory, source.place, source.run_id, os.environ)
    copy.check()
    box = open_box(find_place(source.place))
    with copy.held():
        copy.earlier = read_earlier(copy.directory, accept)
        taken = take_run(box, wish, copy, tell=tell, count=count, say=say)
        receipt = _settle(source, copy, taken, wish, accept=accept, tries=tries)
    return Pulled(
        source.place,
        source.run_id,
        copy.directory,
        _count_files(taken.here),
        sum(entry.size for entry in taken.here),
        taken.received,
        taken.sent,
        taken.again,
        receipt,
        mended=tuple(clean(path) for path in taken.mended[:MOST_MENDED]),
    )


def _count_files(entries: Iterable[CodeEntry]) -> int:
    return sum(entry.kind != DIRECTORY for entry in entries)


def _settle(
    source: PullSource,
    copy: Copy,
    taken: PullResult,
    wish: Wish,
    *,
    accept: tuple[str, ...],
    tries: Callable[[int, int], None],
) -> Receipt:
    """Prove what is here, try it, and say so in mark and receipt."""
    about = taken.about
    try:
        copy.sync()  # what `reread` remembers of a file is of one that is on the disk
        reread(copy, taken.here)
        of = f" (attempt {about.proven})" if about.proven != about.attempt else ""
        changed = {path: f"{how.words}{of}" for path, how in taken.changed.items()}
        changed |= {path: _say_kept(taken.changed.get(path), of) for path in taken.kept}
        trial = try_copy(copy.directory, taken.here, live=about.live, accept=accept, changed=changed, tell=tries)
        beside = build_manifest(taken.here, RUN_FORMAT)
        files.commit(f"{copy.directory}/{ROSTER}", beside.data, mode=0o644)
        copy.mark(live=about.live)
    except OSError as error:
        raise explain(error, copy.directory) from error
    receipt = _write_receipt(source, copy, taken, beside, trial)
    keep_receipt(receipt, partly=bool(wish.only or wish.without))
    copy.clear()
    return receipt


def _say_kept(how: Change | None, of: str) -> str:
    """Why the copy keeps the result that it has. Its bytes are others there, whatever the time alone would say."""
    if how is Change.GONE:
        return f"{how.words}{of}; {STAYS}"
    return f"{OTHER if how is None else CHANGED}{of}; {KEPT}"


def _write_receipt(source: PullSource, copy: Copy, taken: PullResult, beside: Manifest, trial: Trial) -> Receipt:
    about = taken.about
    return Receipt(
        place=source.place,
        run_id=source.run_id,
        attempt=about.attempt,
        roster=about.sha256,
        files=about.files,
        bytes=about.bytes,
        made_at=about.made_at,
        verified_at=utc_now(),
        directory=copy.directory,
        live=about.live,
        checkpoint=trial.checkpoint,
        untried=trial.untried,
        copied=sha256_hex(beside.data),
        tried=trial.tried,
        damaged=trial.damaged,
        accepted=trial.accepted,
        left_out=_list_left_out(about, taken.growing),
    )


def _list_left_out(about: About, growing: tuple[str, ...]) -> tuple[LeftOut, ...]:
    """What is not in the copy, and why: entries, what options left out, files that were being written."""
    found = [LeftOut(clean(one.path), clean(one.why)) for one in about.left_out]
    found += [LeftOut("...", f"{clean(why)}: {count} more") for why, count in about.left_out_more.items()]
    for option, (count, size) in about.not_wanted.items():
        found.append(LeftOut(clean(option), f"{format_count(count, 'file')}, {format_bytes(size)}, {NOT_WANTED}"))
    words = "was written while it was pulled: the copy has what was there before"
    return (*found, *(LeftOut(clean(path), words) for path in growing[:1000]))


def _unpack(packed: bytes, place: str) -> Manifest:
    try:
        return stream.parse_roster(stream.unpack_manifest(packed))
    except ValueError as error:
        raise PlaceError(f"{place} answered something else than a roster: {error}") from error
