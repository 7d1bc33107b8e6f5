"""From a failure class to what to do about it: one fixed action, and what may be done without asking (FAIL-01..16).

The table is closed: a class without a row fails a test. A text may name facts in braces; each has a default here, so
that an action never depends on evidence that could not be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdfast.model.record import field, record
from holdfast.model.verdict import FailureClass, RetryPolicy


@record
class Remedy:
    """What a person is told to do, and what holdfast may do by itself.

    `action` is a template; `defaults` stand in for facts that the evidence did not give. ``{run}`` is the run with a
    space before it, and nothing where no run is meant.
    """

    action: str
    retry: RetryPolicy = RetryPolicy.NEVER
    defaults: Mapping[str, str] = field(default_factory=dict)

    def render(self, facts: Mapping[str, str]) -> str:
        """The action with the facts that are known; a fact is text, never a template, and a default knows the run."""
        run = facts.get("run", "")
        defaults = {name: text.replace("{run}", run) for name, text in self.defaults.items()}
        return self.action.format_map({"run": run, **defaults, **facts})


KEEP_BATCH = "do not shrink the batch: it lives on the card, and a smaller one makes the result another experiment"
FEWER = "use fewer data-loader workers, share their data (memory-mapped files)"
LESS = (
    "have it hold less at a time (its data memory-mapped or in smaller pieces; fewer data-loader workers, where it has "
    "some)"
)
"""`FEWER` where nothing says that there are workers."""
RESUME = "goes on from the last checkpoint, where there is one"
"""What a restart does where nobody has looked for checkpoints; `describe_resume` says it of one run."""


def describe_more_time(*known_s: float | None) -> dict[str, str]:
    """How much more time a run is to get whose time was up: twice the longest of these; nothing where none is known."""
    had_s = max((each for each in known_s if each is not None), default=None)
    if had_s is None:
        return {}
    return {"as_much": _say_time(had_s), "twice": _say_time(2 * had_s)}


def _say_time(seconds: float) -> str:
    """At least so much, as an option takes it: in one unit, of which there are a few."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{math.ceil(seconds / size)}{unit}"
    return f"{max(1, math.ceil(seconds))}s"


BEFORE = "resume from a checkpoint before that step"


def describe_resume(*, checkpoint: bool) -> str:
    """What a restart of a run would begin with."""
    return (
        "goes on from the last checkpoint"
        if checkpoint
        else "begins again, as the command does: no checkpoint is known"
    )


def describe_lone_connection(run: str, *, checkpoint: bool | None) -> str:
    """What to do about a connection that broke, or a wait that ended, of a job in which nothing speaks of ranks."""
    resume = RESUME if checkpoint is None else describe_resume(checkpoint=checkpoint)
    return (
        "see that what it spoke to or waited for (a service, a host, a process of its own; the error or its traceback "
        f"names it, where it does) is up and can be reached; holdfast restart{run} {resume}; if it comes back, "
        "give that call more time, or have the job try it again"
    )


