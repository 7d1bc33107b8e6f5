"""``holdfast completion``: a script which makes a shell complete verbs, options and runs."""

from __future__ import annotations

import click

from holdfast.cli.completion import SHELLS, build_script
from holdfast.cli.render import print_record

from . import SUMMARIES


@click.command(short_help=SUMMARIES["completion"])
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--json", "as_json", is_flag=True, help="Print an object with the script in it.")
def command(shell: str, as_json: bool) -> int:  # noqa: FBT001 - a flag of the command line
    """Print the completion script for SHELL.

    \b
    bash  mkdir -p ~/.local/share/bash-completion/completions
          holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
    zsh   holdfast completion zsh > "${fpath[1]}/_holdfast"
    fish  mkdir -p ~/.config/fish/completions
          holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """  # noqa: D301 - \b is click's mark for lines that are not to be joined
    made = build_script(shell)
    print_record(made) if as_json else print(made.script)
    return 0
