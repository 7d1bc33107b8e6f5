"""The contract between holdfast and a place where jobs run: at most eight methods, stated here once.

Whatever a platform is, its supervisor and its run directory are the same; it starts the one and reaches the other.
A platform that cannot do something answers `Unsupported` with its reason: it never guesses and never does half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.model.errors import Blame, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.model.finding import Finding
    from holdfast.model.job import JobSpec


class Unsupported(HoldfastError):
    """This platform does not offer that; the message says why and what to use instead."""

    code, exit_code, blame = "unsupported", 64, Blame.USER


@dataclass(frozen=True, slots=True)
class Call:
    """The circumstances of a submission: the command line as typed, from which directory, with which environment."""

    argv: tuple[str, ...]
    cwd: str
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run that a platform has taken: its id and the directory by which it is reached from here."""

    run_id: str
    run_dir: str


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at one run. `condition` as `holdfast ls` shows it; `ended` only on positive evidence."""

    run_id: str
    condition: str
    ended: bool
    exit_code: int | None = None


class Platform(Protocol):
    """A place where jobs run. Every method may raise HoldfastError; none waits for a job to end."""

    name: str

    def probe(self) -> tuple[Finding, ...]:
        """What this place offers and lacks, without starting anything."""
        ...

    def plan(self, spec: JobSpec, call: Call) -> tuple[Finding, ...]:
        """Whether `spec` could run here now, check by check; starts nothing, leases nothing."""
        ...

    def submit(self, spec: JobSpec, call: Call) -> Submitted:
        """Take the job: on return its run directory exists and its supervisor has been started."""
        ...

    def poll(self, run_ids: Sequence[str]) -> dict[str, Observed]:
        """One look at several runs in one go; a run that is not known here is absent from the answer."""
        ...

    def logs(self, run_id: str, offset: int) -> bytes:
        """The job's output from byte `offset` on, as far as it has been written."""
        ...

    def cancel(self, run_id: str, *, by: str, force: bool = False) -> None:
        """Ask for a stop, durably; idempotent. Returns when the wish is recorded, not when it is fulfilled."""
        ...

    def fetch(self, run_id: str, names: Iterable[str]) -> dict[str, str]:
        """Bring results here: name to local path, for those of `names` (relative to the run directory) that exist."""
        ...

    def teardown(self, run_id: str) -> None:
        """Destroy what the platform holds for this run."""
        ...
