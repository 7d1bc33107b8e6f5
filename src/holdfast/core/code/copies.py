"""Whether runs get copies of their own of the code that was sent, or share the read-only tree. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.model.order import CodeRef

LARGEST_COPY_BYTES = 200 * 1024**2
MOST_COPIED_FILES = 2000
"""A run gets a copy of its own up to here, because scripts write into their directory; else the tree, read-only."""
LARGEST_COPIES_BYTES = 2 * 1024**3
MOST_COPIES_FILES = 20_000
"""The jobs of one hand-in get copies together up to here, else they share the tree: a thousand copies fill a home."""


def shares_tree(code: CodeRef | None, jobs: int) -> bool:
    """Whether so many jobs that are handed in at once run in the read-only tree itself."""
    if code is None:
        return False
    if code.bytes > LARGEST_COPY_BYTES or code.files > MOST_COPIED_FILES:
        return True
    return jobs > 1 and (code.bytes * jobs > LARGEST_COPIES_BYTES or code.files * jobs > MOST_COPIES_FILES)
