"""``holdfast checkpoints``: what is on disk, whether it is right, what may go, and one plain file out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.lazy_group import ShortGroup, list_verbs, load_command, verb_group

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EPILOG = """\b
holdfast checkpoints digits                               what the run digits has saved (short for `ls digits`)
holdfast checkpoints verify --all checkpoints             read every byte of all of them
holdfast checkpoints show digits                          what is in the newest one
holdfast checkpoints prune digits --keep-last 1           what would go; --yes does it
holdfast checkpoints export digits model.pt --name model  a file for torch.load"""

VERBS = {
    "export": "Write one checkpoint into one plain file.",
    "ls": "List everything in a directory of checkpoints.",
    "prune": "Remove checkpoints that need not be kept.",
    "show": "Show what is in one checkpoint.",
    "verify": "Read every byte and compare it with what was written.",
}


class CheckpointsGroup(ShortGroup):
    """``checkpoints RUN`` is ``checkpoints ls RUN``."""

    default = "ls"

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Subcommands, and the runs and directories that `ls` takes."""
        argument = load_command(self.package, self.default).params[0]
        return [*super().shell_complete(ctx, incomplete), *argument.shell_complete(ctx, incomplete)]


@verb_group(__name__, VERBS, EPILOG, cls=CheckpointsGroup)
@click.pass_context
def command(ctx: click.Context) -> int:
    """List, prove, show, prune and export the checkpoints of `holdfast.training`.

    They are found by a run (its id, the beginning of it, or its name), by a directory in which they are, or by one
    checkpoint's own directory; without any of these in ./checkpoints or here. Nothing in a checkpoint is executed.
    """
    return list_verbs(ctx)