REMEDIES: dict[FailureClass, Remedy] = {
    FailureClass.OUT_OF_MEMORY: Remedy(
        "{less}, or {more}{batch}",
        defaults={
            "less": LESS,
            "more": "raise the memory limit that it met (holdfast show{run} has it), then: holdfast restart{run}",
            "batch": f"; {KEEP_BATCH}",
        },
    ),
    FailureClass.GPU_OUT_OF_MEMORY: Remedy(
        "{first}see who else holds memory on the card ({tenants}); alone on it, change the job: gradient "
        "accumulation or "
        "checkpointing, a shorter sequence{segments}{alone}",
        RetryPolicy.WHEN_ALONE,
        {
            "first": "",
            "tenants": "holdfast gpus",
            "segments": ", expandable segments when much is reserved but unallocated",
            "alone": "",
        },
    ),
    FailureClass.SHARED_MEMORY: Remedy(
        "give /dev/shm more room (containers: --shm-size=8g or --ipc=host), or use fewer data-loader workers"
    ),
    FailureClass.RESOURCE_LIMIT: Remedy(
        "raise {limit}: open files and tasks with holdfast restart{run} --limit-open-files N --limit-tasks N; another "
        "one with `ulimit` in a shell at its box, and in the same shell: holdfast restart{run} (an attempt has the "
        "limits of the shell that starts it)",
        defaults={"limit": "the limit that the evidence names"},
    ),
    FailureClass.DISK_FULL: Remedy(
        "free space or inodes on {path} (declared scratch is pruned first; the best checkpoint and the one to resume "
        "from stay), then: holdfast restart{run}; if there is nothing to remove, have the disk or the quota enlarged",
        RetryPolicy.AFTER_SCRATCH,
        {"path": "the run's disks (df, df -i)"},
    ),
    FailureClass.STORAGE_FAULT: Remedy(
        "stop writing to {path}, see that the disk or mount is sound (dmesg, mount), and take another one if "
        "it is not; "
        "holdfast restart{run} {resume}",
        defaults={"path": "the disk that failed", "resume": RESUME},
    ),
    FailureClass.HARDWARE: Remedy(
        "leave {card}: holdfast gpus quarantine {card}; on a rented box stop it and rent another; do not debug the "
        "code; elsewhere the run {resume}",
        RetryPolicy.ELSEWHERE,
        {"card": "the card", "resume": RESUME},
    ),
    FailureClass.THROTTLED: Remedy(
        "use another card or box ({card} is held back by heat or power); a slower result is no regression of the code",
        RetryPolicy.ELSEWHERE,
        {"card": "this one"},
    ),
    FailureClass.ENVIRONMENT: Remedy(
        "mend the environment that the job starts in (activate the one that has the package; compare driver, CUDA and "
        "framework: holdfast doctor), then run it again; the code is not at fault"
    ),
    FailureClass.COMMUNICATION: Remedy(
        "look at the rank that failed first ({rank}): what it says is the cause, the others only waited; run again "
        "with NCCL_DEBUG=INFO if it says nothing",
        defaults={"rank": "see its own lines"},
    ),
    FailureClass.TRANSIENT: Remedy(
        "run the identical configuration again: holdfast restart{run}; nothing about the job needs to change",
        RetryPolicy.SAME,
    ),
    FailureClass.SYNC_FAILED: Remedy(
        "repeat the transfer only: the training is done and its results lie in the run directory"
    ),
    FailureClass.BUG: Remedy(
        "stop and correct the job: its own exception or check ended it; the same configuration would end the same way"
    ),
    FailureClass.NATIVE_CRASH: Remedy(
        "look at the native code that crashed ({library}): update or pin that library; {called}",
        defaults={
            "library": "the library is not known",
            "called": "the Python line that called it stands in the output where Python could still write it "
            "(PYTHONFAULTHANDLER, which holdfast sets)",
        },
    ),
    FailureClass.DIVERGED: Remedy(
        "judge it yourself: the loss or a gradient was not finite; lower the learning rate or look at the batch, and "
        "{before}",
        defaults={"before": f"{BEFORE}, where there is one"},
    ),
    FailureClass.SUSPICIOUS_FINISH: Remedy(
        "judge it yourself before you use the result: it ended with 0, but {seen}; of a job of the queue, "
        "holdfast queue accept says that it is done all the same",
        defaults={
            "seen": "earlier than planned (an empty data set, a skipped stage, a resumed last step), or its output or "
            "what it left behind speaks against it"
        },
    ),
    FailureClass.RESULT_MISSING: Remedy(
        "have the job write every declared artifact below HOLDFAST_ARTIFACT_DIR, or declare fewer"
    ),
    FailureClass.EXEC_FAILED: Remedy("correct the command, or activate the environment that has it"),
    FailureClass.KILLED: Remedy(
        "find out who sent {signal}: another person, a scheduler, the provider, a memory daemon; nothing here speaks "
        "for a fault of the job, so do not change its configuration; holdfast restart{run} {resume}",
        defaults={"signal": "the signal", "resume": RESUME},
    ),
    FailureClass.REBOOT: Remedy(
        "the box went down under it: holdfast restart{run} runs the same command", RetryPolicy.SAME
    ),
    FailureClass.CONTAINER_RESTART: Remedy(
        "the container was started anew under it: holdfast restart{run} runs the same command", RetryPolicy.SAME
    ),
    FailureClass.HANG_UP: Remedy(
        "start it detached (holdfast run -d), not as a child of a terminal or login session; `nohup torchrun` does not "
        "help, torchrun installs its own handler; holdfast restart{run} {resume}",
        RetryPolicy.SAME,
        {"resume": RESUME},
    ),
    FailureClass.PREEMPTED: Remedy("holdfast restart{run} {resume}", RetryPolicy.SAME, {"resume": RESUME}),
    FailureClass.TIMED_OUT: Remedy(
        "give it more time ({limit}): holdfast restart{run} --timeout {twice} ({resume}); the next time, while it "
        "runs: holdfast limit{run} --timeout +{as_much}",
        defaults={
            "limit": "timeout, or the rules' longest hold",
            "resume": RESUME,
            "twice": "8h",
            "as_much": "2h",
        },
    ),
    FailureClass.STALLED: Remedy(
        "{stood}; with stall.action: report the next stall is diagnosed while it lives; holdfast restart{run} {resume}",
        defaults={
            "stood": "see where each thread stood before the stop: threads.txt in the attempt's directory, and "
            "stacks.txt with holdfast.training",
            "resume": RESUME,
        },
    ),
    FailureClass.STOPPED: Remedy("holdfast restart{run} {resume}", defaults={"resume": RESUME}),
    FailureClass.LEASE_MISMATCH: Remedy("leave CUDA_VISIBLE_DEVICES alone: the job would use other cards than its own"),
    FailureClass.SUPERVISOR_LOST: Remedy(
        "see supervisor.log and who ended holdfast's own processes (a gateway or a login service that ends what is in "
        "the background, KILL by hand), then: holdfast restart{run}"
    ),
    FailureClass.REFUSED: Remedy("do what the refusal says; holdfast preflight repeats the checks"),
    FailureClass.UNKNOWN: Remedy(
        "investigate before anything is run again: read its last lines (holdfast logs{run}){own} and what the "
        "diagnosis "
        "could not read",
        defaults={"own": ", supervisor.log (holdfast logs --supervisor{run})"},
    ),
}
"""Class to remedy, complete."""
