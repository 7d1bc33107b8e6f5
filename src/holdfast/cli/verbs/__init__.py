"""The verbs: ``holdfast <verb>`` is `verbs/<verb>.py`, which offers `command`, a click command.

`SUMMARIES` is the group's help, kept here so that listing the verbs imports none of them; a test holds it equal to
what each verb says of itself. The order is that of the help page, whose headings are `GROUPS`.
"""

from __future__ import annotations

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "run": "Run a job: on leased cards, limited, supervised, recorded.",
        "submit": "Hand a job or a file of commands to the queue.",
        "preflight": "Check whether a job could run here, and start nothing.",
        "drill": "Rehearse a script: kill it at random, and compare.",
    },
    "Look": {
        "ls": "List runs, newest first.",
        "show": "Show everything known about one run.",
        "diagnose": "Say why a run ended, hangs or is slow, and what to do.",
        "logs": "Print or follow the output of a run.",
        "metrics": "Show the values that a training logged, and how far it is.",
        "attach": "Follow a live run as if it had been started here.",
        "wait": "Wait until runs, jobs or groups are proven done.",
        "files": "List the files of a run, while it runs or afterwards.",
        "gpus": "Show every card: who holds it, since when, what runs on it.",
    },
    "Change": {
        "stop": "Stop a run, wait until nothing of it is left, and say how.",
        "restart": "Stop a run and start its job again, as its next attempt.",
        "checkpoint": "Ask a run to save a checkpoint and go on.",
        "checkpoints": "List, prove, show, prune and export checkpoints.",
        "limit": "Change limits, deadline or priority of a job that runs.",
        "exec": "Run a command of your own beside a run.",
        "shell": "Open a shell beside a run.",
        "cp": "Copy a file or directory of a run to this machine.",
        "rm": "Remove ended runs.",
        "prune": "Remove the declared scratch of an ended run.",
    },
    "Many jobs": {
        "queue": "Look at the queue, and change what waits in it.",
        "sweep": "Hand in many jobs made from one; compare their results.",
    },
    "Results and rent": {
        "pull": "Bring runs home: whole, proven file by file, with a receipt.",
        "results": "Copy results to storage that lasts; gather those of many runs.",
        "teardown": "Check that all is home before a rented machine is given up.",
        "lifecycle": "Show the phase of a place or run, and what is missing.",
        "cost": "Show what rented places have cost, and which deadlines run.",
    },
    "Machines": {
        "place": "Configure, measure and trust the machines where jobs run.",
        "profile": "Show what a kind of machine keeps, deletes and bills.",
        "push": "Push data of this machine to a place, proven file by file.",
        "secret": "Give secrets to a place; list, try and remove them.",
        "tunnel": "Reach what listens on a place's loopback, from here.",
        "doctor": "Look at this host: cards, framework, limits, disks, leftovers.",
    },
    "Upkeep": {
        "config": "State your own defaults: messages, wait for cards, priority.",
        "notify": "Try whether messages reach you, before a job depends on it.",
        "patrol": "Look once at every run, and say who needs a person.",
        "sentinel": "Wait for one thing of a run, such as its end or a step.",
        "reconcile": "Bring records and watchers up to date with what really runs.",
        "adopt": "Give a live run whose supervisor died a new one.",
        "handbook": "Print how to look at, stop and resume a run, as it is now.",
    },
    "Help": {
        "rules": "Print the rules, each with how it is enforced here.",
        "explain": "Explain a known failure, a class, an exit code, or a Xid.",
        "fault": "Let a training fail on purpose, and check the verdict.",
        "schema": "Print the JSON Schema of job files, for editors.",
        "completion": "Print the completion script for bash, zsh or fish.",
    },
}
"""Heading of the help page to its verbs, each with its one-line help."""

SUMMARIES: dict[str, str] = {verb: words for verbs in GROUPS.values() for verb, words in verbs.items()}
"""Verb to one-line help."""
