"""The verbs: ``holdfast <verb>`` is `verbs/<verb>.py`, which offers `command`, a click command.

`SUMMARIES` is the group's help, kept here so that listing the verbs imports none of them; a test holds it equal to
what each verb says of itself. The order is that of the help page.
"""

from __future__ import annotations

SUMMARIES: dict[str, str] = {
    "run": "Run a job: leased, contained, supervised, recorded.",
    "submit": "Hand a job or a file of commands to the queue.",
    "queue": "Look at the queue, and change what waits in it.",
    "sweep": "Hand in many cells of a job; compare their results.",
    "wait": "Wait until runs, cells or groups are proven done.",
    "ls": "List runs, newest first.",
    "show": "Show everything known about one run.",
    "diagnose": "Say why a run ended, hangs or is slow, and what to do.",
    "logs": "Print or follow the output of a run.",
    "attach": "Follow a live run as if it had been started here.",
    "stop": "Stop a run, wait until nothing of it is left, and say how.",
    "checkpoint": "Ask a run to save a checkpoint and go on.",
    "checkpoints": "List, prove, show, prune and export checkpoints.",
    "drill": "Rehearse a script: kill it at random, and compare.",
    "restart": "Stop a run and start the same command as its next attempt.",
    "adopt": "Give a live run whose supervisor died a new one.",
    "rm": "Remove ended runs.",
    "prune": "Remove the declared scratch of an ended run.",
    "patrol": "Look once at every run, and say who needs a person.",
    "sentinel": "Wait until something is so of a run, then end.",
    "reconcile": "Put records and watchers in line with what is so.",
    "handbook": "Print how to look at, stop and resume a run, as it is now.",
    "gpus": "Show every card: who holds it, since when, what runs on it.",
    "doctor": "Look at this host: cards, framework, limits, disks, leftovers.",
    "preflight": "Check whether a job could run here, and start nothing.",
    "explain": "Explain a gotcha, a class of a verdict, or a Xid.",
    "fault": "Let a training fail on purpose, and check the verdict.",
    "schema": "Print the JSON Schema of job files, for editors.",
    "completion": "Print the completion script for bash, zsh or fish.",
    "agent": "The side of holdfast that stands beside a job (internal).",
}
"""Verb to one-line help."""

HIDDEN = frozenset({"agent"})
"""Verbs that work and are documented but are not listed in the help page."""
