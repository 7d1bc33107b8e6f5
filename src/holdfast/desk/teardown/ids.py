"""The id of the run of a place that a person names by its id, name or beginning."""

from __future__ import annotations

from holdfast.agent.view.find import find_run
from holdfast.desk.runs import registry
from holdfast.model.errors import HoldfastError, NoSuchRun, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.place import LOCAL


def is_run_here(text: str) -> bool:
    """Whether a run of this machine answers to it, or several do."""
    try:
        find_run(text)
    except UsageError:
        return True
    except HoldfastError:
        return False
    return True


def find_id(place: str, text: str) -> str:
    """The id of a run of a place: `text` itself, or the one that it names by what this desk has seen.

    Raises:
        NoSuchRun: none is known by that name, or several are.
        UsageError, NotPermitted: as of `find_run`, of this machine.
    """
    if is_run_id(text):
        return text
    if place == LOCAL:
        return find_run(text).run_id
    found = [known.run_id for known in registry.find(text) if known.place == place]
    if len(found) == 1:
        return found[0]
    hint = f"holdfast ls --on {place} --all shows the ids"
    if found:
        raise NoSuchRun(f"{place} has {len(found)} runs that {text!r} may mean: {', '.join(found[:3])}", hint=hint)
    raise NoSuchRun(f"no run {text!r} of {place} is known here", hint=hint)
