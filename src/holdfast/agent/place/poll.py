"""``poll [--limit N] [ID...]``: many runs of this box in one process, for a desk far away.

Answers one JSON object: ``runs`` (what ``holdfast ls --json`` has of each, and what `describe_run` adds), ``known``
(how many there are), ``complete`` (there are no other runs), ``absent`` (ids that were asked for and are not there),
``missing_roots`` (directories of runs that cannot be read now: nothing follows for what was in them) and ``notice``.
With ids alone these runs are looked at; with ``--limit``, or without ids, all that have not ended, the newest N that
have, and the ids too. The runs are those that ``holdfast ls`` finds here.

A reader: it changes nothing of any run (docs/adr/0020).
"""

from __future__ import annotations

import json
import os
from itertools import islice

from holdfast.agent.view import observe, run_view
from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.runs.row import build_row
from holdfast.agent.view.scheduled import hear_rows
from holdfast.host import clock
from holdfast.model.errors import UsageError
from holdfast.model.ids import is_run_id, name_of
from holdfast.model.record import record
from holdfast.store.index import Index

from .answer import answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from holdfast.store.index import IndexRow

    Row = dict[str, Any]
    Views = dict[str, run_view.RunView]

DEFAULT_LIMIT = 30
MOST_ROWS = 5000
MOST_ROW_BYTES = 7 << 20
"""Of all rows together: a desk takes 8 MiB."""
LONGEST_TEXT = 300


@record
class Question:
    """What is asked: these runs, and with a `limit` all that have not ended and the newest ended ones."""

    ids: tuple[str, ...] = ()
    limit: int | None = DEFAULT_LIMIT


def main(words: list[str]) -> int:
    """Answer once; the exit code."""
    return answer(lambda: answer_question(_parse_words(words)))


def answer_question(question: Question) -> Row:
    """What can be seen of the runs that are asked about, wherever runs of this account are."""
    places = list_roots()
    missing = [place for place in places if not _is_readable(place)]
    now = clock.utc_now()
    views: Views = {}
    rows, known, notice = _list_rows(places, views) if question.limit is not None else ([], 0, None)
    shown = _newest(rows, question.limit or 0)
    have = {row.run_id for row in shown}
    listed = {row.run_id: row for row in rows}
    absent = []
    for run_id in dict.fromkeys(question.ids):
        row = listed.get(run_id) or _look_for(run_id, places, views)
        if row is None:
            absent.append(run_id)
        elif run_id not in have:
            shown.append(row)
            have.add(run_id)
    described = take_most(describe_run(row, views.get(row.run_id), now) for row in shown)
    return {
        "runs": described,
        "known": known,
        "complete": question.limit is not None and len(rows) == len(shown) == len(described),
        "absent": absent,
        "missing_roots": missing,
        "notice": notice,
    }


def take_most(rows: Iterator[Row]) -> list[Row]:
    """As many rows as one answer holds."""
    taken: list[Row] = []
    left = MOST_ROW_BYTES
    for row in islice(rows, MOST_ROWS):
        left -= len(json.dumps(row)) + 2
        if left < 0:
            break
        taken.append(row)
    return taken


def describe_run(row: IndexRow, view: run_view.RunView | None, now: str) -> Row:
    """What ``ls --json`` has of a run, and besides, by this box's own clock, how long it ran (`elapsed_s`).

    Of one that has not ended too: what is wanted of it (`desired`), who began it from which desk (`submitted_by`,
    `submitted_from`), and whether nobody is left of it (`vanished`).
    """
    fields: Row = {
        key: value[:LONGEST_TEXT] if isinstance(value, str) and key not in ("root", "run_id") else value
        for key, value in row._asdict().items()
        if key != "stamp"
    }
    begin, end = _epoch(row.started_at or row.created_at), _epoch(row.ended_at or now)
    more: Row = {"elapsed_s": None if begin is None or end is None else round(max(0.0, end - begin), 1)}
    if view is not None and not view.over:
        more["desired"] = None if view.desired is None else view.desired.kind.value
        more["submitted_by"], more["submitted_from"] = (_text(view.record.get(key)) for key in ("by", "desk"))
        more["vanished"] = view.vanished
    return {**fields, "name": name_of(row.run_id), "run_dir": row.run_dir, **more}


def describe_view(view: run_view.RunView) -> Row:
    """What an answer has of one run."""
    return describe_run(build_row(view, os.path.dirname(view.run_dir)), view, clock.utc_now())


def _list_rows(places: Sequence[str], views: Views) -> tuple[list[IndexRow], int, str | None]:
    def read(root: str, run_id: str) -> IndexRow:
        view = views[run_id] = observe.observe_run(f"{root}/{run_id}")
        return build_row(view, root)

    with Index() as index:
        rows = hear_rows(index.sync(places, read))
        return rows, len(rows), index.notice


def _look_for(run_id: str, places: Sequence[str], views: Views) -> IndexRow | None:
    for root in places:
        if os.path.isdir(f"{root}/{run_id}"):
            view = views[run_id] = observe.observe_run(f"{root}/{run_id}")
            return hear_rows([build_row(view, root)])[0]
    return None


def _newest(rows: Sequence[IndexRow], limit: int) -> list[IndexRow]:
    """All that have not ended, and the newest `limit` that have; newest first, as the rows are."""
    shown, left = [], limit
    for row in rows:
        if not row.ended or left > 0:
            shown.append(row)
            left -= row.ended
    return shown


def _is_readable(root: str) -> bool:
    return os.access(root, os.R_OK | os.X_OK, effective_ids=True)


def _epoch(text: str | None) -> float | None:
    try:
        return clock.parse_utc(text) if text else None
    except ValueError:
        return None


def _text(value: object) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def _parse_words(words: Sequence[str]) -> Question:
    ids: list[str] = []
    limit: int | None = None
    rest = iter(words)
    for word in rest:
        if word == "--limit":
            limit = _check_limit(next(rest, ""))
        else:
            ids.append(_check_id(word))
    return Question(tuple(ids), DEFAULT_LIMIT if limit is None and not ids else limit)


def _check_limit(text: str) -> int:
    try:
        return max(0, min(MOST_ROWS, int(text)))
    except ValueError:
        raise UsageError(f"poll --limit: {text!r} is no number") from None


def _check_id(text: str) -> str:
    if not is_run_id(text):
        raise UsageError(f"poll: {text!r} is no run id")
    return text
