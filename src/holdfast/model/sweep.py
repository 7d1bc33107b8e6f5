"""A sweep's things: points of a grid, what was said twice, resolved configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .record import field, record

if TYPE_CHECKING:
    from .queue import NewJob

OVERLAY = "overlay"
"""The one parameter that chooses an overlay instead of being handed to the command."""
DEFAULT_ARGUMENTS = ("--{name}={value}",)
"""How a parameter without a placeholder is handed to the command."""


@record
class Point:
    """One job of a sweep before its job is made: its name, its parameters as written, where it was written.

    `own` are the parameters that were written for this job alone or vary over the grid, in contrast to what was set
    for all jobs.
    """

    name: str
    params: dict[str, str]
    own: frozenset[str] = frozenset()
    where: str = ""


@record
class Contradiction:
    """One key with two values for one job (QUEUE-08): the one that stands, the one that does not, and who says so."""

    job: str
    key: str
    stands: str
    stands_by: str
    instead_of: str
    said_by: str

    def __str__(self) -> str:
        """Both values, job and key in one sentence."""
        return (
            f"{self.job}: {self.key} is {self.stands} ({self.stands_by}), while {self.said_by} says {self.instead_of}"
        )


@record
class ResolvedConfig:
    """A job's configuration after base, overlays and parameters: the file's bytes, named by their hash."""

    sha256: str
    ending: str
    data: bytes = field(repr=False, default=b"")

    @property
    def file_name(self) -> str:
        """Its name below the queue's ``configs``."""
        return f"{self.sha256}{self.ending}"


@record
class BuiltSweep:
    """What a sweep comes to: the encoded base, its jobs, the configurations to be stored, and what was said twice."""

    base: dict[str, Any]
    jobs: tuple[NewJob, ...]
    configs: dict[str, ResolvedConfig] = field(default_factory=dict)
    contradictions: tuple[Contradiction, ...] = ()
    notes: tuple[str, ...] = ()
