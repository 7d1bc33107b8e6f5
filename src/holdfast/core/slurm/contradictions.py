"""What a job says and what its options of sbatch say, held against each other before Slurm is asked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.model.errors import UsageError
from holdfast.model.job import JobSpec
from holdfast.model.units import format_bytes, format_duration

from .texts import read_cards, read_duration, read_size

NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "$TMPDIR", "${TMPDIR}", "$SLURM_TMPDIR", "${SLURM_TMPDIR}")  # noqa: S108
"""Directories that each node has for itself; the next attempt may run on another one."""
CARDS = ("gres", "gpus-per-node", "gpus", "gpus-per-task")


def refuse_contradictions(job: JobSpec, options: Mapping[str, str]) -> None:
    """Refuse options that give a job less than it says it needs, or other cards; and what Slurm cannot do for it.

    Raises:
        UsageError: names both.
    """
    if job.gpu.wait_s > 0 and "deadline" not in options:
        hint = "leave it out; --slurm deadline=TIME, as now+1hour, has Slurm give up a job that could not end by then"
        words = f"gpu.wait (--wait): {format_duration(job.gpu.wait_s)}, and Slurm's line is the wait, which has no end"
        raise UsageError(words, hint=hint)
    found = [*_compare_cards(job, options), *_compare_sizes(job, options), *_compare_times(job, options)]
    if found:
        raise UsageError("; ".join(found), hint="say it once: what the job says becomes the option of sbatch by itself")
    if lost := list(_list_node_local(job)):
        hint = "without it they lie in the run directory; or name one on a file system that every node sees"
        raise UsageError("; ".join(lost), hint=hint)


def _list_node_local(job: JobSpec) -> Iterator[str]:
    """Where checkpoints would lie on a node's own disk, which the next attempt may not see."""
    for name, path in _list_checkpoint_places(job):
        below = next((top for top in NODE_LOCAL if path == top or path.startswith(f"{top}/")), None)
        if below is not None:
            yield f"{name} {path} is below {below}, which each node has for itself: another node would begin at step 0"


def _list_checkpoint_places(job: JobSpec) -> Iterator[tuple[str, str]]:
    if job.checkpoints.mirror is not None:
        yield "checkpoints.mirror", job.checkpoints.mirror
    else:
        for path in job.disk.paths:
            yield "disk.paths", path


def _compare_cards(job: JobSpec, options: Mapping[str, str]) -> Iterator[str]:
    if job.gpus.devices:
        yield f"gpus: {','.join(job.gpus.devices)} names cards, and Slurm chooses which a job gets: say how many"
    for name in CARDS:
        given = _count_cards(name, options.get(name))
        if given is None:
            continue
        # Of these --gpus alone is of the whole job; the cards of a job of ours are of each node.
        wanted = job.gpus.wanted * (job.nodes if name == "gpus" else 1)
        if wanted and given != wanted:
            yield f"gpus: {job.gpus.wanted}, and {name}={options[name]} of slurm gives {given}"


def _count_cards(name: str, value: str | None) -> int | None:
    """How many cards an option asks for; None: it says nothing of cards."""
    if value is None:
        return None
    if name != "gres":
        counts = [part.rpartition(":")[2] for part in value.split(",")]
        return sum(map(int, counts)) if all(count.isdigit() for count in counts) else None
    parts = [part.removeprefix("gres/").removeprefix("gres:") for part in value.split(",")]
    cards = [part for part in parts if part.split(":")[0] == "gpu"]
    counted = [sum(read_cards(part).values()) or 1 for part in cards]
    return sum(counted) if counted else None


def _compare_sizes(job: JobSpec, options: Mapping[str, str]) -> Iterator[str]:
    cpus, given = job.limits.cpus, options.get("cpus-per-task", "")
    if cpus is not None and given.isdigit() and int(given) < cpus:
        yield f"limits.cpus: {cpus:g}, and cpus-per-task={given} of slurm gives {given}"
    memory, most = job.limits.memory_bytes, _read_memory(options.get("mem", ""))
    if memory is not None and most and most < memory:
        yield f"limits.memory: {format_bytes(memory)}, and mem={options['mem']} of slurm is less"


def _read_memory(text: str) -> int | None:
    """Bytes of ``--mem``, in MiB without a unit; None where it is none, and 0 for all of a node. Source: sbatch(1)."""
    return read_size(f"{text}M" if text.isdigit() else text.upper())


def _compare_times(job: JobSpec, options: Mapping[str, str]) -> Iterator[str]:
    most_s = read_duration(options.get("time", ""))
    for name, wanted_s in (("timeout", job.timeouts.total_s), ("timeouts.run", job.timeouts.run_s)):
        if wanted_s is not None and most_s is not None and wanted_s > most_s:
            given = f"time={options['time']} of slurm is {format_duration(most_s)}"
            yield f"{name}: {format_duration(wanted_s)}, and {given}"
