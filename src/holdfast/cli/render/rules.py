"""The rules for people: what holds, and under it how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import heading, note, pairs

if TYPE_CHECKING:
    from holdfast.agent.view.page.conduct import Conduct


def print_rules(found: Conduct) -> None:
    """Each rule with how it is held, then what this box's own file says."""
    for number, each in enumerate(found.rules, start=1):
        print(f"{number:2}. {each.rule}")
        print(f"    {each.held}: {each.by} ({each.page})")
    print()
    if found.sources:
        heading(f"of this box, {', '.join(found.sources)}")
        pairs(found.site.items(), indent=4)
    else:
        note("this box has no rules file of its own (holdfast's docs/rules-file.md): the defaults hold")
