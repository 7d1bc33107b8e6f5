"""For how long a card has been held and not used, by the samples of the run that holds it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

IDLE_PCT = 5
"""As the alarm of a run about itself has it (docs/health.md, `idle_lease`)."""
MOST_GAP_S = 600.0
"""Between two samples; what was in a longer gap is not known."""


def find_idle_since(samples: Sequence[tuple[float, int | None]]) -> float | None:
    """Since when (epoch seconds) a card has done nothing, up to the last sample; None when it is at work.

    `samples` are (epoch seconds, utilisation in percent), oldest first. A sample that could not be read is no idleness.
    """
    since: float | None = None
    later: float | None = None
    for at_s, utilisation in reversed(samples):
        known = utilisation is not None and utilisation <= IDLE_PCT
        if not known or (later is not None and not 0 <= later - at_s <= MOST_GAP_S):
            break
        since = later = at_s
    return since


def is_idle_now(utilisations: Sequence[int | None]) -> bool:
    """Whether every reading of a card over a short window was read and shows no work; none at all is no idleness."""
    return bool(utilisations) and all(value is not None and value <= IDLE_PCT for value in utilisations)
