"""Finds that an experiment tracker gave up in a run that ended well: its curves are not where people look (OBS-12).

A run that fails for a tracker has a verdict; one that goes on without it succeeds, and nobody is told. Pure.
"""

from __future__ import annotations

from holdfast.model.pattern import compile_later

from .lines import clean_line
from .pattern import LONGEST_LINE, match_line
from .words.trackers import NAMES, TRACKERS

_NAMED = compile_later("(?i)" + NAMES)
LONGEST = 200


def find_given_up(text: str) -> str:
    """The first line that says that a tracker is off or away against the job's wish; empty without one."""
    for line in text.split("\n"):
        if _NAMED.search(line) is None:
            continue
        _, clean = clean_line(line[:LONGEST_LINE])
        if any(match_line(pattern, clean) is not None for pattern in TRACKERS):
            return clean.strip()[:LONGEST]
    return ""
