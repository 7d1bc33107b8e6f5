"""Receipts of pulled runs, as the desk keeps them (``places/PLACE/receipts/RUN.json``), and whether one still holds."""

from __future__ import annotations

import os

from holdfast.agent.view.find import find_run
from holdfast.core.code.manifest import DIRECTORY, LINK
from holdfast.core.control_characters import clean
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.place import LOCAL
from holdfast.model.receipt import GRAVE, RECEIPT, Receipt
from holdfast.store.paths import make_state_directory
from holdfast.transfer.pull.copy import Copy, hash_file
from holdfast.transfer.pull.earlier import MOST_BYTES, read_receipt_of, read_roster
from holdfast.transfer.pull.pull import ask_roster

from .connect import find_place, open_box
from .places.facts import place_directory

CONTROL_BYTES = 1 << 20
"""Up to here a file is read again at each look; what is larger where size, times or inode are others."""


def read_receipt(place: str, run_id: str) -> Receipt | None:
    """The receipt of a run, as the desk keeps it; None where there is none.

    Raises:
        StorageError: it is there and cannot be read.
    """
    path = f"{place_directory(place)}/receipts/{run_id}.json"
    try:
        found = wire.from_bytes(Receipt, files.read_bytes(path, limit=MOST_BYTES), path)
    except FileNotFoundError:
        return None
    except (OSError, wire.WireError) as error:
        raise StorageError(f"{path} cannot be read: {error}", hint=f"holdfast pull {place}:{run_id}") from error
    if (found.place, found.run_id) != (place, run_id):
        raise StorageError(
            f"{path} is the receipt of {clean(found.place)}:{clean(found.run_id)}",
            hint=f"holdfast pull {place}:{run_id}",
        )
    return found


def keep_receipt(receipt: Receipt, *, partly: bool) -> None:
    """Keep a receipt in the copy and at the desk; one of a part of the run never replaces one of all of it there.

    Raises:
        StorageError, NotPermitted: it cannot be written.
    """
    data = wire.to_bytes(receipt)
    directory = make_state_directory(f"places/{receipt.place}/receipts")
    try:
        files.commit(f"{receipt.directory}/{RECEIPT}", data, mode=0o644)
        path = f"{directory}/{receipt.run_id}.json"
        if not partly or not os.path.lexists(path):
            files.commit(path, data)
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}", hint="make room there, and pull again") from error


def check_receipt(place: str, run_id: str) -> tuple[Receipt | None, str]:
    """The receipt of a run, and why it does not hold (empty: it holds); None where there is none.

    The source is asked for its roster as it is now, so that late writers are seen; the copy is looked at again:
    small files are hashed, large ones where size, times or inode are others. A receipt of a live run does not hold.
    One of a part of the run does not, either. What is damaged, or was left out at the source, stands in the receipt
    itself and is the reader's to judge.

    Raises:
        PlaceError, Refused: the source gave no answer: nobody can tell whether the receipt holds.
        HoldfastError: it could not be looked at.
    """
    receipt, why = check_copy(place, run_id)
    if receipt is None or why:
        return receipt, why
    run = find_run(run_id).run_dir if place == LOCAL else run_id
    about, _ = ask_roster(open_box(find_place(place)), run, "sum")
    if about.live:
        return receipt, "the run is live again"
    if about.sha256 != receipt.roster:
        return receipt, f"the run was written after its roster was made ({receipt.made_at}): it holds other files now"
    known = {one.path for one in receipt.left_out if one.why.startswith(GRAVE)}
    for one in about.left_out:
        if one.why.startswith(GRAVE) and clean(one.path) not in known:
            return receipt, f"not in the copy, and there now: {clean(one.path)}: {clean(one.why)}"
    return receipt, ""


def check_copy(place: str, run_id: str) -> tuple[Receipt | None, str]:
    """As `check_receipt`, by the copy alone: of a run that is not at its place any more.

    Raises:
        HoldfastError: it could not be looked at.
    """
    receipt = read_receipt(place, run_id)
    if receipt is None:
        return None, f"{place}:{run_id} was not pulled to this machine"
    if receipt.live:
        return receipt, "it was pulled while the run had not ended"
    if not receipt.files:
        return receipt, "it is of no file at all"
    return receipt, _check_copy(receipt)


def _check_copy(receipt: Receipt) -> str:
    """Why the copy is not what the receipt says; empty: it is."""
    directory = receipt.directory
    try:
        roster = read_roster(directory, receipt)
        if read_receipt_of(directory) != receipt:
            return f"{directory}/{RECEIPT} is another one"
    except FileNotFoundError:
        return f"the copy is not in {directory} any more"
    except (OSError, ValueError) as error:
        return f"{directory}: {error}"
    files_here = sum(entry.kind != DIRECTORY for entry in roster.entries)
    if files_here < receipt.files:
        return f"{directory} has {files_here} of the run's {receipt.files} files: options left out the others"
    copy = Copy(directory, receipt.place, receipt.run_id, os.environ)
    for entry in roster.entries:
        placed = copy.prove(entry.path)
        good = placed is not None and placed.sha256 == entry.sha256
        if good and entry.kind not in (LINK, DIRECTORY) and entry.size <= CONTROL_BYTES:
            good = _hash(f"{directory}/{entry.path}") == entry.sha256
        if not good:
            return f"{directory}/{clean(entry.path)} is not what was pulled"
    copy.save()
    return ""


def _hash(path: str) -> str:
    try:
        return hash_file(path, lambda _: None)[0].hexdigest()
    except OSError:
        return ""
