"""Proves a copy at home: control files are read again, then every file is tried by loading it, in safe ways.

Checkpoints of our own are proven by their commit records and, as everything else, by their formats
(`host.formats.trial.loading`). What this comes to is the receipt's `tried` and `damaged`; nothing here changes a file.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from holdfast.core.code.manifest import DIRECTORY, LINK, CodeEntry
from holdfast.core.control_characters import clean, one_line
from holdfast.core.pull.choose import Choice
from holdfast.host.formats.trial.loading import IMAGES, TEXT, WEIGHTS, try_file
from holdfast.host.formats.trial.tried import Damage, Untested
from holdfast.model import step_names, wire
from holdfast.model.errors import StorageError
from holdfast.model.receipt import DAMAGED, LOADED, READ, UNTESTED, Tried
from holdfast.model.record import record
from holdfast.training.storage import layout, survey

from .copy import GOES_ON, Copy, hash_file

MOST_NAMED = 2000
NO_FILE = (LINK, DIRECTORY)
CONTROL_BYTES = 1 << 16
"""Up to here a file is read again after it was placed: records, not weights."""
LONGEST = 300
AMONG = f"{wire.CHECKPOINTS}/"
"""Where a run's checkpoints are, below its directory."""
SAMPLE = 4096
NO_ARRAY = "there is no tensor and no array in it"


@record
class Trial:
    """How the files of a copy were tried; `checkpoint`, `untried` and `accepted` are as of `Receipt`."""

    tried: tuple[Tried, ...]
    damaged: tuple[Tried, ...]
    checkpoint: str = ""
    untried: Tried | None = None
    accepted: tuple[Tried, ...] = ()


def reread(copy: Copy, entries: Iterable[CodeEntry]) -> None:
    """Every file is as it was placed, and no link leads out by way of another; records are read again from the disk.

    Raises:
        StorageError: one is not, or does.
    """
    for entry in entries:
        where = f"{copy.directory}/{entry.path}"
        if entry.kind == LINK and not f"{os.path.realpath(where)}/".startswith(f"{copy.directory}/"):
            os.unlink(where)
            raise StorageError(
                f"{copy.place} sent the link {clean(entry.path)}, which leads out by another one; it was removed",
                hint=f"see who answers as {copy.place}: holdfast sends no such link",
            )
        placed = copy.prove(entry.path)
        good = placed is not None and placed.sha256 == entry.sha256
        if good and entry.kind not in NO_FILE and entry.size <= CONTROL_BYTES and entry.path.endswith(".json"):
            good = hash_file(where, lambda _: None)[0].hexdigest() == entry.sha256
        if not good:
            raise StorageError(
                f"{clean(where)} is not what arrived",
                hint=f"see who writes there, and the disk; {GOES_ON}",
            )


def try_copy(
    directory: str,
    entries: tuple[CodeEntry, ...],
    *,
    live: bool,
    accept: tuple[str, ...] = (),
    changed: Mapping[str, str] = MappingProxyType({}),
    tell: Callable[[int, int], None] = lambda _done, _total: None,
) -> Trial:
    """Try all files of a copy; `tell` gets the bytes that were looked at, and how many there are.

    `accept` are patterns of damaged files, as `core.pull.choose` reads them, that are taken as they are. `changed` are
    files that are damaged whether they load or not, with why; some of them may not be there at all.
    """
    total, done = sum(entry.size for entry in entries), 0
    rows = _Rows(accept)
    for entry in sorted(entries, key=_is_no_checkpoint):  # what opens a gate is named before there are too many names
        if entry.kind not in NO_FILE:
            aside = _tell_aside(entry.path)
            # A supervisor that was killed leaves a torn line in its records, which every reader of them leaves out.
            torn = live or entry.path.startswith(f"{wire.ATTEMPTS}/")
            how, why = (UNTESTED, aside) if aside else _try(f"{directory}/{entry.path}", live=torn)
            if other := changed.get(entry.path):
                how, why = "", f"{other}; {why}" if not how else other
            rows.take(entry.path, how, why)
        done += entry.size
        tell(done, total)
    there = {entry.path for entry in entries if entry.kind not in NO_FILE}
    for path in sorted(changed.keys() - there):
        rows.take(path, "", changed[path])
    newest = _try_own(directory, entries, rows)
    checkpoints = list(_list_checkpoints(directory, entries, rows))
    newest = newest or rows.find_newest(AMONG if checkpoints else "")
    untried = _find_untried(checkpoints, rows) if checkpoints or newest else _find_text(entries, rows)
    return Trial(
        tuple(rows.list_tried()),
        tuple(rows.damaged[:MOST_NAMED]),
        newest,
        untried,
        tuple(rows.accepted[:MOST_NAMED]),
    )


