"""The verbs: ``holdfast <verb>`` is `verbs/<verb>.py`, which offers `command`, a click command.

`SUMMARIES` is the group's help, kept here so that listing the verbs imports none of them; a test holds it equal to
what each verb says of itself. The order is that of the help page.
"""

from __future__ import annotations

SUMMARIES: dict[str, str] = {
    "run": "Run a job: leased, contained, supervised, recorded.",
    "ls": "List runs, newest first.",
    "show": "Show everything known about one run.",
    "logs": "Print or follow the output of a run.",
    "attach": "Follow a live run as if it had been started here.",
    "stop": "Stop a run, wait until nothing of it is left, and say how.",
    "checkpoint": "Ask a run to save a checkpoint and go on.",
    "checkpoints": "List, prove, show, prune and export checkpoints.",
    "drill": "Rehearse a script: kill it at random, and compare.",
    "restart": "Stop a run and start the same command as its next attempt.",
    "adopt": "Give a live run whose supervisor died a new one.",
    "rm": "Remove ended runs.",
    "gpus": "Show every card: who holds it, since when, what runs on it.",
    "preflight": "Check whether a job could run here, and start nothing.",
    "schema": "Print the JSON Schema of job files, for editors.",
    "completion": "Print the completion script for bash, zsh or fish.",
    "agent": "The side of holdfast that stands beside a job (internal).",
}
"""Verb to one-line help."""

HIDDEN = frozenset({"agent"})
"""Verbs that work and are documented but are not listed in the help page."""
