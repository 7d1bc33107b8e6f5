"""The entry ``after-push``: what a bundle that has just arrived needs, beside the desk's next calls.

First what a start loads is loaded, which makes Python keep it compiled: the job starts the sooner by most of that time.
Then what nothing on the box needs any more is removed. Nobody waits for it, and nobody hears of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(loaded: Sequence[str]) -> int:
    """Load these modules, in the order in which the desk will need them; then remove what nothing needs any more."""
    for name in loaded:
        import_module(name)
    from holdfast.agent.place.unused import remove_unused  # lazy: after what somebody waits for

    remove_unused()
    return 0