def _is_no_checkpoint(entry: CodeEntry) -> bool:
    return not entry.path.startswith(AMONG)


def _tell_aside(path: str) -> str:
    """Why a file of a checkpoint is none that anybody resumes from; empty: it is, or is none of a checkpoint."""
    for part in path.split("/")[:-1]:
        if layout.is_building(part):
            return "of a save that was cut off"
        if layout.is_bad(part):
            return "of a checkpoint that had failed its proof and was set aside"
    return ""


def _try(path: str, *, live: bool) -> tuple[str, str]:
    """How it went, and why; `Damage` as no way at all."""
    try:
        checked = try_file(path, live=live)
    except Damage as error:
        return "", one_line(str(error), LONGEST)
    except Untested as error:
        return UNTESTED, one_line(str(error), LONGEST)
    except OSError as error:
        return "", one_line(f"cannot be read: {error.strerror or error}", LONGEST)
    if checked.whole and not checked.array_bytes and _get_kind(path) in WEIGHTS:
        return READ, NO_ARRAY
    return LOADED if checked.whole else READ, one_line(checked.why, LONGEST)


def _get_kind(path: str) -> str:
    return os.path.splitext(path)[1].lower()


class _Rows:
    """What was found, files that were not tried only counted by their ending."""

    def __init__(self, accept: tuple[str, ...]) -> None:
        self.damaged: list[Tried] = []
        self.accepted: list[Tried] = []
        self._accept, self._accepts = accept, Choice(accept, ())
        self._weights: set[str] = set()
        self._tried: list[Tried] = []
        self._more: dict[tuple[str, str, str], int] = {}
        self.checkpoints: dict[str, tuple[str, str]] = {}
        """How each file, or checkpoint of ours, went that lies among the checkpoints, and why."""

    def take(self, path: str, how: str, why: str) -> None:
        if path.startswith(AMONG):
            self.checkpoints[path] = how, why
        shown = one_line(path, LONGEST)
        if how == LOADED and _get_kind(path) in WEIGHTS:
            self._weights.add(path)
        if not how:
            accepted = shown in self._accept or self._accepts.names(path)
            (self.accepted if accepted else self.damaged).append(Tried(shown, READ, why))
        elif how != UNTESTED and len(self._tried) < MOST_NAMED:
            self._tried.append(Tried(shown, how, why))
        else:
            kind = (f"*{os.path.splitext(shown)[1][:20]}" if "." in shown else "*", how, why)
            self._more[kind] = self._more.get(kind, 0) + 1

    def list_tried(self) -> list[Tried]:
        more = sorted(self._more.items(), key=lambda item: -item[1])[:MOST_NAMED]
        rows = [
            Tried(name, how, f"{count} file{'s' if count != 1 else ''}" + (f": {why}" if why else ""))
            for (name, how, why), count in more
        ]
        return [*self._tried, *rows]

    def find_newest(self, below: str) -> str:
        """The last file of weights there that was loaded in full, by name: epochs and steps count upwards."""
        weights = [path for path in self._weights if path.startswith(below)]
        return one_line(max(weights, key=_natural, default=""), LONGEST)


def _natural(name: str) -> list[tuple[int, str]]:
    """For sorting: `step-9` before `step-10`."""
    pieces: list[tuple[int, str]] = []
    digits = ""
    for letter in f"{name} ":
        if letter.isdigit() and letter.isascii():
            digits += letter
            continue
        if digits:
            pieces.append((int(digits[:18]), ""))
            digits = ""
        pieces.append((-1, letter))
    return pieces


@record
class _Checkpoint:
    """A file or directory right below the run's checkpoints: when it was written, and how what it is judged by went."""

    at: tuple[float, list[tuple[int, str]]]
    path: str
    how: str
    why: str


