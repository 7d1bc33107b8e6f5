"""``holdfast fault``: let something go wrong on purpose, in a sandbox, and see whether the verdict is right."""

from __future__ import annotations

import click

from holdfast.cli.lazy_group import LazyGroup
from holdfast.cli.verbs import SUMMARIES

EPILOG = """\b
holdfast fault list                        what there is, and what this box can do
holdfast fault run disk-full               a real full disk, judged
holdfast fault run --all                   all of them, about eight minutes
holdfast fault run --all --quick           those that need seconds, about one minute
holdfast fault run --keep hang-up          keep the sandbox, to look at the run in it"""

VERBS = {
    "list": "List the faults, and whether this box can do them.",
    "run": "Let faults happen, and compare the verdicts.",
}


@click.group(cls=LazyGroup, package=__name__, summaries=VERBS, short_help=SUMMARIES["fault"], epilog=EPILOG)
def command() -> int:
    """Let a training fail for real, and see whether holdfast says why.

    Each fault is a run of its own in a sandbox of its own: a directory, a mount namespace where something is mounted, a
    control group. Nothing outside of it is touched, and nothing is left of it, also when this command is killed.
    """
    return 0
