"""Runs whose attempts a scheduler starts: what it says of those that have no end on record, or may be begun again.

A reader: it asks and changes nothing. The record of a run is the truth; a scheduler's word says what a run waits for,
and that nobody can write its end any more. A scheduler that does not answer says nothing: then the record stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.agent.scheduler.base import open_scheduler
from holdfast.core.run.outcome import EXIT_LOST, WITNESSED
from holdfast.host.clock import monotonic_s
from holdfast.model.errors import EXIT_STOPPED, HoldfastError
from holdfast.model.record import record, replace
from holdfast.model.run import Outcome
from holdfast.model.scheduler import Phase, SchedulerReport
from holdfast.store.index import IndexRow

from . import observe
from .run_view import RunView, is_never_taken
from .runs.of_scheduler import is_of_scheduler

LOOK_EVERY_S = 10.0
"""How often a scheduler is asked about a run that is waited for; the run's own records are looked at more often."""
AGAIN_S = 2.0
"""How soon after a word that a run is over: its records may be there and not be seen yet, on a network file system."""
MOST_LOOKS = 3
"""So many words in a row that it is over, without a record, are believed."""


def is_open(view: RunView) -> bool:
    """Whether a run goes on as far as is known: it has not ended, or its scheduler begins it again by itself."""
    if not view.scheduler:
        return False
    return not view.over or (view.condition == Outcome.PREEMPTED.value and view.desired is None)


def may_be_queued(view: RunView) -> bool:
    """Whether a job of it may wait in its scheduler's queue: people can have one put back that was not done."""
    return bool(view.scheduler) and not (view.over and view.condition == Outcome.SUCCEEDED.value)


def ask(views: Iterable[RunView]) -> tuple[dict[str, SchedulerReport], str]:
    """What their schedulers say of these runs, by directory; and why one did not answer, empty when all did."""
    return ask_by_name({view.run_dir: view.scheduler for view in views})


def ask_by_name(schedulers: Mapping[str, str]) -> tuple[dict[str, SchedulerReport], str]:
    """As `ask`, of run directories with the name of the scheduler of each."""
    by_name: dict[str, list[str]] = {}
    for run_dir, name in schedulers.items():
        by_name.setdefault(name, []).append(run_dir)
    words: dict[str, SchedulerReport] = {}
    silent = ""
    for name, run_dirs in by_name.items():
        try:
            words.update(open_scheduler(name).look(run_dirs))
        except HoldfastError as error:
            silent = str(error)
    return words, silent


def apply_word(view: RunView, word: SchedulerReport) -> RunView:
    """The run as its scheduler's word makes it."""
    if view.over and word.phase is not Phase.WAITING and not is_open(view):
        # Its job is leaving, or an attempt begins, which speaks for itself.
        return view
    begun = not is_never_taken(view)
    said = f"{word.evidence}; {word.advice}" if word.advice else word.evidence
    if word.phase is Phase.WAITING:
        again = "; it is begun again as the next attempt" if begun else ""
        return replace(view, condition=word.pending, note=said + again)
    if word.phase is Phase.OVER:
        if view.over:
            return view
        outcome, _ = judge_end(view, word)
        words = f"{said}; it left no record of its end, which `holdfast stop {view.run_id}` writes"
        return replace(view, condition=outcome.value, note=words)
    if word.phase is Phase.RUNNING and begun and not view.over:
        return replace(view, note=f"{said}; {view.note}")
    if word.phase is Phase.SUSPENDED and begun and not view.over:
        return replace(view, condition=Phase.SUSPENDED.value, note=f"{said}; nothing of it hears a stop before")
    if word.phase is Phase.UNKNOWN and word.state and not view.over:
        return replace(view, condition=f"unknown ({word.state})" if not begun else view.condition, note=said)
    return replace(view, condition=word.pending if view.over else view.condition, note=said)


def judge_end(view: RunView, word: SchedulerReport) -> tuple[Outcome, int]:
    """Outcome and exit code of a run of which only its scheduler saw the end."""
    if view.desired is not None and is_never_taken(view):
        return Outcome.STOPPED, EXIT_STOPPED  # somebody wanted that, and nothing of it ever ran
    return WITNESSED.get(word.cause, (Outcome.LOST, EXIT_LOST)) if word.cause else (Outcome.LOST, EXIT_LOST)


def hear_rows(rows: Sequence[IndexRow]) -> list[IndexRow]:
    """Rows of a list with what schedulers say: one look for all of them."""
    views: dict[str, RunView] = {}
    for row in rows:
        if is_of_scheduler(row):
            view = observe.observe_run(row.run_dir)
            if may_be_queued(view):
                views[view.run_dir] = view
    if not views:
        return list(rows)
    words, silent = ask(views.values())
    return [_hear(row, views.get(row.run_dir), words, silent) for row in rows]


def _hear(row: IndexRow, view: RunView | None, words: dict[str, SchedulerReport], silent: str) -> IndexRow:
    if view is None:
        return row
    word = words.get(view.run_dir)
    if word is None:
        return row._replace(note=f"{row.note}; {silent}") if silent and is_open(view) else row
    heard = apply_word(view, word)
    if heard is view:
        return row
    changed = row._replace(condition=heard.condition, note=heard.note)
    return changed._replace(ended=False, exit_code=None, ended_at=None, failure="") if view.over else changed


def hear(view: RunView) -> RunView:
    """One run with what its scheduler says; as it is where that says nothing."""
    if not may_be_queued(view):
        return view
    words, silent = ask([view])
    if view.run_dir in words:
        return apply_word(view, words[view.run_dir])
    return replace(view, note=f"{view.note}; {silent}") if silent and is_open(view) else view


class OverWords:
    """A scheduler's words in a row that a run's job is over."""

    def __init__(self) -> None:
        """None so far."""
        self.count = 0

    def hear(self, view: RunView, word: SchedulerReport | None) -> bool:
        """Take a word in; whether the run is over by now, as far as can be known.

        Of one whose end is on record, or that was to be stopped before it began, one word is enough.
        """
        self.count = self.count + 1 if word is not None and word.phase is Phase.OVER else 0
        known = view.over or (view.desired is not None and is_never_taken(view))
        return self.count >= (1 if known else MOST_LOOKS)


@record
class SchedulerAnswer:
    """A scheduler's last word of a run, None without; and whether the run is over, by its record and that word."""

    word: SchedulerReport | None = None
    over: bool = False


class SchedulerEar:
    """Asks a run's scheduler again and again, seldom, for whoever waits for the run."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._next_s = 0.0
        self._overs = OverWords()
        self._was_over = False
        self._heard = SchedulerAnswer()

    def listen(self, view: RunView) -> SchedulerAnswer:
        """What the scheduler said last of this run; asked again when it is time."""
        if not is_open(view):
            return SchedulerAnswer(over=view.over)
        if monotonic_s() < self._next_s and view.over == self._was_over:
            return self._heard
        self._was_over = view.over
        words, _ = ask([view])
        word = words.get(view.run_dir)
        self._heard = SchedulerAnswer(word, over=self._overs.hear(view, word))
        self._next_s = monotonic_s() + (AGAIN_S if self._overs.count else LOOK_EVERY_S)
        return self._heard
