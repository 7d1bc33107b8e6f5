"""``holdfast secret``: what jobs at a place may use and nobody may read."""

from __future__ import annotations

import click

from holdfast.cli.lazy_group import list_verbs, verb_group

VERBS = {
    "check": "Try whether a secret works, without showing it.",
    "ls": "List the secrets at a place: names, never values.",
    "push": "Give a place a secret, by standard input.",
    "rm": "Remove a secret at a place.",
}
EPILOG = """\b
Examples:
  holdfast secret push gpu1 HF_TOKEN                     asks for it
  holdfast secret push gpu1 HF_TOKEN < token.txt
  holdfast secret push gpu1 api.wandb.ai --netrc         one machine's entry of ~/.netrc
  holdfast run --on gpu1 --secret HF_TOKEN train.yaml    a job gets what it names, as a variable"""


@verb_group(__name__, VERBS, EPILOG)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Give secrets to a place, list, try and remove them.

    A secret is a file of mode 0600 in ~/.config/holdfast/secrets on the box; a job gets those that it names
    (`secrets` in the job file, --secret). holdfast writes a value into no command line, record or message of its own;
    what a job prints stays in its output.
    """
    return list_verbs(ctx)
