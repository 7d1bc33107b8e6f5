"""What the verbs of ``holdfast checkpoints`` put on the screen, and their JSON objects.

A record comes from a file that anybody may have written: its values are shown as text and never trusted to be short.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast.model.units import format_bytes, format_duration
from holdfast.training.restoring import OWN
from holdfast.training.storage.survey import Kind
from holdfast.training.storage.tree import KIND

from .render import heading, is_terminal, note, pairs, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.training.storage.checkpoints import Verdict
    from holdfast.training.storage.survey import Content, Item, Survey

SHORT_KEYS = 20
SHORT_VALUES = 30
LONGEST_TEXT = 100
LONGEST_LIST = 8
DEEPEST = 50
PROGRESS_EVERY_S = 0.2

WORDS = {
    Kind.COMPLETE: "complete",
    Kind.DAMAGED: "damaged",
    Kind.UNREADABLE: "unreadable",
    Kind.NEWER: "newer format",
    Kind.SET_ASIDE: "set aside",
    Kind.BUILDING: "being written",
    Kind.LEFT_OVER: "left over",
}


def print_survey(found: Survey, metric: str) -> None:
    """The table of ``ls``, and in notes what is wrong with what."""
    now = time.time()
    if found.items:
        table(
            ("checkpoint", "state", "age", "size", "epoch", metric, "ranks", "saved because"),
            [_row(item, metric, now) for item in found.items],
            right=(2, 3, 4, 5, 6),
        )
    else:
        note(f"no checkpoints in {found.directory}")
    for item in found.items:
        if item.problem:
            note(f"{item.name}: {item.problem}")
    if found.foreign:
        shown = ", ".join(found.foreign[:5]) + (", ..." if len(found.foreign) > 5 else "")
        note(f"not a checkpoint of holdfast: {shown}")
    if found.writing:
        note("a run writes here now")


def _row(item: Item, metric: str, now: float) -> tuple[object, ...]:
    record = item.record
    if record is None:
        return item.name, WORDS[item.kind], None, None, None, None, None, None
    age = format_duration(max(now - record.created, 0.0))
    value = _number(record.metrics.get(metric))
    reason = (
        record.reason + (", all steps done" if record.complete else "") + ("" if record.healthy else ", not finite")
    )
    return item.name, WORDS[item.kind], age, format_bytes(record.nbytes), record.epoch, value, record.world, reason


def _number(value: object) -> str | None:
    if value is None:
        return None
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:LONGEST_TEXT]


def encode_item(item: Item) -> dict[str, Any]:
    """One entry for programs; what only a sound record says is None without one."""
    record = item.record
    return {
        "name": item.name,
        "path": item.path,
        "state": item.kind.value,
        "step": item.step if item.step >= 0 else None,
        "problem": item.problem,
        "bytes": None if record is None else record.nbytes,
        "created": None if record is None else record.created,
        "epoch": None if record is None else record.epoch,
        "metrics": None if record is None else record.metrics,
        "world": None if record is None else record.world,
        "reason": None if record is None else record.reason,
        "healthy": None if record is None else record.healthy,
        "complete": None if record is None else record.complete,
        "run_id": None if record is None else record.run_id,
        "attempt": None if record is None else record.attempt,
    }


def encode_survey(found: Survey) -> dict[str, Any]:
    """The JSON object of ``ls``."""
    items = [encode_item(item) for item in found.items]
    return {
        "directory": found.directory,
        "being_written": found.writing,
        "checkpoints": items,
        "foreign": list(found.foreign),
    }


# ------------------------------------------------------------------------------------------------------------ verify


class Progress:
    """How much has been read, on a terminal's error stream; silent elsewhere."""

    def __init__(self, what: str, total: int, *, quiet: bool = False) -> None:
        """`total` is in bytes."""
        self._what, self._total, self._done, self._said = what, total, 0, 0.0
        self._shown = not quiet and is_terminal(sys.stderr)
        self._wrote = False

    def __call__(self, nbytes: int) -> None:
        """Hear of bytes that were read."""
        self._done += nbytes
        now = time.monotonic()
        if self._shown and now - self._said >= PROGRESS_EVERY_S:
            self._said, self._wrote = now, True
            words = f"{self._what}: {format_bytes(self._done)} of {format_bytes(self._total)}"
            sys.stderr.write(f"\r\x1b[K{words}")
            sys.stderr.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._wrote:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def describe_verdict(verdict: Verdict) -> str:
    """``right``, ``wrong`` or ``unreadable``: the last is neither of the first two."""
    return "right" if verdict.ok else "unreadable" if verdict.unreadable else "wrong"


def print_verdicts(verdicts: list[Verdict]) -> None:
    """A line for each checkpoint, and its problems."""
    rows = []
    for verdict in verdicts:
        size = None if verdict.record is None else format_bytes(verdict.record.nbytes)
        files = None if verdict.record is None else len(verdict.record.files)
        rows.append((os.path.basename(verdict.path), describe_verdict(verdict), files, size))
    table(("checkpoint", "proof", "files", "size"), rows, right=(2, 3))
    for verdict in verdicts:
        for problem in verdict.problems:
            note(f"{os.path.basename(verdict.path)}: {problem}")


