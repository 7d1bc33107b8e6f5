"""A patrol's look as a record: what `holdfast patrol` prints, and what people are told."""

from __future__ import annotations

import os
from collections.abc import Iterable

from holdfast.core.patrol.evidence import RunStatus
from holdfast.core.patrol.patrol import PatrolRemark
from holdfast.host.process.processes import user_name
from holdfast.host.process.sessions import is_lingering
from holdfast.model.errors import StorageError
from holdfast.model.record import record, replace
from holdfast.store.index import state_directory

from . import patrol, schedule
from .memory import load_memory
from .news import Recalled, recall, say_untold, tell_all, tell_news
from .schedule import ScheduledEntry, TimerKind
from .scheduled import LAST
from .tell import Ways
from .tick import EXIT_ESCALATE, ObservedRun, PatrolResult


@record
class PatrolLine:
    """One run in a look: whether it needs a person, whether that is news, and what is said of it."""

    run_id: str
    run_dir: str
    attempt: int
    standing: RunStatus
    escalate: bool
    news: bool
    alive: bool
    step: int | None
    progress_age_s: float | None
    lines: tuple[PatrolRemark, ...]


@record
class PatrolReport:
    """One look at every run. `blind` is what could not be looked at, and why; `notes` what went wrong besides.

    `other_accounts` is how many runs of others were left alone; `escalate` that a person is needed.
    """

    at: str
    host: str
    summary: str
    exit_code: int
    escalate: bool
    alive: int
    took_s: float
    other_accounts: int
    blind: tuple[str, ...]
    notice: str
    runs: tuple[PatrolLine, ...]
    notes: tuple[str, ...]


def patrol_runs(
    roots: Iterable[str],
    *,
    runs: str | None,
    since_last: bool,
    ways: Ways | None,
    besides: dict[str, str] | None = None,
) -> tuple[PatrolReport, Recalled | None]:
    """Look once at every run of this account under `roots`; with `since_last` what was told before is no news.

    `runs` is the directory that was asked for, None for all. `besides` is what else needs a person, in words by a name
    of its own. Whoever is named in `ways` is told. Where nobody is, the look is to be remembered once it was shown,
    with `news.remember`.

    Raises:
        StorageError: there is no such directory.
    """
    if runs is not None and not os.path.isdir(runs):
        raise StorageError(f"{runs} is no directory that can be looked at", hint="holdfast ls shows where runs are")
    tick, besides = patrol.run_patrol(roots), besides or {}
    if not since_last:
        notes = say_untold(load_memory()) if ways is None else tell_all(tick, besides, ways)
        return _add_besides(describe_tick(tick, tuple(notes)), besides, news=bool(besides)), None
    look = recall(tick, besides=besides)
    news = not besides.keys() <= set(look.before.besides)
    notes = [] if ways is None else tell_news([look], look.tick, ways)
    return _add_besides(describe_tick(look.tick, tuple(notes)), besides, news=news), look if ways is None else None


def _add_besides(report: PatrolReport, besides: dict[str, str], *, news: bool) -> PatrolReport:
    """The record with what needs a person beside the runs; once it was told it is no alarm any more."""
    code = report.exit_code or EXIT_ESCALATE * news
    return replace(report, notes=(*besides.values(), *report.notes), exit_code=code, escalate=bool(code))


def describe_tick(tick: PatrolResult, notes: tuple[str, ...]) -> PatrolReport:
    """The record of a look."""
    return PatrolReport(
        at=tick.at,
        host=tick.host,
        summary=tick.summary,
        exit_code=tick.exit_code,
        escalate=bool(tick.exit_code),
        alive=tick.alive,
        took_s=tick.took_s,
        other_accounts=tick.foreign,
        blind=tick.blind,
        notice=tick.notice,
        runs=tuple(describe_run(seen) for seen in tick.seen),
        notes=notes,
    )


def describe_run(seen: ObservedRun) -> PatrolLine:
    """The record of one run in a look."""
    return PatrolLine(
        run_id=seen.run_id,
        run_dir=seen.run_dir,
        attempt=seen.attempt,
        standing=seen.standing,
        escalate=seen.escalate,
        news=seen.news,
        alive=seen.alive,
        step=seen.step,
        progress_age_s=seen.progress_age_s,
        lines=_lines(seen),
    )


def _lines(seen: ObservedRun) -> tuple[PatrolRemark, ...]:
    return (seen.judgement.ending, *seen.judgement.alarms)


@record
class PlannedEntry:
    """The entry of a clock that would call the patrol, and what is to be known before it is installed."""

    entry: ScheduledEntry
    notes: tuple[str, ...]


def plan_entry(
    clock: str | None, every_s: float, notify_command: str | None, *, by_config: bool = False
) -> PlannedEntry:
    """The entry for a clock (``cron``, ``systemd``; the one that works here without a word).

    With `by_config` whoever the user's own defaults name is told.

    Raises:
        UsageError: there is no such interval.
    """
    which, user = TimerKind(clock) if clock else schedule.choose_timer_kind(), user_name(os.geteuid())
    arguments = ["--notify-command", notify_command] if notify_command else []
    arguments += ["--notify"] if by_config else []
    entry = schedule.build_entry(which, every_s, arguments, seed=f"{user}@{os.uname().nodename}")
    notes = [f"what the last patrol said will stand in {state_directory()}/{LAST}"]
    if not arguments:
        notes.append("nobody is told of it: add --notify-command COMMAND, or: holdfast config set notify.email ADDRESS")
    if which is TimerKind.SYSTEMD and not is_lingering(user):
        notes.append(
            f"timers of {user} run only while {user} is logged in; `loginctl enable-linger {user}` changes that"
        )
    return PlannedEntry(entry, tuple(notes))


@record
class InstalledEntry:
    """A clock's entry that was written."""

    installed: bool
    clock: TimerKind
    every_s: float
    entry: str


def install_entry(planned: PlannedEntry) -> InstalledEntry:
    """Write the entry, in the place of an earlier one.

    Raises:
        StorageError: the clock refused it, or a file cannot be written.
    """
    entry = planned.entry
    schedule.install_entry(entry)
    return InstalledEntry(True, entry.clock, entry.every_s, entry.text)


def find_entries() -> tuple[str, ...]:
    """Where a clock has an entry of ours that calls the patrol, in words."""
    return schedule.find_installed()


def remove_entries() -> tuple[str, ...]:
    """Take every such entry away; answers what was removed.

    Raises:
        StorageError: one could not be removed.
    """
    return schedule.remove_entries()
