"""The faults. A name is for ever: people write it into scripts."""

from __future__ import annotations

from holdfast.model.errors import NoSuchName

from .spec import Fault
from .table_ends import ENDS
from .table_lives import LIVES

FAULTS: tuple[Fault, ...] = (*ENDS, *LIVES)
"""In the order of the list: those that end a run, then those that trouble a live one, controls last."""


def find_fault(name: str) -> Fault:
    """The fault of that name.

    Raises:
        NoSuchName: there is none; names the nearest.
    """
    for fault in FAULTS:
        if fault.name == name:
            return fault
    import difflib

    near = difflib.get_close_matches(name, [fault.name for fault in FAULTS], n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise NoSuchName(f"no fault is called {name!r}", hint=f"{hint}see `holdfast fault list`")
