"""From how a run ended and what it last said to a class, the evidence and one remedy (POST-03). Pure.

The classes are few and each comes from something that was seen: what ended it, the counters of its control group, then
the last lines of its output. The first that fits is taken, hard evidence before words. What fits nothing is
``job_failed``: the job's own exit code, for the person who wrote it to know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..model.run import Ended, Outcome, StopCause
from ..model.units import format_bytes
from .leaving import judge_leaving


@dataclass(frozen=True, slots=True)
class Verdict:
    """A class (stable, for programs), what it rests on, and what to do."""

    failure_class: str
    evidence: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, slots=True)
class Traces:
    """What is left of a run to judge by: the end of its output, kills counted in its own group, memory at its peak.

    None is "not known". `free_bytes` is what the run's disk had left at the end.
    """

    tail: str = ""
    oom_kills: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    free_bytes: int | None = None


FULL_DISK_BYTES = 16 * 1024**2
SIGNALS = {
    1: ("SIGHUP", "its terminal or session was closed, or somebody sent it"),
    2: ("SIGINT", "somebody interrupted it"),
    3: ("SIGQUIT", "somebody sent it from a keyboard"),
    4: ("SIGILL", "an instruction that this processor does not have: a binary built for another one"),
    5: ("SIGTRAP", "a debugger's stop without a debugger"),
    6: ("SIGABRT", "the program ended itself after an inner check failed (abort)"),
    7: ("SIGBUS", "memory behind a mapping was not there: /dev/shm is full, or a mapped file was cut"),
    8: ("SIGFPE", "an integer division by zero"),
    9: ("SIGKILL", "killed without a chance to react: out of memory, an administrator, or a person"),
    11: ("SIGSEGV", "an access to memory that is not its own: a bug in native code, or incompatible libraries"),
    13: ("SIGPIPE", "it wrote to a pipe that nobody reads"),
    15: ("SIGTERM", "it was asked to end"),
    24: ("SIGXCPU", "a CPU-time limit was reached (ulimit -t)"),
    25: ("SIGXFSZ", "a file-size limit was reached (ulimit -f)"),
    31: ("SIGSYS", "a system call that a sandbox forbids"),
}
"""Signal numbers of Linux (signal(7), x86 and ARM) with what usually sends them."""

_WORDS: tuple[tuple[str, str, str], ...] = (
    (
        "gpu_out_of_memory",
        r"CUDA (?:error: )?out of memory|torch\.(?:cuda\.)?OutOfMemoryError|RESOURCE_EXHAUSTED: Out of memory",
        "use a smaller batch, gradient accumulation or checkpointing; see who else is on the card: holdfast gpus",
    ),
    (
        "disk_full",
        r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b",
        "free space or inodes on the run's disks, then: holdfast restart; state disk.checkpoint_size to be told before",
    ),
    (
        "shared_memory",
        r"bus error.*shared memory|insufficient shared memory|unable to (?:open|write to) .*shared memory",
        "give the container more (--shm-size=8g or --ipc=host), or use fewer data-loader workers",
    ),
    (
        "out_of_memory",
        r"^\s*MemoryError\b|Cannot allocate memory|std::bad_alloc|DataLoader worker .* killed by signal: Killed",
        "use fewer workers or smaller batches, or raise limits.memory",
    ),
    (
        "gpu_unavailable",
        r"no CUDA-capable device|CUDA driver version is insufficient|CUDA error: invalid device|CUDA_ERROR_"  # noqa: ISC004
        r"|Torch not compiled with CUDA enabled|NVML.*Driver/library version mismatch",
        "see holdfast gpus; compare the driver with the CUDA version of the framework",
    ),
    (
        "communication",
        r"NCCL (?:error|WARN)|nccl(?:System|Internal)Error|Watchdog caught collective operation timeout|Socket Timeout",
        "look for the rank that failed first; run again with NCCL_DEBUG=INFO",
    ),
    (
        "missing_package",
        r"^(?:ModuleNotFoundError|ImportError): ",
        "activate the environment that has it before `holdfast run`, or name its python in the command",
    ),
    (
        "missing_file",
        r"^FileNotFoundError: |: No such file or directory\s*$",
        "declare it under `inputs`, to be told before",
    ),
    ("not_permitted", r"^PermissionError: |: Permission denied\s*$", "see the permissions of what it names"),
    ("open_files", r"Too many open files|Errno 24\b", "limits: {open_files: 65536}, or fewer workers"),
)
_LEFT = {
    "signal": ("preempted", "holdfast restart goes on from the last checkpoint"),
    "deadline": ("timed_out", "holdfast restart goes on from the last checkpoint; or raise the time limit"),
    "operator": ("stopped", "holdfast restart goes on from the last checkpoint"),
    "user": ("stopped", "holdfast restart goes on from the last checkpoint"),
    "memory": ("out_of_memory", "raise limits.memory, or use less; holdfast restart goes on from the last checkpoint"),
    "nonfinite": (
        "nonfinite",
        "lower the learning rate or look at the batch; resume from a checkpoint before that step",
    ),
    "save_failed": (
        "save_failed",
        "see the disk of the checkpoints (df, df -i, its permissions), then: holdfast restart",
    ),
}
"""Class and remedy for what the training library wrote on leaving. An exception is judged by its own words."""
_REFUSALS = {
    "busy": "wait for the cards (gpu: {wait: 2h}) or take others: holdfast gpus",
    "preflight": "mend what the checks name; holdfast preflight repeats them",
}
_CAUSES = {
    StopCause.DEADLINE: ("timed_out", "raise `timeout`, or have the job resume from its checkpoints: holdfast restart"),
    StopCause.MAX_HOLD: (
        "timed_out",
        "the rules limit how long cards are held; resume from a checkpoint: holdfast restart",
    ),
    StopCause.DISK_FULL: ("disk_full", "free space on the run's disks, then: holdfast restart"),
    StopCause.MEMORY: ("out_of_memory", "raise limits.memory, or use less"),
    StopCause.LEASE_MISMATCH: (
        "lease_mismatch",
        "the job used other cards than its own: leave CUDA_VISIBLE_DEVICES alone",
    ),
    StopCause.PREEMPTION: ("preempted", "holdfast restart goes on from the last checkpoint"),
    StopCause.OPERATOR: ("stopped", "holdfast restart goes on from the last checkpoint"),
    StopCause.SIGNAL: ("stopped", "holdfast restart goes on from the last checkpoint"),
}


def judge_failure(ended: Ended, traces: Traces) -> Verdict:
    """Class, evidence and remedy for a run that did not succeed."""
    if ended.refusal is not None:
        refusal = ended.refusal
        remedy = refusal.hint or _REFUSALS.get(refusal.code, "see supervisor.log")
        named = tuple(f"{item.id} {item.subject}: {item.evidence}" for item in refusal.findings)
        return Verdict(
            refusal.code, (ended.evidence, *named, *(f"{one.device}: {one.holder}" for one in refusal.busy)), remedy
        )
    if traces.oom_kills:
        return _judge_memory(ended, traces)
    if ended.request is not None:
        name, remedy = _CAUSES[ended.request.cause]
        return Verdict(name, (ended.evidence,), remedy)
    if ended.outcome is Outcome.LOST:
        return Verdict("lost", (ended.evidence,), "see dmesg and supervisor.log, then: holdfast restart")
    return _judge_end(ended, traces)


def _judge_memory(ended: Ended, traces: Traces) -> Verdict:
    seen = [ended.evidence, f"the kernel killed {traces.oom_kills} of its processes for lack of memory (memory.events)"]
    if traces.memory_peak_bytes is not None and traces.memory_limit_bytes is not None:
        seen.append(f"peak {format_bytes(traces.memory_peak_bytes)} of {format_bytes(traces.memory_limit_bytes)}")
    return Verdict("out_of_memory", tuple(seen), "raise limits.memory, or use fewer workers or smaller batches")


def _judge_end(ended: Ended, traces: Traces) -> Verdict:
    evidence = [ended.evidence]
    stop = ended.stop
    if stop is not None and stop.why in _LEFT and judge_leaving(stop, ended.status) is not None:
        name, remedy = _LEFT[stop.why]
        return Verdict(name, tuple(evidence), remedy)
    if traces.free_bytes is not None and traces.free_bytes < FULL_DISK_BYTES:
        evidence.append(f"the run's disk has {format_bytes(traces.free_bytes)} left")
        return Verdict("disk_full", tuple(evidence), "free space on the run's disk, then: holdfast restart")
    told = "" if stop is None else stop.traceback
    for text, source in ((traces.tail, "its output says"), (told, "its traceback says")):
        words = find_words(text)
        if words is not None:
            name, line, remedy = words
            return Verdict(name, (*evidence, f"{source}: {line}"), remedy)
    status = ended.status
    if status is not None and status.signal is not None:
        name, meaning = SIGNALS.get(status.signal, (f"signal {status.signal}", "see signal(7)"))
        evidence.append(f"{name}: {meaning}")
        return Verdict(f"signal_{status.signal}", tuple(evidence), "see its last lines below, and dmesg")
    if status is not None and status.code == 0:
        return Verdict(
            "result_missing", tuple(evidence), "have the job write every declared artifact, or declare fewer"
        )
    if status is not None and status.code in (126, 127):
        return Verdict("exec_failed", tuple(evidence), "correct the command, or activate its environment")
    last = next((line for line in reversed((told or traces.tail).splitlines()) if line.strip()), "")
    if last:
        evidence.append(f"its last line: {last.strip()[:200]}")
    return Verdict("job_failed", tuple(evidence), "read its last lines below; the exit code is the job's own")


def find_words(tail: str) -> tuple[str, str, str] | None:
    """(class, the line that says it, remedy) of the first class whose words stand there; None without."""
    for name, pattern, remedy in _WORDS:
        match = re.search(pattern, tail, re.MULTILINE)
        if match is not None:
            begin = tail.rfind("\n", 0, match.start() + 1) + 1
            end = tail.find("\n", match.end())
            return name, tail[begin : end if end >= 0 else len(tail)].strip()[:300], remedy
    return None
