"""What the router asks of this machine's own runs; a command line that names a place does not load it."""

from __future__ import annotations

from holdfast.agent.view.find import find_run
from holdfast.agent.view.words import list_words
from holdfast.model.errors import HoldfastError, NoSuchRun


def is_here(text: str) -> bool:
    """Whether a run or a job of this machine answers to `text`; what cannot be told is taken for here."""
    try:
        find_run(text)
    except NoSuchRun:
        return any(word == text for word, _ in list_words(text))
    except HoldfastError:
        return True
    return True
