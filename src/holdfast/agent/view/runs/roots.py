"""Where runs are: the default runs root, those that were named once, and that of a new run."""

from __future__ import annotations

import os

from holdfast.store.index import Index
from holdfast.store.paths import HOME_RUNS, default_root


def choose_root(runs: str | None, *, remember: bool = True) -> str:
    """The runs root of a new run; one that was named is remembered, so that the other verbs find its runs."""
    if runs is None:
        return default_root()
    root = os.path.abspath(os.path.expanduser(runs))
    there = root
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if remember and os.path.isdir(there):  # what cannot be one, nor be made, is refused soon
        with Index() as index:
            index.remember_root(root)
    return root


def list_roots(chosen: str | None = None) -> list[str]:
    """Where runs may be: `chosen` alone when given, else the default root and every remembered one."""
    if chosen is not None:
        return [os.path.abspath(chosen)]

    with Index() as index:
        return list(dict.fromkeys([default_root(), *_find_other_default(), *index.roots()]))


def _find_other_default() -> list[str]:
    """The runs of before ``XDG_DATA_HOME`` counted, or of a shell without it, where there are some."""
    home = os.path.expanduser(HOME_RUNS)
    wanted = not os.environ.get("HOLDFAST_RUNS") and default_root() != home
    return [home] if wanted and os.path.isdir(home) else []
