"""``holdfast sweep``: many jobs made from one, and their results side by side."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from holdfast.cli.lazy_group import ShortGroup, list_verbs, load_command, verb_group

VERBS = {
    "add": "Add jobs to a sweep, also while it runs.",
    "check": "Hold the jobs against what is on disk.",
    "export": "Write the whole table into a file.",
    "retry": "Queue the failed jobs of a sweep again.",
    "show": "Show every job with its numbers, side by side.",
    "submit": "Hand in a sweep file, or a job with what varies.",
}
EPILOG = """\b
Examples:
  holdfast sweep sweep.yaml                                   what a sweep file says
  holdfast sweep job.yaml --grid lr=1e-3,3e-4 --grid seed=0,1,2
  holdfast sweep --gpus 1 --name rates --grid lr=1e-3,3e-4 -- python train.py --lr {lr}
  holdfast sweep job.yaml --csv jobs.csv --dry-run           every job, nothing handed in
  holdfast sweep add rates --grid lr=1e-2                     more jobs, while it runs
  holdfast sweep show rates --sort accuracy:max               results side by side
  holdfast sweep export rates rates.csv

Exit code 0: handed in. 64: refused, nothing was taken; 65: a mistake in a file."""
SUBMIT = "submit"


class SweepGroup(ShortGroup):
    """``sweep SOURCE`` is ``sweep submit SOURCE``."""

    default = SUBMIT
    elsewhere = {  # noqa: RUF012 - of a class, never changed
        **dict.fromkeys(("ls", "list"), "holdfast queue ls"),
        **dict.fromkeys(("stop", "cancel", "kill"), "holdfast queue cancel NAME/ --running"),
        **dict.fromkeys(("rm", "clear", "delete"), "holdfast queue clear NAME"),
        "pause": "holdfast queue pause NAME",
        "resume": "holdfast queue resume NAME",
        "wait": "holdfast wait NAME/",
    }

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Subcommands, and what `submit` takes: its options, and files."""
        if incomplete.startswith("-"):
            return load_command(self.package, SUBMIT).shell_complete(ctx, incomplete)
        return [*super().shell_complete(ctx, incomplete), CompletionItem(incomplete, type="file")]


@verb_group(__name__, VERBS, EPILOG, cls=SweepGroup)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Hand in many jobs made from one, add to them, and compare what they come to.

    A sweep is a group of the queue: everything `holdfast queue` and `holdfast wait` do with a group, they do with it.
    `holdfast sweep SOURCE` is short for `holdfast sweep submit SOURCE`.
    """
    return list_verbs(ctx)