def _list_checkpoints(directory: str, entries: tuple[CodeEntry, ...], rows: _Rows) -> Iterator[_Checkpoint]:
    """Each was tried when its largest file was. Text, tables and images are none."""
    units: dict[str, list[CodeEntry]] = {}
    for entry in _list_among(entries):
        units.setdefault("/".join(entry.path.split("/")[:2]), []).append(entry)
    for unit, files in units.items():
        if (judged := _judge_unit(directory, unit, files, rows.checkpoints)) is not None:
            at = max(os.lstat(f"{directory}/{entry.path}").st_mtime for entry in files), _natural(unit)
            yield _Checkpoint(at, *judged)


def _list_among(entries: tuple[CodeEntry, ...]) -> list[CodeEntry]:
    """Files of the run's checkpoints."""
    return [
        entry
        for entry in entries
        if entry.path.startswith(AMONG)
        and not entry.path.startswith(f"{AMONG}.")
        and entry.kind not in NO_FILE
        and not _tell_aside(entry.path)
    ]


def _find_untried(checkpoints: list[_Checkpoint], rows: _Rows) -> Tried | None:
    """The newest checkpoint, where nobody here can tell whether it loads; None where it was tried, or is damaged.

    Where its damage was accepted it is this one, too: that takes the file as it is, and does not say that it loads.
    """
    newest = max(checkpoints, key=lambda one: one.at, default=None)
    if newest is None:
        return None
    shown = one_line(newest.path, LONGEST)
    if newest.how == LOADED or (not newest.how and shown not in {one.path for one in rows.accepted}):
        return None
    return Tried(shown, UNTESTED if newest.how else DAMAGED, newest.why)


def _find_text(entries: tuple[CodeEntry, ...], rows: _Rows) -> Tried | None:
    """Of checkpoints that are text, tables or images alone, one to be named: it may be a model (as XGBoost's JSON)."""
    paths = [entry.path for entry in _list_among(entries) if rows.checkpoints.get(entry.path, ("", ""))[0]]
    if not paths:
        return None
    return Tried(one_line(max(paths, key=_natural), LONGEST), UNTESTED, "nothing among the checkpoints holds weights")


def _judge_unit(
    directory: str, unit: str, files: list[CodeEntry], results: dict[str, tuple[str, str]]
) -> tuple[str, str, str] | None:
    """The path by which a checkpoint is judged, how it went, and why; None where it is no checkpoint."""
    largest = max(files, key=lambda entry: entry.size).path
    if unit in results and unit != largest:  # one of our own, by its record
        how, why = results[unit]
        return largest if how else unit, how, why
    untold = (UNTESTED, "")
    damaged = (entry.path for entry in files if not results.get(entry.path, untold)[0])
    path = next((path for path in damaged if _is_checkpoint(f"{directory}/{path}", "")), largest)
    how, why = results.get(path, untold)
    return (path, how, why) if _is_checkpoint(f"{directory}/{path}", how) else None


def _is_checkpoint(path: str, how: str) -> bool:
    kind = _get_kind(path)
    if kind in WEIGHTS:
        return True
    if how == LOADED or kind in IMAGES or kind in TEXT:
        return False
    with open(path, "rb") as file:
        sample = file.read(SAMPLE)
    if not sample and not how:
        return True  # of a format that is never empty
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return True
    return b"\0" in sample


def _try_own(directory: str, entries: tuple[CodeEntry, ...], rows: _Rows) -> str:
    """Checkpoints of our own, newest first; the newest that is whole."""
    suffix = f"/{layout.RECORD}"
    found = [entry.path.removesuffix(suffix) for entry in entries if entry.path.endswith(suffix)]
    steps = {path: step_names.parse_step(os.path.basename(path)) for path in found}
    newest, bad = "", {one.path for one in (*rows.damaged, *rows.accepted)}
    for path in sorted(found, key=lambda one: -(steps[one] or 0)):
        if steps[path] is None:
            continue  # set aside, or being built
        verdict = survey.verify_entry(survey.survey_entry(f"{directory}/{path}"))
        if verdict.unreadable:
            rows.take(path, UNTESTED, verdict.problems[0])
        elif verdict.problems:
            rows.take(path, "", f"a checkpoint that cannot be resumed from: {verdict.problems[0]}")
        elif any(one.startswith(f"{path}/") for one in bad):
            continue
        else:
            rows.take(path, LOADED, "a checkpoint of holdfast: every byte is as it was saved")
            newest = newest or path
    return newest
