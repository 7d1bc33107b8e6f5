"""What an earlier pull proved of a copy: the receipt and the roster that stand in it.

By them a later pull knows which files here went bad meanwhile, and which results are as the end of the run left them.
"""

from __future__ import annotations

import os
import re
import stat

from holdfast.core.code.manifest import ROSTER, Manifest
from holdfast.core.digest import sha256_hex
from holdfast.core.pull import stream
from holdfast.core.pull.choose import Choice
from holdfast.core.run.recorded_results import has_proven, is_changed, list_recorded
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.receipt import RECEIPT, Receipt
from holdfast.model.record import record

MOST_BYTES = 16 << 20
"""Of a receipt."""
END = re.compile(rf"{wire.ATTEMPTS}/([1-9][0-9]*)/{re.escape(wire.EXIT)}", re.ASCII)


@record
class Earlier:
    """Hashes by path, as they were `proven`; `good` are results that are as the end of `attempt` recorded them.

    That is the newest whose end proved results; 0: none did.
    """

    attempt: int
    proven: dict[str, str]
    good: tuple[str, ...] = ()


def read_receipt_of(directory: str) -> Receipt:
    """The receipt that stands in a copy.

    Raises:
        OSError, ValueError: there is none, or it cannot be read.
    """
    path = f"{directory}/{RECEIPT}"
    return wire.from_bytes(Receipt, files.read_bytes(path, limit=MOST_BYTES), path)


def read_roster(directory: str, receipt: Receipt) -> Manifest:
    """The roster that stands beside a copy with this receipt.

    Raises:
        OSError, ValueError: it cannot be read, or is another one.
    """
    data = files.read_bytes(f"{directory}/{ROSTER}", limit=stream.MOST_PACKED)
    if sha256_hex(data) != receipt.copied:
        raise ValueError("the roster beside the copy is another one")
    return stream.parse_roster(data)


def read_earlier(directory: str, accept: tuple[str, ...] = ()) -> Earlier:
    """What was proven of a copy by now; nothing where nobody can tell.

    `good` is told by size and time alone, and without what `accept` names: that is wanted as it is at its source.
    """
    try:
        receipt = read_receipt_of(directory)
        proven = {entry.path: entry.sha256 for entry in read_roster(directory, receipt).entries}
    except (OSError, ValueError):
        return Earlier(0, {})
    accepts = Choice(accept, ())
    attempt, end = _find_end(directory, proven)
    good = (path for path in _list_as_recorded(directory, end, proven) if not accepts.names(path))
    return Earlier(attempt, proven, tuple(path for path in good if path not in accept))


def _find_end(directory: str, proven: dict[str, str]) -> tuple[int, dict[str, object]]:
    """The newest attempt in the copy that proved results, and its exit record; 0 where none did, or nobody can tell."""
    for attempt in sorted((int(found[1]) for path in proven if (found := END.fullmatch(path))), reverse=True):
        path = f"{wire.attempt_dir(directory, attempt)}/{wire.EXIT}"
        try:
            data = files.read_bytes(path)
            if sha256_hex(data) != proven[os.path.relpath(path, directory)]:
                break
            end = wire.parse_object(data, path)
        except (OSError, ValueError):
            break
        if has_proven(end):
            return attempt, end
    return 0, {}


def _list_as_recorded(directory: str, end: dict[str, object], proven: dict[str, str]) -> list[str]:
    """Results that have the size and the time that this end recorded."""
    found = []
    for name, facts in list_recorded(end).items():
        if name not in proven:
            continue
        try:
            seen = os.lstat(f"{directory}/{name}")
        except OSError:
            continue
        if stat.S_ISREG(seen.st_mode) and not is_changed(facts, seen.st_size, seen.st_mtime):
            found.append(name)
    return found
