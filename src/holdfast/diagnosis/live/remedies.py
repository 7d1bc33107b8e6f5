"""What to do about each class of a live run: one fixed action each, and another where it is only possible.

``{names}`` are filled from the detection and from what is looked at.
"""

from __future__ import annotations

from holdfast.model.verdict import Confidence, LiveClass

RESTART = "restart it, from its last checkpoint where there is one"

ACTIONS: dict[LiveClass, str] = {
    LiveClass.PROGRESSING: "nothing: it gets on",
    LiveClass.STARTING: "wait: it is before its first step or in a phase that may take long",
    LiveClass.BUFFERED: (
        "nothing is lost yet: do not stop it, which would lose the buffered output; start it next time with "
        "PYTHONUNBUFFERED=1 or `python -u` (holdfast does)"
    ),
    LiveClass.STORAGE_WAIT: (
        "have {path} brought back (server, mount, disk); KILL takes effect only then. Do not touch that path from a "
        "shell that you need"
    ),
    LiveClass.PAUSED: "it is stopped by {how}: {resume}",
    LiveClass.DEADLOCK: (
        "keep the stacks (`{deep}`; py-spy shows Python lines), then " + RESTART + "; the place where the stacks "
        "show it waiting is the bug: nothing is left to wake it"
    ),
    LiveClass.BUSY_NO_PROGRESS: (
        "look at the frame that both stacks show (`{deep}` where there are none); if that is no long computation, "
        + RESTART
    ),
    LiveClass.WAITING_FOR_CHILD: "{look}; if it is stuck, " + RESTART,
    LiveClass.NETWORK_WAIT: "{look}; give the call a timeout, then " + RESTART,
    LiveClass.COLLECTIVE_HANG: (
        "look at rank {who} first: the others wait for it. Keep stacks and Flight Recorder dumps, then "
        + RESTART + "; a longer timeout does not help"
    ),
    LiveClass.EXIT_HANG: "check the results, then stop it: `holdfast stop {run}`; the work itself is done",
    LiveClass.ZOMBIE: "its parent (pid {parent}) has to reap it; nothing runs any more and no card is held",
    LiveClass.LOADER_BOUND: (
        "its loader's workers {what}: use more of them (CPUs minus one, as memory allows), persistent and pinned, "
        "prefetch 2; stage the data on a local disk if they read"
    ),
    LiveClass.CPU_BOUND: (
        "it is not dead: move the preparation of data to loader workers or to the card, or ask for more CPUs"
    ),
    LiveClass.OVERSUBSCRIBED: (
        "cap the threads: `threads:` in the job file, or OMP_NUM_THREADS so that processes times threads is {allowed}"
    ),
    LiveClass.NOISY_NEIGHBOUR: (
        "it is not you: others use this box's CPUs; wait, move, or ask them. Change nothing in the run"
    ),
    LiveClass.THRASHING: "fewer loader workers or a higher memory limit; a smaller batch does not help host memory",
    LiveClass.GPU_THROTTLED: "have the cooling or power of {card} checked, or move the run; its times are no benchmark",
    LiveClass.GPU_UNDERFED: "larger batches or fused kernels would use the card better; no fault",
    LiveClass.CPU_FALLBACK: (
        "stop it: the cards are paid for and unused. Check CUDA_VISIBLE_DEVICES, the driver and the framework's build "
        "(`holdfast doctor`)"
    ),
    LiveClass.STRAGGLER: "look at the card and the data shard of rank {who}",
    LiveClass.SLOWER_THAN_BEFORE: "compare clocks, co-tenants and the data's place with the earlier run",
    LiveClass.UNCLEAR: "{next}",
}  # fmt: skip
_FIRST = (
    "see first whether it gets on at all: its log or a file of it grows, or {stacks} shows another place some minutes "
    "later. "
)
_ENDLESS = "if not, it is a loop without end, and has to be stopped"
BUSY = f"{_FIRST}If so, let it work; {_ENDLESS}"
"""What to do next about an unclear run that uses a CPU."""
UNSURE: dict[LiveClass, str] = {
    LiveClass.PROGRESSING: (
        "it may be a slow step or a hang, its last one is {age} old and nothing of it moved while it was looked at: it "
        "is overdue in {left} ({limit} after the last one); if no step has come by then, `{again}` once more"
    ),
    LiveClass.NOISY_NEIGHBOUR: (
        _FIRST + "If so, others on this box only slow it down: wait, move, or ask them; " + _ENDLESS
    ),
    LiveClass.BUFFERED: (
        _FIRST + "If so, leave it: to stop it would lose the buffered output; PYTHONUNBUFFERED=1 or `python -u` "
        "shows it the next time"
    ),
}
"""What to do instead where the class is only possible: the action of a sure one would be wrong if it is another."""

_DEFAULTS = {
    "look": "look at the other side",
    "path": "the storage that it waits for",
    "how": "a signal",
    "resume": "end that, or continue it with SIGCONT (`kill -CONT PID`)",
    "who": "the other side",
    "parent": "its parent",
    "what": "are slower than the training",
    "allowed": "the number of CPUs",
    "card": "the card",
    "next": "look again in some minutes, or with `{deep}`, which adds stacks by ptrace",
    "stacks": "`{deep}`",
    "deep": "holdfast diagnose --deep RUN",
    "again": "holdfast diagnose RUN",
    "run": "RUN",
}


def action_for(kind: LiveClass, facts: dict[str, str], sure: Confidence = Confidence.LIKELY) -> str:
    """The action's text with what the detection found filled in."""
    text = UNSURE.get(kind, ACTIONS[kind]) if sure is Confidence.POSSIBLE else ACTIONS[kind]
    for name, value in {**_DEFAULTS, **facts}.items():
        text = text.replace("{" + name + "}", value)
    return text
