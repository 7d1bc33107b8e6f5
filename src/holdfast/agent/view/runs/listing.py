"""The list of runs as a record: which are shown, and which live ones execute from a directory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.agent.view.page.phases import PHASES
from holdfast.core.near import find_near
from holdfast.model.errors import ResourceBusy, StorageError, UsageError
from holdfast.model.ids import name_of
from holdfast.model.record import record
from holdfast.model.run import Outcome
from holdfast.model.verdict import FailureClass
from holdfast.store.index import Index, IndexRow, list_run_ids

from .live_users import LiveUser, find_users
from .rows import list_runs


@record
class RunLine:
    """One run as a list shows it; see `store.index.IndexRow`. `name` is its human name.

    `user` is its account, in a list of all accounts.
    """

    root: str
    run_id: str
    attempt: int
    condition: str
    exit_code: int | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    cards: str
    step: int | None
    loss: str | None
    note: str
    failure: str
    ended: bool
    planned_steps: int | None
    left_s: float | None
    name: str
    run_dir: str
    user: str | None = None


@record
class RunList:
    """Runs, newest first. `total` is how many there are of the states that were asked for, `known` of all.

    `notice` is a sentence for people about the index, None when it is well.
    """

    runs: tuple[RunLine, ...]
    total: int
    known: int
    notice: str | None


@record
class LiveUsers:
    """Live runs that execute files below `path`; exit code 75 if there are any."""

    path: str
    users: tuple[LiveUser, ...]
    notice: str | None
    exit_code: int


def read_runs(runs: str | None, usual: str, states: Sequence[str], limit: int | None) -> RunList:
    """The runs of some states (all without one), below `runs`, else in `usual` and all places that are known.

    Those that have not ended are always among them, of the ended ones the newest `limit`.

    Raises:
        UsageError: there is no such state.
        StorageError: the directory cannot be read.
    """
    rows, notice = _read_rows(runs, usual)
    check_states(states, [(row.condition, row.ended) for row in rows])
    wanted = [
        row
        for row in rows
        if not states or any(has_state(row.condition, state, ended=row.ended, failure=row.failure) for state in states)
    ]
    shown = wanted if limit is None else _newest(wanted, limit)
    return RunList(tuple(map(describe_row, shown)), len(wanted), len(rows), notice)


def find_runs_using(path: str, runs: str | None, usual: str, states: Sequence[str]) -> LiveUsers:
    """Which live runs would lose files under them if `path` were overwritten.

    Raises:
        UsageError: there is no such state.
    """
    rows, notice = _read_rows(runs, usual)
    check_states(states, [(row.condition, row.ended) for row in rows])
    users = find_users(path, [row.run_id for row in rows if not row.ended])
    return LiveUsers(path, users, notice, ResourceBusy.exit_code if users else 0)


def _read_rows(runs: str | None, usual: str) -> tuple[list[IndexRow], str | None]:
    root = usual if runs is None else os.path.abspath(runs)
    try:
        list_run_ids(root)
    except FileNotFoundError:
        pass
    except OSError as error:
        hint = "see who owns it; --runs names another directory"
        raise StorageError(f"the runs directory {root} cannot be read: {error.strerror}", hint=hint) from error
    with Index() as index:
        if runs is None:
            return list_runs(index, [root]), index.notice
        return [row for row in list_runs(index, [root]) if row.root == root], index.notice


def describe_row(row: IndexRow, user: str | None = None) -> RunLine:
    """A row as a list shows it."""
    fields = row._asdict()
    fields.pop("stamp")
    return RunLine(**fields, name=name_of(row.run_id), run_dir=row.run_dir, user=user)


def check_states(states: Sequence[str], seen: Sequence[tuple[str, bool]]) -> None:
    """Refuse a misspelt state, which would list nothing: that looks like an answer.

    `seen` are the runs that there are: condition, and whether it has ended.

    Raises:
        UsageError: there is no such state.
    """
    if not states:
        return
    words = ["live", *PHASES[:-1], *(outcome.value for outcome in Outcome), "unreadable"]
    taken = (*words, *(item.value for item in FailureClass))
    for state in states:
        if state not in taken and not any(has_state(condition, state, ended=ended) for condition, ended in seen):
            near = find_near(state, taken)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(words)}, and classes: refused, bug, ..."
            hint = "say --state once for each" if "," in state else hint
            raise UsageError(f"--state: there is no state {state!r}", hint=hint)


def has_state(condition: str, state: str, *, ended: bool, failure: str = "") -> bool:
    """Whether a run of this condition, and of this class if it failed, is one that ``--state`` means."""
    if state == "live":
        return not ended
    return state in (condition, failure) or condition.startswith(f"{state},")


def _newest(rows: list[IndexRow], limit: int) -> list[IndexRow]:
    shown: list[IndexRow] = []
    left = limit
    for row in rows:
        if row.ended and left <= 0:
            continue
        left -= 1
        shown.append(row)
    return shown
