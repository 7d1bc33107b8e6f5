"""One test item for a property that a whole table must have: every row is looked at, and all offenders are named.

`pytest.mark.parametrize` makes an item of each row. That is right where a row runs something of its own, in
directories of its own. For a table with nothing to run, an item costs more than the look at its row, twice over with
two workers, and a rule that breaks fifty rows fails fifty times. `each` is written in the same place and in the same
way, and shares the test's fixtures among all rows: so it is not for a test that leaves something in them. No row can be
skipped, for the item has one outcome: a skip would hide the other rows. Skip where the table is made, or in a fixture.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def each(
    names: str | Sequence[str], rows: Iterable[Any], *, ids: Callable[[Any], object] | Sequence[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test once for each row, and fail at the end with every row that it refused, or skipped.

    Args:
        names: The arguments that a row fills; one name takes the row as it is, several take its fields.
        rows: The table; an empty one is a failure, since it would prove nothing.
        ids: How a row is named in the message: of the row's fields, or the list of names; else the row itself.
    """
    words = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [(row,) if len(words) == 1 else tuple(row) for row in rows]
    titles = list(ids) if ids is not None and not callable(ids) else [_title(row, ids) for row in table]

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def look_at_all(**fixtures: Any) -> None:
            assert table, "the table is empty"
            offenders = []
            for title, row in zip(titles, table, strict=True):
                try:
                    test(**dict(zip(words, row, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - each has its turn
                    offenders.append(f"{title}: {_say(error)}")
            if offenders:
                pytest.fail(f"{len(offenders)} of {len(table)}:\n" + "\n".join(offenders), pytrace=False)

        taken = inspect.signature(test)
        left = [parameter for name, parameter in taken.parameters.items() if name not in words]
        look_at_all.__signature__ = taken.replace(parameters=left)  # type: ignore[attr-defined]
        return look_at_all

    return wrap


def _title(row: tuple[Any, ...], ids: Callable[[Any], object] | None) -> str:
    return "-".join(str(ids(field)) if ids else repr(field) for field in row)[:200]


def _say(error: BaseException) -> str:
    """The message, and the line of the test that raised it."""
    place = ""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    if trace is not None:
        place = f" (line {trace.tb_lineno})"
    words = str(error) if isinstance(error, (AssertionError, pytest.fail.Exception)) else repr(error)
    if isinstance(error, pytest.skip.Exception):
        words = f"skipped: {error}"
    return f"{words or 'assert'}{place}"
