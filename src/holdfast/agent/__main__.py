"""Holdfast's internal processes: ``python -I -S .../holdfast/agent/__main__.py ENTRY WORDS``, without a command line.

| entry | words | what it is |
|---|---|---|
| ``supervise`` | ``RUN_DIR ATTEMPT REASON``, or ``--wait`` | an attempt's supervisor (`supervisor_process`) |
| ``queue-worker`` | ``DIRECTORY`` | the worker of a queue (`agent.queue.worker`) |
| ``stand`` | `place.foreground` | a supervisor in the foreground: a batch step, process 1 of a container, a cell |
| ``slurm-batch`` | `place.foreground.batch` | the same as the batch process of a job of Slurm |
| ``slurm-task`` | `place.foreground.task` | the same as a task of an array of Slurm, which is a job of a sweep |
| ``slurm-lead``, ``slurm-node`` | ``--run RUN_DIR --attempt N -- COMMAND`` | a run over several nodes: `place.nodes` |
| ``sentinel`` | ``RUN_DIR CONDITION LIFE_S [COMMAND [ATTEMPT]]`` | detached (`agent.patrol.sentinel.process`) |
| ``after-push`` | | what a new bundle needs beside the desk's next calls (`place.after_push`) |
| ``probe`` ... | see each module | what a desk asks of this box: `ENTRIES`, one module of `agent.place` each |

The one place that knows them all, and so the only one that may join them: a worker gets from here how it forks a
supervisor. Each is started by `detached`, and none is for people: their words may change with any version.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.argv[1:2] in (["stand"], ["slurm-batch"], ["slurm-task"]):
    import _signal  # type: ignore[import-not-found] # the built-in part: no file is read before a signal can wait

    # The first instruction: what a place sends from now on is not lost, and kills nobody.
    _signal.pthread_sigmask(
        _signal.SIG_BLOCK,
        (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2),
    )

import gc
import os
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_UNKNOWN = 64
ENTRIES = {
    "sentinel": "patrol.sentinel.process",
    "probe": "place.probe",
    "submit": "place.submit",
    "check": "place.check",
    "cards": "place.offers.cards",
    "job": "place.offers.job",
    "drill": "place.drill",
    "enqueue": "place.enqueue",
    "poll": "place.poll",
    "remains": "place.remains",
    "code": "place.code",
    "copy": "place.data.copy",
    "data": "place.data.entry",
    "environment": "place.environment",
    "notify": "place.secrets.trial",
    "roster": "place.data.roster",
    "send": "place.data.send",
    "secret": "place.secrets.entry",
    "slurm": "place.slurm",
    "slurm-lead": "place.nodes.lead",
    "slurm-node": "place.nodes.member",
    "slurm-sweep": "place.sweep_arrays",
}
"""Entry to module of `agent`, whose `main` takes the words; with those of `place` JSON comes in and goes out."""
FOREGROUND = {"stand": "stand", "slurm-batch": "batch", "slurm-task": "task"}
"""Supervisors that are a place's own process, and their modules of `place.foreground`."""
AFTER_PUSH = "after-push"
LOADED_BY_A_START = tuple(f"holdfast.agent.{name}" for name in ("place.code", "place.submit", "supervisor_process"))
"""What the first order of a box loads there, in that order."""


def main(words: list[str]) -> int:
    """Be the process that `words` name; its exit code."""
    entry, rest = (words[0], words[1:]) if words else ("", [])
    # Nothing that is loaded is garbage, and to look for some among it costs a fifth of the loading.
    gc.disable()
    run = _load(entry)
    gc.enable()
    if run is None:
        sys.stderr.write(f"{entry!r} is no internal entry of holdfast\n")
        return EXIT_UNKNOWN
    return run(rest)


def _load(entry: str) -> Callable[[list[str]], int] | None:
    """What an entry is; each loads only what it needs itself: what it loads it keeps for life."""
    if entry in ("supervise", *FOREGROUND):
        from holdfast.host.process import signals  # lazy: before all else, which takes a tenth of a second

        signals.hold_back()
        from holdfast.agent import supervisor_process  # lazy: each entry loads only its own, and keeps it for life

        if entry == "supervise":
            return supervisor_process.main
        stands = import_module(f"holdfast.agent.place.foreground.{FOREGROUND[entry]}")
        return lambda words: int(stands.main(words, supervise=supervisor_process.supervise))
    if entry == "queue-worker":
        from holdfast.agent.queue import worker  # lazy: each entry loads only its own, and keeps it for life
        from holdfast.agent.supervisor_process import (
            fork_supervisor,
        )  # lazy: each entry loads only its own, and keeps it for life

        return lambda words: worker.main(words[0], start_supervisor=fork_supervisor)
    if entry == AFTER_PUSH:
        from holdfast.agent.place import after_push  # lazy: each entry loads only its own, and keeps it for life

        return lambda _words: after_push.main(LOADED_BY_A_START)
    if entry in ENTRIES:
        entry_main: Callable[[list[str]], int] = import_module(f"holdfast.agent.{ENTRIES[entry]}").main
        return entry_main
    return None


if __name__ == "__main__":
    # Isolated mode puts nothing of ours on the path: the directory that holds the package is all that is needed.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.exit(main(sys.argv[1:]))
