"""Orders of desks whose jobs were cleared: ``cleared-orders`` beside the journal, a line ``ID SHA256`` for each.

An order is taken once, also when its answer was lost and its jobs were taken out of the list before it was asked for
again. The newest `MOST` are kept; ids begin with the time of the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.files import files
from holdfast.model.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "cleared-orders"
MOST = 5000
LARGEST_BYTES = 4 << 20


def read_cleared(directory: str) -> dict[str, str]:
    """The hashes of these orders, by their id.

    Raises:
        StorageError: the file cannot be read.
    """
    path = f"{directory}/{NAME}"
    try:
        lines = files.read_bytes(path, limit=LARGEST_BYTES).decode("ascii", "replace").splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(
            f"{path}, which says what was taken, cannot be read: {error.strerror}", hint="see its owner and mode"
        ) from error
    pairs = (line.split(" ") for line in lines)
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def note_cleared(directory: str, orders: Mapping[str, str]) -> None:
    """Add orders, before their jobs are taken out of the list.

    Raises:
        StorageError: they cannot be noted.
    """
    if not orders:
        return
    path = f"{directory}/{NAME}"
    kept = sorted({**read_cleared(directory), **orders}.items())[-MOST:]
    try:
        files.commit(path, "".join(f"{order_id} {sha256}\n" for order_id, sha256 in kept).encode())
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; nothing was cleared", hint="make room on that disk") from error
