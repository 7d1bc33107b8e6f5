"""What is recorded of a run that Slurm starts, and what was measured of a Slurm. Times are in seconds."""

from __future__ import annotations

from .record import field, record

SLURM = "slurm"
"""The name of this scheduler in records, and the kind of its places."""


@record
class SlurmRecord:
    """The content of a run's ``slurm.json``: the job of Slurm whose attempts are the run's.

    `name` and `comment` are what Slurm knows it by; `job_id` is None until sbatch has answered. `earlier` are the jobs
    before it, of attempts that are over, which begin nothing any more. `options` are the place's long options of
    sbatch, below those of the job. `env_from` is as in `Order`. `lead_s` is how long before its time limit the script
    has the job warned; None: not told. A run that is one task of an array names the array's own directory, relative to
    the runs root, and its `task`; everything else is then recorded there, once for all tasks.
    """

    name: str
    comment: str
    options: dict[str, str] = field(default_factory=dict)
    env_from: str = "none"
    lead_s: float | None = None
    job_id: str | None = None
    submitted_at: str | None = None
    earlier: tuple[str, ...] = ()
    array: str = ""
    task: int | None = None


@record
class PartitionFacts:
    """One partition. None: no limit, or not told. `grace_s` is what a preempted job of it gets before Slurm ends it."""

    name: str
    default: bool = False
    max_time_s: float | None = None
    default_time_s: float | None = None
    nodes: int | None = None
    preempt_mode: str = ""
    grace_s: float = 0.0
    state: str = ""


@record
class SlurmFacts:
    """What was measured of a Slurm from where its commands run.

    `kill_wait_s` is how long after TERM it sends KILL. `requeue`: jobs may be started again unless they say otherwise.
    `cards` are the types of GRES gpu with the most that one node has. `accounting`: sacct answers.
    `preempt_warned`: a preempted job is sent its warning at the beginning of its GraceTime.
    """

    version: str
    cluster: str = ""
    kill_wait_s: float = 30.0
    requeue: bool = True
    preempt_type: str = ""
    preempt_mode: str = ""
    preempt_warned: bool = False
    default_memory: str = ""
    most_array: int | None = None
    accounting: bool = False
    cards: dict[str, int] = field(default_factory=dict)
    nodes: int = 0
    partitions: tuple[PartitionFacts, ...] = ()
    warnings: tuple[str, ...] = ()
