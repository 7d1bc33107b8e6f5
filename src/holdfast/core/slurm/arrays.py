"""How the jobs of a sweep become arrays of Slurm: one for equal resources, none larger than the site takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.job.nodes import refuse_nodes
from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.job import JobSpec, OutOfMemory
from holdfast.model.queue import IfChanged
from holdfast.model.record import record, replace
from holdfast.model.slurm import SLURM, SlurmRecord

from .contradictions import refuse_contradictions
from .options import check_options
from .script import ScriptPlan, list_directives, note_lead

MOST_ARRAY = 1001
"""How many tasks an array may have where Slurm does not say. Source: slurm.conf(5), MaxArraySize."""

MOST_RANGES = 100
"""Ranges of tasks in one word of a command."""


@record
class TaskPlan:
    """One task that is to be handed in: its run, its job, and how long that is expected to take, if that is known."""

    run_id: str
    job: JobSpec
    expected_s: float | None = None


@record
class ArrayPlan:
    """One array: its runs in the order of its tasks, the job whose resources they all ask for, how many at once."""

    runs: tuple[str, ...]
    job: JobSpec
    limit: int | None

    @property
    def option(self) -> str:
        """The value of ``--array``."""
        return f"0-{len(self.runs) - 1}" + ("" if self.limit is None else f"%{self.limit}")


def plan_arrays(
    tasks: Sequence[TaskPlan], options: Mapping[str, str], *, most: int, limit: int | None
) -> tuple[ArrayPlan, ...]:
    """The arrays of some tasks. Slurm starts the tasks of an array in their order: the longest come first.

    Together they keep to `limit` tasks at once.

    Raises:
        UsageError: the site takes no arrays; there are more arrays than tasks may run at once; or a job's options
            contradict what it needs.
    """
    if most < 1:
        raise UsageError("this Slurm takes no arrays (MaxArraySize=0)", hint="holdfast run --on hands one job in")
    groups: dict[tuple[tuple[str, str], ...], list[TaskPlan]] = {}
    for task in tasks:
        try:
            refuse_nodes(task.job, SLURM)
            refuse_contradictions(task.job, {**options, **check_options(task.job.slurm)})
        except HoldfastError as error:
            raise type(error)(f"{task.job.name}: {error}", hint=error.hint) from error
        probe = ScriptPlan("", "", SlurmRecord("", "", dict(options)), task.job, ())
        groups.setdefault(tuple(sorted(list_directives(probe).items())), []).append(task)
    chunks = []
    for group in groups.values():
        ordered = sorted(group, key=lambda task: -(task.expected_s or 0.0))
        chunks += [ordered[begin : begin + most] for begin in range(0, len(ordered), most)]
    limits = share_limit(limit, [len(chunk) for chunk in chunks])
    return tuple(
        ArrayPlan(tuple(task.run_id for task in chunk), chunk[0].job, share)
        for chunk, share in zip(chunks, limits, strict=True)
    )


def share_limit(limit: int | None, sizes: Sequence[int]) -> list[int | None]:
    """How many of `limit` tasks at once each of several arrays may run: by their sizes, together never more.

    Raises:
        UsageError: there are more arrays than that.
    """
    if limit is None:
        return [None] * len(sizes)
    if limit < len(sizes):
        raise UsageError(
            f"these jobs are {len(sizes)} arrays of Slurm, which cannot keep to {limit} at once together",
            hint=f"say --max-parallel {len(sizes)} or more, or hand them in as several sweeps",
        )
    total = sum(sizes)
    shares = [max(1, limit * size // total) for size in sizes]
    while sum(shares) > limit:
        shares[shares.index(max(shares))] -= 1
    for index in sorted(range(len(sizes)), key=lambda index: shares[index] / sizes[index]):
        if sum(shares) < limit:
            shares[index] += 1
    return [min(share, size) for share, size in zip(shares, sizes, strict=True)]


def plan_script(  # noqa: PLR0917 - all that a script is made of
    sweep: str, number: int, directory: str, plan: ArrayPlan, known: SlurmRecord, command: Sequence[str]
) -> ScriptPlan:
    """The script of an array; `known` has its options, and what Slurm is to call it is added here."""
    named = replace(known, name=f"{sweep}-{number}", comment=f"holdfast:sweep:{sweep}/{number}")
    made = ScriptPlan(f"{sweep}/{number}", directory, named, plan.job, command, array=plan.option)
    return replace(made, record=note_lead(made))


def join_ids(ids: Sequence[str]) -> list[str]:
    """Ids of jobs, with the tasks of an array together: ``7_1``, ``7_2``, ``7_5`` are ``7_[1-2,5]``."""
    tasks: dict[str, list[int]] = {}
    for name in dict.fromkeys(ids):
        job, _, task = name.partition("_")
        tasks.setdefault(job, []).extend([int(task)] if task else [])
    found: list[str] = []
    for job, numbers in tasks.items():
        ranges: list[tuple[int, int]] = []
        for number in sorted(numbers):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
        begins = range(0, len(texts), MOST_RANGES)
        found += [f"{job}_[{','.join(texts[begin : begin + MOST_RANGES])}]" for begin in begins] or [job]
    return found


def name_rerun(sweep: str, *, everything: bool) -> str:
    """The command that runs the jobs of a sweep again that are not done."""
    return f"holdfast sweep retry {sweep}" + (" --all" if everything else "")


def refuse_queue_words(wishes: SubmitOptions, job: JobSpec) -> None:
    """Refuse what only a queue of our own has, with Slurm's word for it.

    Raises:
        UsageError: something of that is wanted.
    """
    asked = {
        "--priority": (
            wishes.priority != 0,
            "--slurm nice=N puts it behind, --slurm qos=NAME maybe before others",
        ),
        "--after": (bool(wishes.needs), "--slurm dependency=afterok:JOB waits for a job of Slurm"),
        "--not-before": (wishes.not_before is not None, "--slurm begin=TIME, as 22:00 or now+2hours"),
        "--hold-after": (wishes.hold_after > 0, "Slurm has no such thing: look at `holdfast sweep check`"),
        "--paused": (wishes.paused, "--slurm begin=TIME, or hand it in when it is to start"),
        "--if-changed": (wishes.if_changed is IfChanged.HOLD, "leave it out: the code that goes along is what runs"),
        "--claims": (wishes.claims is not None, "leave it out: Slurm gives each job to one node"),
        "--retry-out-of-memory": (
            job.retries.out_of_memory is not OutOfMemory.NEVER,
            "--slurm gres=gpu:TYPE:N names the larger card for all jobs",
        ),
    }
    wrong = [f"{name}: {words}" for name, (stated, words) in asked.items() if stated]
    if wrong:
        lines = "\n  ".join(wrong)
        raise UsageError(f"nothing was handed in: the queue is Slurm's there, which says it otherwise\n  {lines}")
