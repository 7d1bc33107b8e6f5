"""What was said twice with two values (QUEUE-08): told in sentences, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import UsageError
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.sweep import BuiltSweep, Contradiction

MOST_SAID = 10


def refuse_contradictions(built: BuiltSweep) -> None:
    """Refuse jobs of which something was said twice, or that the sweep's rules do not fit.

    Raises:
        UsageError: there is any.
    """
    texts = shorten_contradictions(built)
    if texts or built.notes:
        said = [*texts, *built.notes[:MOST_SAID]]
        raise UsageError("\n".join(said), hint="nothing was handed in (--strict); make both say the same")


def shorten_contradictions(built: BuiltSweep) -> list[str]:
    """The first sentences, and how many more there are."""
    texts = describe_contradictions(built.contradictions)
    return texts[:MOST_SAID] + ([f"and {len(texts) - MOST_SAID} more"] if len(texts) > MOST_SAID else [])


def describe_contradictions(found: Sequence[Contradiction]) -> list[str]:
    """One sentence for the same two values, with the first job and how many more there are."""
    jobs: dict[Contradiction, list[str]] = {}
    for item in found:
        jobs.setdefault(replace(item, job=""), []).append(item.job)
    texts = []
    for item, names in jobs.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        texts.append(str(replace(item, job=f"{names[0]}{more}")))
    return texts
