"""What the verbs of ``holdfast checkpoints`` put on the screen.

A record comes from a file that anybody may have written: its values are shown as text and never trusted to be short.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.model.units import format_bytes, format_count, format_duration

from . import clean, heading, is_terminal, note, pairs, table

if TYPE_CHECKING:
    from holdfast.agent.control.checkpoints.files import CheckpointPruning, ExportedCheckpoint
    from holdfast.agent.view.checkpoints.checkpoint_list import (
        CheckpointLine,
        CheckpointList,
        CheckpointPage,
        CheckpointProofs,
    )

OWN = "run"
"""The name under which `holdfast.training` keeps its own state in a checkpoint."""
KIND = "$"
"""The key of a tag in a checkpoint's ``state.json``."""

SHORT_KEYS = 20
SHORT_VALUES = 30
LONGEST_TEXT = 100
LONGEST_LIST = 8
DEEPEST = 50
MOST_NAMED = 8
PROGRESS_EVERY_S = 0.2

WORDS = {
    "complete": "complete",
    "damaged": "damaged",
    "unreadable": "unreadable",
    "newer": "newer format",
    "set_aside": "set aside",
    "building": "being written",
    "left_over": "left over",
}


def print_list(found: CheckpointList, metric: str) -> None:
    """The table of ``ls``, and in notes what is wrong with what."""
    now = time.time()
    if found.checkpoints:
        table(
            ("checkpoint", "state", "age", "size", "epoch", metric, "ranks", "saved because"),
            [_row(item, metric, now) for item in found.checkpoints],
            right=(2, 3, 4, 5, 6),
        )
    else:
        note(f"no checkpoints in {found.directory}")
    for item in found.checkpoints:
        if item.problem:
            note(f"{item.name}: {item.problem}")
    if found.foreign:
        shown = ", ".join(found.foreign[:5]) + (", ..." if len(found.foreign) > 5 else "")
        note(f"not a checkpoint of holdfast: {shown}")
    if found.being_written:
        note("a run writes here now")


def _row(item: CheckpointLine, metric: str, now: float) -> tuple[object, ...]:
    if item.bytes is None or item.created is None:
        return item.name, WORDS[item.state], None, None, None, None, None, None
    age = format_duration(max(now - item.created, 0.0))
    value = _number((item.metrics or {}).get(metric))
    reason = (
        (item.reason or "") + (", all steps done" if item.complete else "") + ("" if item.healthy else ", not finite")
    )
    return item.name, WORDS[item.state], age, format_bytes(item.bytes), item.epoch, value, item.world, reason


def _number(value: object) -> str | None:
    if value is None:
        return None
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:LONGEST_TEXT]


# ------------------------------------------------------------------------------------------------------------ verify


class ProgressMeter:
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


def print_proofs(found: CheckpointProofs, *, everything: bool) -> None:
    """A line for each checkpoint, its problems, and without `everything` what a resume would take."""
    rows = []
    for proof in found.checkpoints:
        size = None if proof.bytes is None else format_bytes(proof.bytes)
        rows.append((os.path.basename(proof.path), proof.proof, proof.files, size))
    table(("checkpoint", "proof", "files", "size"), rows, right=(2, 3))
    for proof in found.checkpoints:
        for problem in proof.problems:
            note(f"{os.path.basename(proof.path)}: {problem}")
    if found.exit_code and not everything:
        right = next((proof for proof in found.checkpoints if proof.proof == "right"), None)
        if right is not None:
            note(f"a resume would take {os.path.basename(right.path)}")
        elif len(found.checkpoints) > 1:
            note("none of them is right")


# -------------------------------------------------------------------------------------------------------------- show


