"""What an earlier pull proved of a copy: the receipt and the roster that stand in it.

By them a later pull knows which files here went bad meanwhile, and which results are as the end of the run left them.
"""

from __future__ import annotations

import os

from holdfast.core.code.manifest import ROSTER, Manifest
from holdfast.core.digest import sha256_hex
from holdfast.core.pull import stream
from holdfast.core.pull.choose import Choice
from holdfast.core.run.recorded_results import is_changed, list_recorded
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.receipt import RECEIPT, Receipt
from holdfast.model.record import record
from holdfast.model.run import Outcome
from holdfast.model.verdict import FailureClass

MOST_BYTES = 16 << 20
"""Of a receipt."""


@record
class Earlier:
    """Hashes by path, as they were `proven`; `good` are results that are as the end of `attempt` recorded them."""

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
    if receipt.live:
        return Earlier(receipt.attempt, proven)
    accepts = Choice(accept, ())
    good = (path for path in _list_as_recorded(directory, receipt.attempt, proven) if not accepts.names(path))
    return Earlier(receipt.attempt, proven, tuple(path for path in good if path not in accept))


def _list_as_recorded(directory: str, attempt: int, proven: dict[str, str]) -> list[str]:
    """Results of a run that succeeded that have the size and the time that its end recorded."""
    path = wire.attempt_dir(directory, attempt) + f"/{wire.EXIT}"
    try:
        data = files.read_bytes(path)
        if sha256_hex(data) != proven.get(os.path.relpath(path, directory)):
            return []
        told = wire.parse_object(data, path)
    except (OSError, ValueError):
        return []
    # What failed by its copy alone succeeded before, and was proven.
    if told.get("outcome") != Outcome.SUCCEEDED.value and told.get("failure_class") != FailureClass.SYNC_FAILED.value:
        return []
    found = []
    for name, facts in list_recorded(told).items():
        try:
            seen = os.lstat(f"{directory}/{name}")
        except OSError:
            continue
        if name in proven and not is_changed(facts, seen.st_size, seen.st_mtime):
            found.append(name)
    return found
