"""A DataLoader that is tracked and then looped over as ever: ``for batch in loader`` counts, and resumes.

`run.batches(loader)` is the plain way. Yet a script that says ``run.track(data=loader)`` and goes on with its own loop
means the same, and would otherwise begin its epoch anew after a resume without a word. ``iter()`` looks at the class,
so the loader gets one of its own, which differs in that method only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batches import Batches


def take_over(loader: Any, batches: Batches, begun: Callable[[], bool]) -> None:  # noqa: ANN401 - a torch DataLoader
    """From here on ``iter(loader)`` goes through `batches`, once `begun` says that the loop has begun.

    Before that (a look at the first batch, a warm-up) the loader is what it was. Afterwards each ``iter(loader)`` is
    an epoch from its beginning, as it is without us, but for the first one after a resume, which goes on in the middle.
    """
    kind = type(loader)
    inside: list[bool] = []

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: ANN401, N807 - the method that it becomes
        # What follows the loader iterates over it, or over a copy, itself.
        if self is not loader or inside or not begun():
            iterator: Iterator[Any] = kind.__iter__(self)
            return iterator
        return _marked(batches.begin_or_continue(), inside)

    loader.__class__ = type(kind.__name__, (kind,), {"__iter__": __iter__, "__module__": kind.__module__})


def _marked(batches: Iterator[Any], inside: list[bool]) -> Iterator[Any]:
    """The same batches; `inside` is not empty while the next one is fetched."""
    while True:
        inside.append(True)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            inside.pop()
        yield batch