def print_page(page: CheckpointPage, *, everything: bool) -> None:
    """The page of ``show``."""
    item = page.checkpoint
    if item.problem:
        note(f"{item.name}: {item.problem}")
    age = format_duration(max(time.time() - (item.created or 0.0), 0.0))
    metrics = ", ".join(f"{name} {_number(value)}" for name, value in (item.metrics or {}).items())
    files = format_count(len(page.files), "file")
    pairs(
        [
            ("checkpoint", item.path),
            ("step", item.step),
            ("epoch", item.epoch),
            ("age", age),
            ("saved because", item.reason or None),
            ("size", f"{format_bytes(item.bytes or 0)} in {files}; no byte was compared"),
            ("metrics", metrics[: 10 * LONGEST_TEXT] or None),
            ("finite", "yes" if item.healthy else "no: a logged value was NaN or infinite"),
            ("run", f"{item.run_id}, attempt {item.attempt}" if item.run_id else None),
            ("ranks", f"{item.world}; shown: rank {page.rank}" if (item.world or 1) > 1 else item.world),
            ("seed", page.seed),
            ("save took", None if page.save_seconds is None else format_duration(page.save_seconds)),
            ("made with", ", ".join(f"{name} {version}" for name, version in page.versions.items()) or None),
        ]
    )
    print()
    heading("files")
    table(("file", "size"), [(file.path, format_bytes(file.bytes)) for file in page.files], right=(1,))
    for name in [*page.tracked, *(name for name in page.state if name not in page.tracked)]:
        print()
        _print_name(name, page, everything=everything)


def _print_name(name: str, page: CheckpointPage, *, everything: bool) -> None:
    what = page.tracked.get(name, {})
    kind = "kept by holdfast" if name == OWN else str(what.get("kind", "not in the record"))
    shared = ", the same on all ranks" if what.get("replicated") else ""
    found = page.arrays.get(name, ())
    size = format_bytes(sum(array.bytes for array in found))
    total = f"; {format_count(len(found), 'array')}, {size}" if found else ""
    heading(f"{_clean(name)} ({_clean(kind)}{shared}{total})")
    limit = len(found) if everything else SHORT_KEYS
    if found:
        rows = [(array.key, array.type, list(array.shape), format_bytes(array.bytes)) for array in found[:limit]]
        table(("key", "type", "shape", "size"), rows, right=(3,))
    values = list(walk_values(page.state.get(name)))
    most = len(values) if everything else SHORT_VALUES
    pairs(values[:most])
    hidden = max(len(found) - limit, 0) + max(len(values) - most, 0)
    if hidden:
        note(f"{name}: {hidden} more; --all shows them")


def _clean(text: str) -> str:
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
        return f"list of {format_count(len(value), 'value')}"
    if isinstance(value, dict):
        kind = str(value.get(KIND))
        inner = value.get("value")
        return f"{kind} {inner}"[:LONGEST_TEXT] if isinstance(inner, (int, float, str, list)) else kind[:LONGEST_TEXT]
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"


# ----------------------------------------------------------------------------------------------------- prune, export


def print_pruning(found: CheckpointPruning, *, planned: bool) -> None:
    """What would go (`planned`), or went."""
    if found.victims:
        rows = [
            (item.name, WORDS[item.state], None if item.bytes is None else format_bytes(item.bytes))
            for item in found.victims
        ]
        table(("checkpoint", "state", "size"), rows, right=(2,))
    for proof in found.wrong:
        note(f"{os.path.basename(proof.path)} does not count as kept: {proof.problems[0]}")
    for words in found.failed:
        note(words)
    kept = ", ".join(map(os.path.basename, found.kept)) or "nothing that is complete"
    sound = [item for item in found.victims if item.state == "complete"]
    if planned:
        note(f"would remove {len(found.victims)}, {format_bytes(found.bytes)}; stays: {kept}")
        if sound and len(sound) < len(found.victims):
            names = ", ".join(item.name for item in sound[:MOST_NAMED]) + (", ..." if len(sound) > MOST_NAMED else "")
            note(f"sound ones are among them, which --keep-last or --keep-best would keep: {names}")
        if found.victims:
            note("--yes proves what stays, and then removes them")
        return
    freed = sum(item.bytes or 0 for item in found.victims if item.path in found.removed)
    note(f"removed {len(found.removed)}, {format_bytes(freed)}; stays: {kept}")


def print_exported(made: ExportedCheckpoint) -> None:
    """The file's path, and in a note what is in it."""
    print(made.path)
    extent = f"({format_count(made.arrays, 'array')}), {format_bytes(made.bytes)}, {made.format}"
    note(f"step {made.step}: {', '.join(made.names)} {extent}")
