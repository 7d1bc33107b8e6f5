"""PyTorch Flight Recorder dumps: which rank did not take part in which collective, and where in the user's code.

A dump is a pickle, and a pickle can run code. It is read by an unpickler that refuses every class and function, in a
disposable child with bounds on time, memory and size; what comes out is plain data, of which only known fields of known
types are taken. Nothing of torch is imported.

The rank that *reports* a time-out is usually a victim. The cause is the rank that is missing from the first collective
that not everybody entered, or the one whose operation or sizes differ there. Source of the fields: the version "2.10"
of the recorder in torch 2.13 (torch/csrc/distributed/c10d/FlightRecorder.hpp), read from real dumps.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import resource
import stat
from collections import Counter
from typing import Any

from holdfast.diagnosis.evidence import Reading
from holdfast.host.files import files
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.pattern import compile_later
from holdfast.model.record import record

LARGEST_BYTES = 64 * 1024**2
MOST_FILES = 1024
MOST_ENTRIES = 20_000
DEADLINE_S = 5.0
MEMORY_BYTES = 1 << 30
_RANK = compile_later(r"(\d+)$")
_LIBRARY = compile_later(r"/(site|dist)-packages/|/torch/|^<|/importlib/|/runpy\.py$")
_EQUAL_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce", "_allgather_base", "_reduce_scatter_base", "barrier")
"""Operations whose tensors must have the same size on every rank; gather, scatter and all-to-all may differ."""


class RefusedPickle(pickle.UnpicklingError):
    """The file asks for a class or a function: no Flight Recorder dump does."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:  # noqa: ANN401 - never returns
        raise RefusedPickle(f"it asks for {module_name}.{global_name}, which no dump of the recorder does")


@record
class CollectiveEntry:
    """One recorded collective of one rank. `line` is where the user's code called it."""

    group: str
    sequence: int
    operation: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    state: str = ""
    line: str = ""


@record
class RankDump:
    """The dump of one rank. `groups` are the members of each process group, as far as it says so."""

    rank: int
    entries: tuple[CollectiveEntry, ...]
    groups: dict[str, tuple[int, ...]]
    path: str = ""


_VERBS = {
    "missing": "never entered",
    "different": "entered differently",
    "no_dump": "left no dump, while all others agree up to",
}


@record
class FlightFinding:
    """The first collective of one process group that not all ranks entered in the same way.

    `oddity` is ``missing``, ``different``, or ``no_dump`` (all dumps agree, but some ranks left none, as a killed rank
    does: a hint, no proof); `odd` the ranks that are the cause, `others` those that wait; `line` where
    the others called it; `odd_last` what the first odd rank did last, in words.
    """

    group: str
    sequence: int
    operation: str
    oddity: str
    odd: tuple[int, ...]
    others: tuple[int, ...]
    line: str = ""
    odd_last: str = ""

    def describe(self) -> str:
        """For people: who is odd, at which operation, where."""
        ranks = ", ".join(map(str, self.odd))
        noun = "rank" if len(self.odd) == 1 else "ranks"
        verb = _VERBS.get(self.oddity, "is odd at")
        where = f" (called at {self.line})" if self.line else ""
        last = f"; it last did {self.odd_last}" if self.odd_last else ""
        return (
            f"{noun} {ranks} {verb} collective {self.sequence} ({self.operation}) of group {self.group!r}{where}{last}"
        )


# -------------------------------------------------------------------------------------------------------------- reading


def load_plain(data: bytes) -> object:
    """The plain data in a pickle.

    Raises:
        RefusedPickle: it asks for a class or function.
        pickle.UnpicklingError: it is no whole pickle.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        # The unpickler raises nearly anything for garbage (IndexError, ValueError, UnicodeDecodeError, ...).
        raise pickle.UnpicklingError(f"it is damaged: {type(error).__name__}") from error


def read_dump(path: str) -> RankDump:
    """One dump; blocks where its mount does not answer.

    Raises:
        OSError: it cannot be read, or is larger than a dump can be.
        pickle.UnpicklingError: as `load_plain`.
        ValueError: it is a pickle of something else.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError("it is no regular file")
    value = load_plain(files.read_bytes(path, limit=LARGEST_BYTES))
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise ValueError("it has no list of entries")  # noqa: TRY004 - the file is at fault, not the caller
    name = _RANK.search(os.path.basename(path))
    if name is None:
        raise ValueError("its name does not end in a rank")
    entries = [entry for raw in value["entries"][-MOST_ENTRIES:] if (entry := _parse_entry(raw)) is not None]
    return RankDump(int(name[1]), tuple(entries), _parse_groups(value.get("pg_config")), path)


def _parse_entry(raw: object) -> CollectiveEntry | None:
    if not isinstance(raw, dict) or raw.get("is_p2p") is True:
        return None
    sequence, group = raw.get("collective_seq_id"), raw.get("process_group")
    if not isinstance(sequence, int) or isinstance(sequence, bool):
        return None
    name = group[0] if isinstance(group, tuple) and group else ""
    return CollectiveEntry(
        group=_word(name),
        sequence=sequence,
        operation=_word(raw.get("profiling_name")),
        sizes=_parse_sizes(raw.get("input_sizes")),
        dtypes=tuple(_word(word) for word in _items(raw.get("input_dtypes"))),
        state=_word(raw.get("state")),
        line=_user_line(raw.get("frames")),
    )


def _items(value: object) -> list[Any]:
    return value[:32] if isinstance(value, list) else []


def _word(value: object) -> str:
    text = value[:200] if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _parse_sizes(value: object) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(extent for extent in _items(shape) if isinstance(extent, int)) for shape in _items(value))