# -------------------------------------------------------------------------------------------------------------- show


def print_item(item: Item, content: Content, rank: int, *, everything: bool) -> None:
    """The page of ``show``."""
    record = item.record
    assert record is not None
    age = format_duration(max(time.time() - record.created, 0.0))
    metrics = ", ".join(f"{name} {_number(value)}" for name, value in record.metrics.items())
    pairs(
        [
            ("checkpoint", item.path),
            ("step", record.step),
            ("epoch", record.epoch),
            ("age", age),
            ("saved because", record.reason or None),
            ("size", f"{format_bytes(record.nbytes)} in {len(record.files)} files; no byte was compared"),
            ("metrics", metrics[: 10 * LONGEST_TEXT] or None),
            ("finite", "yes" if record.healthy else "no: a logged value was NaN or infinite"),
            ("run", f"{record.run_id}, attempt {record.attempt}" if record.run_id else None),
            ("ranks", f"{record.world}; shown: rank {rank}" if record.world > 1 else record.world),
            ("seed", record.seed),
            ("save took", None if record.save_seconds is None else format_duration(record.save_seconds)),
            ("made with", ", ".join(f"{name} {version}" for name, version in record.versions.items()) or None),
        ]
    )
    print()
    heading("files")
    table(("file", "size"), [(file.path, format_bytes(file.bytes)) for file in record.files], right=(1,))
    names = [*record.tracked, *(name for name in content.documents if name not in record.tracked)]
    for name in names:
        print()
        _print_name(name, item, content, everything=everything)


def _print_name(name: str, item: Item, content: Content, *, everything: bool) -> None:
    assert item.record is not None
    what = item.record.tracked.get(name, {})
    kind = "kept by holdfast" if name == OWN else str(what.get("kind", "not in the record"))
    shared = ", the same on all ranks" if what.get("replicated") else ""
    found = content.arrays.get(name, [])
    total = f"; {len(found)} arrays, {format_bytes(sum(array.nbytes for array in found))}" if found else ""
    heading(f"{_clean(name)} ({_clean(kind)}{shared}{total})")
    limit = len(found) if everything else SHORT_KEYS
    if found:
        rows = [(array.key, array.code, list(array.shape), format_bytes(array.nbytes)) for array in found[:limit]]
        table(("key", "type", "shape", "size"), rows, right=(3,))
    document = content.documents.get(name)
    if name == OWN and isinstance(document, dict):
        document = {key: value for key, value in document.items() if key != "random"}
    values = list(walk_values(document))
    most = len(values) if everything else SHORT_VALUES
    pairs(values[:most])
    hidden = max(len(found) - limit, 0) + max(len(values) - most, 0)
    if hidden:
        note(f"{name}: {hidden} more; --all shows them")


def _clean(text: str) -> str:
    from .render import clean

    return clean(text[:LONGEST_TEXT])


def walk_values(document: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - a JSON value
    """The plain values of a document by their dotted place, long ones in a few words; arrays are left out."""
    if isinstance(document, dict) and document.get(KIND) == "array":
        return
    if depth > DEEPEST:
        yield path, "nested deeper than is shown"
        return
    if isinstance(document, dict) and KIND not in document:
        for key, value in document.items():
            yield from walk_values(value, f"{path}.{key}" if path else str(key), depth + 1)
        return
    if isinstance(document, dict) and document.get(KIND) in ("tuple", "state_dict") and "items" in document:
        yield from walk_values(document["items"], path, depth + 1)
        return
    if isinstance(document, dict) and document.get(KIND) == "dict" and isinstance(document.get("items"), list):
        for pair in document["items"]:
            key, value = pair if isinstance(pair, list) and len(pair) == 2 else ("?", pair)
            yield from walk_values(value, f"{path}.{key}" if path else str(key), depth + 1)
        return
    if isinstance(document, list) and any(isinstance(item, (dict, list)) for item in document):
        for at, value in enumerate(document):
            yield from walk_values(value, f"{path}.{at}" if path else str(at), depth + 1)
        return
    yield path or "value", _describe(document)


def _describe(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        return f"list of {len(value)} values"
    if isinstance(value, dict):
        kind = str(value.get(KIND))
        inner = value.get("value")
        return f"{kind} {inner}"[:LONGEST_TEXT] if isinstance(inner, (int, float, str, list)) else kind[:LONGEST_TEXT]
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"


def encode_content(item: Item, content: Content, rank: int) -> dict[str, Any]:
    """The JSON object of ``show``; random states, which are long and mean nothing to a reader, are left out."""
    record = item.record
    assert record is not None
    documents = dict(content.documents)
    if isinstance(documents.get(OWN), dict):
        documents[OWN] = {key: value for key, value in documents[OWN].items() if key != "random"}
    return {
        **encode_item(item),
        "rank": rank,
        "seed": record.seed,
        "versions": record.versions,
        "save_seconds": record.save_seconds,
        "tracked": record.tracked,
        "files": [{"path": file.path, "bytes": file.bytes} for file in record.files],
        "arrays": {
            name: [{"key": one.key, "type": one.code, "shape": list(one.shape), "bytes": one.nbytes} for one in found]
            for name, found in content.arrays.items()
        },
        "state": documents,
    }
