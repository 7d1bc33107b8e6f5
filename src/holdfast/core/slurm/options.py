"""Options of sbatch as a person writes them: which may be given, by which names. Pure; each start of a job loads it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.model.errors import UsageError
from holdfast.model.pattern import compile_later

OWN = frozenset(
    {
        *("job-name", "comment", "output", "error", "open-mode", "chdir", "array", "wrap", "hold", "parsable", "wait"),
        *("export", "export-file", "get-user-env", "test-only", "input", "uid", "gid", "ntasks", "nodes", "no-requeue"),
        *("ntasks-per-node", "tasks-per-node", "clusters", "quiet", "version", "help", "usage"),
    }
)
"""Options of sbatch that the script states itself, or that would change what a run is."""
NO_REQUEUE = "no-requeue"
"""Of these the one that may be said, in full: a run that is warned or preempted is then not put back."""
REQUEUE = "requeue"
"""What takes it back; sbatch heeds the last of the two."""
SHORT = {
    "p": "partition",
    "A": "account",
    "q": "qos",
    "C": "constraint",
    "t": "time",
    "c": "cpus-per-task",
    "w": "nodelist",
    "x": "exclude",
    "G": "gpus",
    "d": "dependency",
}
_NAME = compile_later(r"[a-z][a-z0-9-]{1,40}\Z")
_VALUE = compile_later(r"[^\x00-\x1f\x7f]{0,1000}\Z")
SIGNAL = compile_later(r"R?BR?:(?:SIG)?(?:USR1|10|USR2|12)(?:@(\d+))?\Z", re.IGNORECASE)
"""The warnings that the batch process hears, and after which a run is put back; with how long before.

Without ``B`` Slurm signals the steps alone, of which there are none; of other signals a run ends. Source: sbatch(1),
``--signal``.
"""


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options of sbatch by their long names, without dashes.

    Raises:
        UsageError: one is no option, cannot be given so, contradicts another, or its value cannot stand in a script.
    """
    found: dict[str, str] = {}
    for name, value in options.items():
        long = SHORT.get(name, name.removeprefix("--").replace("_", "-"))
        if not _NAME.match(long):
            raise UsageError(f"slurm: {name[:40]!r} is no option of sbatch", hint="write it like partition=gpu")
        # sbatch takes any beginning of a name that is clear: `--arra` is `--array`. Source: getopt_long(3).
        if long != NO_REQUEUE and any(own.startswith(long) for own in OWN):
            raise UsageError(f"slurm: --{long} is holdfast's own to say", hint="leave it out")
        if not _VALUE.match(value):
            raise UsageError(f"slurm: the value of {long} has characters that no line of a script takes")
        if "signal".startswith(long):
            long = "signal"
            if not SIGNAL.match(value):
                words = f"slurm: signal={value[:40]} is no warning that a run hears and goes on after"
                raise UsageError(words, hint="write it like signal=B:USR1@SECONDS, or leave it out")
        if REQUEUE.startswith(long) and long.startswith("req"):
            long = REQUEUE
        found[long] = value
    if {REQUEUE, NO_REQUEUE} <= found.keys():
        raise UsageError("slurm: requeue and no-requeue contradict each other", hint="leave one of them out")
    return found


def lay_over(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """Options with others over them, option by option; requeue and no-requeue are one option with two names."""
    opposite = {NO_REQUEUE: REQUEUE, REQUEUE: NO_REQUEUE}
    left = {name: value for name, value in below.items() if opposite.get(name) not in above}
    return {**left, **above}
