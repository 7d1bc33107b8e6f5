"""Shell completion: the scripts for bash, zsh and fish, and what completes dynamically.

The script asks `holdfast` itself at each TAB (through `main.COMPLETE_VARIABLE`), so it never goes stale. An answer must
be quick and must not fail: whatever goes wrong while completing, there is simply nothing to offer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .main import COMPLETE_VARIABLE

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")

INSTALL = {
    "bash": "holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast",
    "zsh": 'holdfast completion zsh > "${fpath[1]}/_holdfast"',
    "fish": "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}
"""One command per shell that installs its script for this user."""


def build_script(shell: str) -> str:
    """The completion script for one of `SHELLS`.

    click would start a bash first to see its version (4.4 is needed); a script that is printed on one machine may be
    for another, so that is left out.
    """
    from click.shell_completion import get_completion_class

    from .group import holdfast

    chosen = get_completion_class(shell)
    assert chosen is not None, shell
    made = chosen(holdfast, {}, "holdfast", COMPLETE_VARIABLE)
    return made.source_template % made.source_vars()


def complete_runs(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Run ids and names that begin with `incomplete`, newest first."""
    from click.shell_completion import CompletionItem

    from .runs import complete

    try:
        return [CompletionItem(word, help=about or None) for word, about in complete(incomplete)]
    except Exception:  # noqa: BLE001 - a TAB must never print an error into somebody's command line
        return []


def complete_cards(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Numbers of the card nodes: the driver, which may be slow, is not asked at a TAB."""
    import os

    from click.shell_completion import CompletionItem

    try:
        numbers = [name.removeprefix("nvidia") for name in os.listdir("/dev") if name.startswith("nvidia")]
    except OSError:
        return []
    return [CompletionItem(number) for number in sorted(numbers) if number.isdigit() and number.startswith(incomplete)]


def complete_reservations(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Ids of reservations that are not over."""
    import os

    from click.shell_completion import CompletionItem

    try:
        from holdfast.host.reservations import list_reservations
        from holdfast.host.rulesfile import read_rules

        from .cards import open_existing_area

        rules = read_rules(os.environ)
        area = open_existing_area(rules)
        found = () if area is None else list_reservations(area, rules)[0]
        return [CompletionItem(item.id, help=item.reason or None) for item in found if item.id.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a TAB must never print an error into somebody's command line
        return []
