"""The gotchas of running trainings on shared and rented GPUs, as data (`holdfast explain`).

A row says what people see, why it happens, what can be read, and what holdfast does about it: prevent, detect, remedy.
`Gotcha.code` names the modules that do it; the tests that show it carry the row's id (`pytest.mark.gotcha("U11")`), and
`scripts/gotchas.py` holds both to be there. A row that no code handles says why not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .gotcha import Gotcha, GotchaMode
from .platforms import PLATFORMS
from .storage_and_network import STORAGE_AND_NETWORK
from .training import TRAINING
from .universal import UNIVERSAL

__all__ = ["Gotcha", "GotchaMode", "all_gotchas", "find_gotcha", "holds", "search_gotchas"]


def all_gotchas() -> tuple[Gotcha, ...]:
    """Every row, in the catalogue's order."""
    rows = (*UNIVERSAL, *STORAGE_AND_NETWORK, *TRAINING, *PLATFORMS)
    return tuple(sorted(rows, key=_order))


def find_gotcha(gotcha_id: str) -> Gotcha | None:
    """The row with this id, in any case; None when there is none."""
    wanted = gotcha_id.strip().upper()
    return next((row for row in all_gotchas() if row.id == wanted), None)


def search_gotchas(words: str) -> tuple[Gotcha, ...]:
    """Rows in which every word stands, those with it in id, title or keywords first."""
    wanted = words.lower().split()
    if not wanted:
        return ()
    found = [row for row in all_gotchas() if holds(wanted, row.words())]
    return tuple(sorted(found, key=lambda row: not holds(wanted, row.headline())))


def holds(wanted: Iterable[str], text: str) -> bool:
    """Whether every word is the beginning of one in `text`: "stall" does not stand in "installed"."""
    return all(re.search(rf"(?<![a-z0-9]){re.escape(word)}", text) for word in wanted)


FAMILIES = ("U", "GEN", "SLURM", "K8S", "NB")


def _order(row: Gotcha) -> tuple[int, int]:
    family = row.id.rstrip("0123456789")
    return FAMILIES.index(family), int(row.id[len(family) :])
