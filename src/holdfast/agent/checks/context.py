"""The input of every check: the job, the rules, the caller's environment, and what is known of the box already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.core.job.redact import REDACTED
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Inventory
from holdfast.model.job import JobSpec
from holdfast.model.record import field, record
from holdfast.store.paths import default_root

if TYPE_CHECKING:
    from holdfast.core.rules.rules import Rules
    from holdfast.model.profile import Profile

READ_WITHIN_S = 10.0
"""For the cards: initialising NVML takes seconds on a box without persistence mode."""


@record
class CheckContext:
    """One job about to run on this box.

    `run_dir` is None when somebody only asks (`holdfast preflight`); `inventory` None when the cards were not read
    yet. `now_epoch_s` and `minute_of_day` (local) are the time at which it would start. `root` is put in front of
    system paths, for tests with a box of their own. `image_record` is where a resolved image is written down.
    `profile` is that of the place (None: it has none); what it adds is in `environ` already. `ends_first`: the run in
    `run_dir` may live still, and is to end before this; nothing is written into its directory.
    """

    spec: JobSpec
    rules: Rules
    environ: Mapping[str, str]
    run_dir: str | None = None
    inventory: Inventory | None = None
    busy_level: Level = Level.WARN
    now_epoch_s: float = 0.0
    minute_of_day: int = 0
    root: str = ""
    image_record: str = ""
    profile: Profile | None = None
    ends_first: bool = False
    job_environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Lay the job file's variables over the caller's, once."""
        self.job_environ.update(self.environ)
        self.job_environ.update({name: value for name, value in self.spec.env.items() if value != REDACTED})

    def in_workdir(self, path: str) -> str:
        """A path of the job as it resolves it."""
        return os.path.join(self.spec.workdir, path)

    @property
    def runs_place(self) -> str:
        """Where the run directory is, or would be made."""
        return self.run_dir or os.path.abspath(default_root(self.environ))

    @property
    def ending_run_id(self) -> str:
        """The run that is to end first; empty: none."""
        return os.path.basename(self.run_dir) if self.ends_first and self.run_dir else ""


def passed(check: str, subject: str, evidence: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(check, Level.PASS, subject, evidence)


def unknown(check: str, subject: str, evidence: str, remedy: str) -> Finding:
    """A check that could not look."""
    return Finding(check, Level.UNKNOWN, subject, evidence, remedy)


def warned(check: str, subject: str, evidence: str, remedy: str) -> Finding:
    """Something that a person should know and that does not keep the job from running."""
    return Finding(check, Level.WARN, subject, evidence, remedy)


def failed(check: str, subject: str, evidence: str, remedy: str) -> Finding:
    """Something with which the job cannot or must not start."""
    return Finding(check, Level.FAIL, subject, evidence, remedy)
