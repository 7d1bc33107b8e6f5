"""A sweep's things: points of a grid, what was said twice, resolved configurations."""

from __future__ import annotations

from dataclasses import dataclass, field

OVERLAY = "overlay"
"""The one parameter that chooses an overlay instead of being handed to the command."""
DEFAULT_ARGUMENTS = ("--{name}={value}",)
"""How a parameter without a placeholder is handed to the command."""


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of a sweep before its job is made: its name, its parameters as written, where it was written.

    `own` are the parameters that were written for this cell alone or vary over the grid, in contrast to what was set
    for all cells.
    """

    name: str
    params: dict[str, str]
    own: frozenset[str] = frozenset()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """One key with two values for one cell (QUEUE-08): the one that stands, the one that does not, and who says so."""

    cell: str
    key: str
    stands: str
    stands_by: str
    instead_of: str
    said_by: str

    def __str__(self) -> str:
        """Both values, cell and key in one sentence."""
        return (
            f"{self.cell}: {self.key} is {self.stands} ({self.stands_by}), while {self.said_by} says {self.instead_of}"
        )


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A cell's configuration after base, overlays and parameters: the file's bytes, named by their hash."""

    sha256: str
    ending: str
    data: bytes = field(repr=False, default=b"")

    @property
    def file_name(self) -> str:
        """Its name below the queue's ``configs``."""
        return f"{self.sha256}{self.ending}"
