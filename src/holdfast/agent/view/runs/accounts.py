"""The runs of every account of this box, as far as this account may look: for administrators above all.

Looked into are the usual runs root of each account, the directories that leases name, and the roots that this account
knows. Of a run that is closed to us what its public lease says is shown, and nothing more. What others chose is looked
into by a child process: a mount of theirs that hangs costs seconds, and is named.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.agent.view.runs.roots import list_roots
from holdfast.host.clock import monotonic_s
from holdfast.host.lease import records
from holdfast.host.lease.area import open_existing_area
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.processes import user_name
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import is_run_id, name_of
from holdfast.model.lease import LeasePhase
from holdfast.store.paths import HOME_RUNS

from .listing import RunFilter, RunLine, RunList, choose_runs, describe_row
from .row import read_row

if TYPE_CHECKING:
    from holdfast.model.lease import LeaseRecord

MOST_READ = 200
"""Runs of one root that are read, the newest; who has more lists them as that account."""
MOST_ENTRIES = 50_000
MOST_NAMED = 5
AT_ONCE = 16
ALL_LIMIT_S = 5.0
ONE_LIMIT_S = 2.0
TOTAL_LIMIT_S = 15.0
"""Seconds for all directories together; for each that is read apart then; and until no more of them are begun."""


def read_all_accounts(wanted: RunFilter, limit: int | None) -> RunList:
    """The runs of all accounts that are wanted, newest first: those that have not ended, of the others `limit`.

    Raises:
        UsageError: there is no such state.
        NoSuchRun: no run has one of the names.
    """
    leases, unread = _read_leases()
    lines, closed = [], 0
    answers, unseen = _read_roots(_list_account_roots(leases), _read_root)
    cut = any(more for _, more in answers)
    for found, _ in answers:
        lines += [wire.decode(RunLine, line) for line in found]
    seen = {line.run_id for line in lines}
    for record in leases:
        if record.run_id not in seen:
            closed += 1
            lines.append(_describe_lease(record))
    lines.sort(key=lambda line: line.run_id, reverse=True)
    chosen = choose_runs(lines, wanted)
    ended = [line for line in chosen if line.ended][:limit]
    kept = {line.run_dir for line in ended}
    shown = [line for line in chosen if not line.ended or line.run_dir in kept]
    notes = [f"of a directory of runs the newest {MOST_READ} were read"] if cut else []
    if closed:
        notes.append(f"{closed} of these are closed to this account: their leases say what is shown")
    if unseen:
        more = f" and {len(unseen) - MOST_NAMED} more" if len(unseen) > MOST_NAMED else ""
        notes.append(f"not read, since they gave no answer: {', '.join(unseen[:MOST_NAMED])}{more}")
    if unread:
        notes.append(f"the leases of this box cannot be read, and closed runs are not here: {unread}")
    return RunList(tuple(shown), len(chosen), len(lines), "; ".join(notes) or None)


def find_of_account(run_id: str) -> str | None:
    """The directory of a run of any account, by its whole id; None when none can be seen."""
    if not is_run_id(run_id):
        return None
    answers, _ = _read_roots(_list_account_roots(_read_leases()[0]), lambda root: _find(f"{root}/{run_id}"))
    return next((path for path in answers if path is not None), None)


def _find(path: str) -> str | None:
    return path if os.path.isdir(path) and not os.path.islink(path) else None


def _read_leases() -> tuple[list[LeaseRecord], str]:
    """The leases that hold, one for each run; and why they cannot be read, empty when they can."""
    try:
        area = open_existing_area()
        found = () if area is None else records.read_records(area)[0]
        judge = records.Judge()
        held = [one.record for one in found if judge.judge(one).holds]
    except (HoldfastError, OSError) as error:
        return [], str(error)
    return list({record.run_id: record for record in held}.values()), ""


def _list_account_roots(leases: Sequence[LeaseRecord]) -> list[str]:
    homes = [HOME_RUNS.replace("~", account.pw_dir, 1) for account in pwd.getpwall() if account.pw_dir != "/"]
    leased = [os.path.dirname(record.run_dir) for record in leases if record.run_dir.endswith(f"/{record.run_id}")]
    return list(dict.fromkeys((*list_roots(), *leased, *homes)))


def _read_roots(roots: Sequence[str], read: Callable[[str], Any]) -> tuple[list[Any], list[str]]:
    """What `read` says of each root that is there, once for each directory; and the roots that gave no answer.

    One child reads all. Only if it hangs each root gets a child of its own, a few at a time.
    """

    def read_all(some: Sequence[str]) -> list[Any]:
        places = dict.fromkeys(os.path.realpath(root) for root in some if os.path.isdir(root))
        return [(place, read(place)) for place in places]

    unseen: list[str] = []
    found: dict[str, Any] = {}
    try:
        found.update(Offload(lambda: read_all(roots)).wait(ALL_LIMIT_S))
    except OffloadFailed:
        until = monotonic_s() + TOTAL_LIMIT_S
        for begin in range(0, len(roots), AT_ONCE):
            some = roots[begin : begin + AT_ONCE]
            if monotonic_s() >= until:
                unseen += some
                continue
            works = [(root, Offload(lambda root=root: read_all([root]))) for root in some]  # type: ignore[misc]
            for root, work in works:
                try:
                    found.update(work.wait(ONE_LIMIT_S, since_start=True))
                except OffloadFailed:
                    unseen.append(root)
    return list(found.values()), unseen


def _read_root(root: str) -> tuple[list[Any], bool]:
    """The runs of a root as JSON, and whether there are more."""
    names, more = _list_runs(root)
    return [wire.encode(line) for name in names if (line := _read(root, name)) is not None], more


def _list_runs(root: str) -> tuple[list[str], bool]:
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in islice(entries, MOST_ENTRIES) if is_run_id(entry.name)]
    except OSError:
        return [], False
    return sorted(names, reverse=True)[:MOST_READ], len(names) > MOST_READ


def _read(root: str, run_id: str) -> RunLine | None:
    """One run; None where we may not look into it."""
    path = f"{root}/{run_id}"
    try:
        owner = os.lstat(path).st_uid
    except OSError:
        return None
    if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
        return None
    return describe_row(read_row(root, run_id), user_name(owner))


def _describe_lease(record: LeaseRecord) -> RunLine:
    return RunLine(
        root=os.path.dirname(record.run_dir),
        run_id=record.run_id,
        attempt=record.attempt,
        condition="running" if record.phase is LeasePhase.RUN else record.phase.value,
        exit_code=None,
        created_at=record.since,
        started_at=record.since,
        ended_at=None,
        cards=",".join(str(device.index) for device in record.devices),
        step=None,
        loss=None,
        note=record.command,
        failure="",
        ended=False,
        planned_steps=None,
        left_s=None,
        standstill_s=None,
        name=name_of(record.run_id),
        run_dir=record.run_dir,
        user=record.user,
    )
