"""Shell completion: the scripts for bash, zsh and fish, and what completes dynamically.

The script asks `holdfast` itself at each TAB (through `COMPLETE_VARIABLE`), so it never goes stale. An answer must
be quick and must not fail: whatever goes wrong while completing, there is simply nothing to offer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.agent.view.find import complete_run
from holdfast.model.record import record

from . import COMPLETE_VARIABLE

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")

BASH = "~/.local/share/bash-completion/completions"
FISH = "~/.config/fish/completions"
INSTALL = {
    "bash": f"mkdir -p {BASH} && holdfast completion bash > {BASH}/holdfast",
    "zsh": 'holdfast completion zsh > "${fpath[1]}/_holdfast"',
    "fish": f"mkdir -p {FISH} && holdfast completion fish > {FISH}/holdfast.fish",
}
"""One command per shell that installs its script for this user."""

BASH_COLONS = (
    (
        '    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD',
        """\
    local words=("${COMP_WORDS[0]}") current=0 prefix= i
    for ((i = 1; i < ${#COMP_WORDS[@]}; i++)); do
        if ((i > 1)) && [[ ${COMP_WORDS[i]} == :* || ${words[${#words[@]} - 1]} == *: ]]; then
            words[${#words[@]} - 1]+=${COMP_WORDS[i]}
        else
            words+=("${COMP_WORDS[i]}")
        fi
        if ((i == COMP_CWORD)); then current=$((${#words[@]} - 1)); fi
    done
    if [[ ${words[current]} == *:* && $COMP_WORDBREAKS == *:* ]]; then prefix=${words[current]%:*}:; fi
    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$current""",
    ),
    ("COMPREPLY+=($value)", 'COMPREPLY+=("${value#"$prefix"}")'),
)
"""bash breaks a word at each colon, and takes what follows the last one: PLACE:RUN is put together for the answer."""


@record
class CompletionScript:
    """The script that makes `shell` complete, and the command that installs it for this user."""

    shell: str
    script: str
    install: str


def build_script(shell: str) -> CompletionScript:
    """The completion script for one of `SHELLS`.

    click would start a bash first to see its version (4.4 is needed); a script that is printed on one machine may be
    for another, so that is left out.
    """
    import click
    from click.shell_completion import get_completion_class

    chosen = get_completion_class(shell)
    assert chosen is not None, shell
    # The script names the program; what it completes is asked at each TAB.
    made = chosen(click.Command(None), {}, "holdfast", COMPLETE_VARIABLE)
    script = made.source_template % made.source_vars()
    if shell == "bash":
        for old, new in BASH_COLONS:
            assert old in script, old
            script = script.replace(old, new)
    return CompletionScript(shell, script, INSTALL[shell])


def build_completer(
    find_words: Callable[[str], Iterable[tuple[str, str | None]]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What click asks at a TAB: the words that begin with what is typed, each with its help."""

    def complete_words(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            return [CompletionItem(word, help=about or None) for word, about in find_words(incomplete)]
        except Exception:  # noqa: BLE001 - a TAB must never print an error into somebody's command line
            return []

    return complete_words


def _list_runs(incomplete: str) -> list[tuple[str, str | None]]:
    """Runs of this machine, and those of places as this desk has seen them: no place is asked at a TAB."""
    words: list[tuple[str, str | None]] = [*complete_run(incomplete)]
    from holdfast.desk.runs.presence import has_places  # lazy: at a TAB alone

    if has_places():
        from holdfast.desk.runs.registry import complete  # lazy: who has no places does not pay for them

        words += complete(incomplete)
    return words


def _list_cards(incomplete: str) -> list[tuple[str, str | None]]:
    """Numbers of the card nodes: the driver, which may be slow, is not asked at a TAB."""
    numbers = [name.removeprefix("nvidia") for name in os.listdir("/dev") if name.startswith("nvidia")]
    return [(number, None) for number in sorted(numbers) if number.isdigit() and number.startswith(incomplete)]


def _list_reservations(incomplete: str) -> list[tuple[str, str | None]]:
    from holdfast.agent.cards.reserved import list_reservations  # lazy: at a TAB alone

    return [(item.id, item.reason) for item in list_reservations().reservations if item.id.startswith(incomplete)]


def _list_words(incomplete: str) -> list[tuple[str, str | None]]:
    from holdfast.agent.view.words import list_words  # lazy: at a TAB alone

    return list(list_words(incomplete))


def _list_groups(incomplete: str) -> list[tuple[str, str | None]]:
    return [(word.rstrip("/"), None) for word, _ in _list_words(incomplete) if word.endswith("/")]


complete_runs = build_completer(_list_runs)
complete_cards = build_completer(_list_cards)
complete_reservations = build_completer(_list_reservations)
complete_jobs = build_completer(_list_words)
complete_groups = build_completer(_list_groups)


def complete_anything(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Jobs, groups and runs; one of them alone when the other cannot be listed."""
    return [*complete_jobs(context, param, incomplete), *complete_runs(context, param, incomplete)]
