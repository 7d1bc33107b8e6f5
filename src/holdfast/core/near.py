"""What a misspelt word may mean."""

from __future__ import annotations

from collections.abc import Iterable


def find_near(word: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The choice that `word` most likely means, alike to the share `cutoff` at least; empty where there is none."""
    import difflib  # lazy: rare

    return next(iter(difflib.get_close_matches(word, list(choices), n=1, cutoff=cutoff)), "")
