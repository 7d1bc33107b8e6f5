"""Receipts: what was pulled of a run, and how it was proven at home (docs/pull.md)."""

from __future__ import annotations

from .record import record

COPY = "copy.json"
"""In a run's directory that is a copy: the `CopyMark`."""
RECEIPT = "receipt.json"
"""Beside it, and the same at the desk below ``places/PLACE/receipts/RUN.json``: the `Receipt`."""

NOT_WANTED = "are not wanted"
"""So the reason ends where an option left it out."""

LOADED, READ, UNTESTED = "loaded", "read", "not load-tested"
"""How a file was tried: its values were read and are finite; its structure was; its format is not known here."""
DAMAGED = "damaged"
"""How `Receipt.untried` went where its damage was accepted."""
UNREAD, OUTSIDE = "cannot be read", "a result outside of the run's directory"
TAKEN = "has a name that a copy keeps for itself"
GRAVE = (UNREAD, OUTSIDE, TAKEN)
"""So the reason begins why something was left out that may matter: a receipt with one of them opens no gate."""


@record
class CopyMark:
    """A run's directory that is the copy of a certain moment: of which place's run, taken when (ISO UTC)."""

    place: str
    run_id: str
    taken_at: str
    live: bool
    """Whether the run had not ended then: such a copy opens no gate."""


@record
class Tried:
    """One file that was tried by loading: `how` as above, `why` what is wrong with it or not tested."""

    path: str
    how: str
    why: str = ""


@record
class LeftOut:
    """One entry of the source that is not in the copy, and why."""

    path: str
    why: str


@record
class Receipt:
    """The proof that a copy at home is what the source had, bound to run and roster.

    `roster` is the SHA-256 of the roster as the source made it after its last write (`made_at`), with `files` files of
    `bytes` bytes. `verified_at` is when all of them were hashed again at home, in `directory`. `damaged` are files
    that arrived whole and cannot be loaded, hold NaN, or are empty where they must not be, and results that changed
    after the end of their run: with one of them, with `live`, or with `checkpoint` empty although the run wrote
    checkpoints, the receipt opens no gate. `accepted` are damaged ones that a person wants as they are, by name.
    `checkpoint` is the newest checkpoint that was loaded in full; `untried` the newest of all, where it is of a format
    that cannot be tried here, or damaged and `accepted`: then a person says that it loads, before a gate opens.
    `copied` is the SHA-256 of the roster that stands beside the copy: it has what was copied, without `left_out`.
    """

    place: str
    run_id: str
    attempt: int
    roster: str
    files: int
    bytes: int
    made_at: str
    verified_at: str
    directory: str
    live: bool = False
    checkpoint: str = ""
    untried: Tried | None = None
    copied: str = ""
    tried: tuple[Tried, ...] = ()
    damaged: tuple[Tried, ...] = ()
    accepted: tuple[Tried, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
