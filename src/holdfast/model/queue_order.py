"""An order for the queue of a place: jobs that stand there together afterwards, or not at all; and what was taken."""

from __future__ import annotations

from .queue import JobState, Submission
from .record import field, record

QUEUE_ORDER_FORMAT = 1
CONFIGS = "$HOLDFAST_CONFIGS"
"""Where the resolved configurations of a sweep lie on the box, in the words of its jobs, until the box takes them."""


@record
class QueueOrder:
    """What ``agent enqueue`` carries out.

    `submission` is as it is on the box, but for what only the box knows: `runs_root`, `cwd`, `files`, `environment` and
    the hashes of the jobs are made there. `named`: the name of a single job was said, so it is not made unique.
    `shared` are paths of the box to which several jobs may write. `configs` are resolved configurations by file name.
    `env_from`, `place`, `scheduler` and `native` are as in `Order`.
    """

    submission: Submission
    named: bool = False
    shared: tuple[str, ...] = ()
    configs: dict[str, str] = field(default_factory=dict)
    env_from: str = "none"
    place: str = ""
    scheduler: str = ""
    native: dict[str, str] = field(default_factory=dict)
    format: int = QUEUE_ORDER_FORMAT


@record
class TakenJob:
    """One job that was taken, as it is now. `note` is the queue's; `why` the first reason for which it waits.

    `why` is empty for a job that does not wait, and where several were handed in at once.
    """

    id: int
    job: str
    state: JobState
    sha256: str
    note: str
    why: str


@record
class Submitted:
    """What a queue took. `known` of the jobs had been handed in before; `worker`: one is there, or was started.

    `notes` are for people; `stops` say what keeps the group's jobs from starting.
    """

    group: str
    jobs: tuple[TakenJob, ...]
    known: int
    worker: bool
    notes: tuple[str, ...]
    stops: tuple[str, ...]
