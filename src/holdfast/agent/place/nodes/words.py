"""The words of the two entries: ``--run RUN_DIR --attempt N -- COMMAND...``."""

from __future__ import annotations

from holdfast.model.errors import UsageError
from holdfast.model.record import record


@record
class Words:
    """Which attempt of which run, and the command of each node."""

    run_dir: str
    attempt: int
    command: tuple[str, ...]


def read_words(entry: str, words: list[str]) -> Words:
    """What the words ask for.

    Raises:
        UsageError: they are not those of this version.
    """
    if len(words) < 6 or (words[0], words[2], words[4]) != ("--run", "--attempt", "--") or not words[3].isdigit():
        raise UsageError(f"{entry} does not take the words {words!r}")
    return Words(words[1], int(words[3]), tuple(words[5:]))