def _user_line(frames: object) -> str:
    """The innermost frame outside of libraries: the user's call."""
    first = ""
    for frame in _items(frames):
        if not isinstance(frame, dict):
            continue
        shown = f"{_word(frame.get('filename'))}:{_word(frame.get('line'))} in {_word(frame.get('name'))}"
        first = first or shown
        if not _LIBRARY.search(_word(frame.get("filename"))):
            return shown
    return first


def _parse_groups(value: object) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, facts in list(value.items())[:4096] if isinstance(value, dict) else ():
        ranks = facts.get("ranks") if isinstance(facts, dict) else None
        if isinstance(ranks, str):
            found[_word(name)] = tuple(int(number) for number in re.findall(r"\d{1,7}", ranks[:100_000]))
    return found


def read_findings(paths: tuple[str, ...], *, deadline_s: float = DEADLINE_S) -> Reading[tuple[FlightFinding, ...]]:
    """Read the dumps in a disposable child and analyse them. Without dumps: unread, with that as the reason."""
    if not paths:
        return Reading(unread="there are no Flight Recorder dumps (torch writes them at a time-out)")
    work = Offload(lambda: _work(paths[:MOST_FILES]))
    try:
        answer = work.wait(deadline_s)
    except OffloadFailed as error:
        return Reading(unread=f"the Flight Recorder dumps could not be read: {error}")
    if not answer["read"]:
        return Reading(unread="; ".join(answer["problems"][:5]))
    return Reading(tuple(wire.decode(FlightFinding, finding) for finding in answer["findings"]))


def _work(paths: tuple[str, ...]) -> dict[str, Any]:
    # A pickle of a few bytes can ask for a memo of gigabytes: only this child may run out of memory.
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _own_size() + MEMORY_BYTES
    if soft == resource.RLIM_INFINITY or soft > wanted:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    dumps, problems = [], []
    for path in paths:
        try:
            dumps.append(read_dump(path))
        except (OSError, ValueError, pickle.UnpicklingError, MemoryError, RecursionError) as error:
            problems.append(f"{path}: {error}")
    return {"read": len(dumps), "problems": problems, "findings": wire.encode(find_odd_collectives(tuple(dumps)))}


def _own_size() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


# ------------------------------------------------------------------------------------------------------------ analysing


def find_odd_collectives(dumps: tuple[RankDump, ...]) -> tuple[FlightFinding, ...]:
    """The first odd collective of each process group, in the order of the groups' names. Pure."""
    newest = {dump.rank: dump for dump in dumps}
    groups = sorted({entry.group for dump in dumps for entry in dump.entries})
    found = []
    for group in groups:
        tables = {
            rank: {entry.sequence: entry for entry in dump.entries if entry.group == group}
            for rank, dump in newest.items()
            if rank in _members(group, newest)
        }
        finding = _first_odd(group, tables, _members(group, newest))
        if finding is not None:
            found.append(finding)
    return tuple(found)


def _members(group: str, dumps: dict[int, RankDump]) -> frozenset[int]:
    """Who belongs to a group: as the dumps say; else whoever has an entry of it.

    The default group is named by its number in entries and by an empty name in the configuration (seen on torch 2.13).
    """
    for dump in dumps.values():
        ranks = dump.groups.get(group) or (dump.groups.get("") if group == "0" else None)
        if ranks:
            return frozenset(ranks)
    return frozenset(rank for rank, dump in dumps.items() if any(entry.group == group for entry in dump.entries))


def _first_odd(
    group: str, tables: dict[int, dict[int, CollectiveEntry]], members: frozenset[int]
) -> FlightFinding | None:
    held = {rank: table for rank, table in tables.items() if table}
    if not held or len(members) < 2:
        return None
    # The recorder keeps the newest entries only: below the highest start somebody's table may just have rolled over.
    first = max(min(table) for table in held.values())
    absent = tuple(sorted(members - tables.keys()))
    sequences = sorted({number for table in held.values() for number in table if number >= first})
    last = sequences[-1]
    for sequence in sequences:
        here = {rank: table[sequence] for rank, table in held.items() if sequence in table}
        missing = tuple(sorted(members - here.keys() - set(absent)))
        kind, odd = ("missing", missing) if missing else ("different", _different(here))
        if odd:
            others = tuple(sorted(rank for rank in here if rank not in odd))
            shown = here[others[0]] if others else next(iter(here.values()))
            last_done = _describe_last(tables.get(odd[0], {}), here.get(odd[0]))
            return FlightFinding(group, sequence, shown.operation, kind, odd, others, shown.line, last_done)
    if absent:
        shown = next(table[last] for table in held.values() if last in table)
        return FlightFinding(group, last, shown.operation, "no_dump", absent, tuple(sorted(held)), shown.line)
    return None


def _different(here: dict[int, CollectiveEntry]) -> tuple[int, ...]:
    """The ranks whose operation, types or sizes are not those of most."""

    def sign(entry: CollectiveEntry) -> tuple[object, ...]:
        equal = any(entry.operation.rpartition(":")[2].startswith(name) for name in _EQUAL_SIZES)
        return (entry.operation, entry.dtypes, entry.sizes if equal else ())

    common, count = Counter(sign(entry) for entry in here.values()).most_common(1)[0]
    if count == len(here):
        return ()
    return tuple(sorted(rank for rank, entry in here.items() if sign(entry) != common))


def _describe_last(table: dict[int, CollectiveEntry], here: CollectiveEntry | None) -> str:
    entry = here or (table[max(table)] if table else None)
    if entry is None:
        return ""
    return f"{entry.operation} (collective {entry.sequence})" + (f" at {entry.line}" if entry.line else "")
