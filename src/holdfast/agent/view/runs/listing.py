"""The list of runs as a record: which are shown, and which live ones execute from a directory."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from holdfast.agent.view.page.phases import PHASES
from holdfast.core.near import find_near
from holdfast.host.clock import find_begin
from holdfast.model.errors import NoSuchRun, ResourceBusy, StorageError, UsageError
from holdfast.model.ids import name_of
from holdfast.model.record import record
from holdfast.model.run import Outcome
from holdfast.model.units import format_count
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
    standstill_s: float | None
    name: str
    run_dir: str
    user: str | None = None


EVERY = "holdfast ls lists all; a place is named so: holdfast ls --on PLACE"
OF_PATROL = {
    "finished": "what a patrol calls so: --state succeeded --state stopped --state preempted --state refused",
    "dead": "what a patrol calls so: --state failed --state timed_out --state lost",
}
"""Words of a patrol's count that are no states: it says whether a run needs somebody, and a list how each ended."""
Row = TypeVar("Row", IndexRow, RunLine)


@record
class RunList:
    """Runs, newest first. `total` is how many there are of those asked for, `known` of all.

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


@record
class RunFilter:
    """Which runs a list is about: of any of these states, of any of these names, begun in that time; without one all.

    A name is that of a run, an id or the beginning of one, or a pattern with ``*`` (`has_name`). `since` and `until`
    are the moments as they were said, and `said` the names, where those of groups became their runs.
    """

    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    since_s: float | None = None
    since: str = ""
    until_s: float | None = None
    until: str = ""
    said: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether every run passes."""
        return not self.states and not self.names and self.since_s is None and self.until_s is None

    def keeps(self, run_id: str, condition: str, *, ended: bool, failure: str, moments: tuple[str | None, ...]) -> bool:
        """Whether this run passes; it began at the first of these moments that is one."""
        begin_s = find_begin(run_id, *moments) or 0.0
        return (
            (self.since_s is None or begin_s >= self.since_s)
            and (self.until_s is None or begin_s < self.until_s)
            and (not self.names or any(has_name(run_id, name) for name in self.names))
            and (not self.states or any(has_state(condition, one, ended=ended, failure=failure) for one in self.states))
        )

    def describe(self) -> str:
        """What every run that passes is: ``is failed and is called lr*``."""
        words = [f"is {' or '.join(self.states)}"] if self.states else []
        words += [f"is called {' or '.join(self.said or self.names)}"] if self.names else []
        words += [f"began since {self.since}"] if self.since else []
        return " and ".join(words + ([f"began before {self.until}"] if self.until else []))


def read_runs(runs: str | None, usual: str, wanted: RunFilter, limit: int | None) -> RunList:
    """The runs that are wanted, below `runs`, else in `usual` and all places that are known.

    Those that have not ended are always among them, of the ended ones the newest `limit`.

    Raises:
        UsageError: there is no such state.
        NoSuchRun: no run has one of the names.
        StorageError: the directory cannot be read.
    """
    rows, notice = _read_rows(runs, usual)
    kept = choose_runs(rows, wanted)
    shown = kept if limit is None else _newest(kept, limit)
    return RunList(tuple(map(describe_row, shown)), len(kept), len(rows), notice)


def choose_runs(rows: Sequence[Row], wanted: RunFilter) -> list[Row]:
    """Those of these runs that are wanted.

    Raises:
        UsageError: there is no such state.
        NoSuchRun: no run has one of the names.
    """
    check_states(wanted.states, [(row.condition, row.ended) for row in rows])
    check_names(wanted.names, [row.run_id for row in rows])
    if wanted.is_open:
        return list(rows)
    return [
        row
        for row in rows
        if wanted.keeps(
            row.run_id,
            row.condition,
            ended=row.ended,
            failure=row.failure,
            moments=(row.started_at, row.created_at),
        )
    ]


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
            hint = "say --state once for each" if "," in state else OF_PATROL.get(state, hint)
            raise UsageError(f"--state: there is no state {state!r}", hint=hint)


def check_names(
    names: Sequence[str], run_ids: Sequence[str], *, places: Collection[str] = (), hint: str = EVERY
) -> None:
    """Refuse a name that none of these runs has, and that is no pattern: an empty list looks like an answer.

    Raises:
        NoSuchRun: no run is called so; its hint is the nearest name, or how a place is listed, else `hint`.
    """
    for name in names:
        if "*" in name or any(has_name(run_id, name) for run_id in run_ids):
            continue
        place, colon, rest = name.partition(":")
        near = find_near(name, dict.fromkeys(map(name_of, run_ids)))
        advice = f"did you mean {near}?" if near else hint
        advice = f"holdfast ls --on {place} {rest}".rstrip() if colon or name in places else advice
        raise NoSuchRun(f"of {format_count(len(run_ids), 'run')} none is called {name!r}", hint=advice)


def has_name(run_id: str, name: str) -> bool:
    """Whether a run is one that `name` means: a pattern that begins with a year is also one of ids."""
    if "*" not in name:
        return name == name_of(run_id) or (name != "" and run_id.startswith(name))
    return fnmatchcase(name_of(run_id), name) or (name[:4].isdecimal() and fnmatchcase(run_id, name))


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
