"""``holdfast ls``: runs, newest first, live ones always among them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.render import note, print_json, table
from holdfast.model.units import format_duration

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.store.index import Row

DEFAULT_LIMIT = 30


@click.command(short_help=SUMMARIES["ls"])
@click.option("-a", "--all", "everything", is_flag=True, help="Show every run, however old.")
@click.option("-n", "--limit", default=DEFAULT_LIMIT, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("-s", "--state", "states", multiple=True, metavar="STATE", help="Only these: running, failed, live, ...")
@click.option(
    "--using", metavar="PATH", type=click.Path(), help="Only live runs that execute files below PATH; exit 75 if any."
)
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *, everything: bool, limit: int, states: tuple[str, ...], using: str | None, runs: str | None, as_json: bool
) -> int:
    """List runs, newest first.

    Runs that have not ended are always shown; of the ended ones the newest --limit. A STATE is a lifecycle state or an
    outcome as shown, or `live` for every run that has not ended; give the option several times for several.

    Before a deploy: `holdfast ls --using /srv/code` names the live runs whose files would be overwritten under them,
    and its exit code is then 75.
    """
    rows, notice = _read_rows(runs)
    _check_states(states, rows)
    if notice:
        note(notice)
    if using is not None:
        return _show_users(using, rows, as_json=as_json)
    wanted = [row for row in rows if not states or any(_has_state(row, state) for state in states)]
    shown = wanted if everything else _newest(wanted, limit)
    if as_json:
        print_json({"runs": [_encode(row) for row in shown], "total": len(wanted)})
        return 0
    if shown:
        now = _now()
        table(
            ("run", "state", "time", "cards", "step", "loss", "exit"),
            [_line(row, now) for row in shown],
            right=(2, 4, 5, 6),
        )
    if len(shown) < len(wanted):
        note(f"{len(wanted) - len(shown)} older runs are not shown; --all shows them")
    elif not shown:
        note(f"none of {len(rows)} runs is {' or '.join(states)}" if rows else "no runs yet; holdfast run starts one")
    return 0


def _show_users(path: str, rows: list[Row], *, as_json: bool) -> int:
    from holdfast.agent.in_use import find_users
    from holdfast.model.errors import ResourceBusy

    users = find_users(path, [row.run_id for row in rows if not row.ended])
    if as_json:
        print_json({"path": path, "users": [{"run_id": user.run_id, "files": list(user.files)} for user in users]})
    for user in users if not as_json else ():
        files = ", ".join(user.files) or "its processes could not be looked at"
        note(f"{user.run_id} executes from {path}: {files}")
    if not users and not as_json:
        note(f"no live run executes from {path}")
    return ResourceBusy.exit_code if users else 0


def _read_rows(runs: str | None) -> tuple[list[Row], str | None]:
    import os

    from holdfast.agent.listing import list_runs
    from holdfast.cli.runs import default_root
    from holdfast.store.index import Index

    with Index() as index:
        if runs is None:
            return list_runs(index, [default_root()]), index.notice
        root = os.path.abspath(runs)
        return [row for row in list_runs(index, [root]) if row.root == root], index.notice


def _check_states(states: tuple[str, ...], rows: list[Row]) -> None:
    """A misspelt state would list nothing, which looks like an answer."""
    if not states:
        return
    import difflib

    from holdfast.cli.dossier import PHASES
    from holdfast.model.errors import UsageError
    from holdfast.model.run import Outcome

    words = ["live", *PHASES[:-1], *(outcome.value for outcome in Outcome), "unreadable"]
    for state in states:
        if state not in words and not any(_has_state(row, state) for row in rows):
            near = difflib.get_close_matches(state, words, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(words)}"
            raise UsageError(f"--state: there is no state {state!r}", hint=hint)


def _has_state(row: Row, state: str) -> bool:
    if state == "live":
        return not row.ended
    return row.condition == state or row.condition.startswith(f"{state},")


def _newest(rows: list[Row], limit: int) -> list[Row]:
    shown: list[Row] = []
    left = limit
    for row in rows:
        if row.ended and left <= 0:
            continue
        left -= 1
        shown.append(row)
    return shown


def _line(row: Row, now: float) -> tuple[object, ...]:
    condition = f"{row.condition}: {row.failure}" if row.failure not in ("", row.condition) else row.condition
    return row.run_id, condition, _elapsed(row, now), row.cards or None, row.step, row.loss, row.exit_code


def _elapsed(row: Row, now: float) -> str | None:
    """How long the job ran or has been running; for one that never started, its age or how long it was tried."""
    begin = _epoch(row.started_at or row.created_at)
    end = _epoch(row.ended_at) if row.ended_at else now
    return None if begin is None or end is None else format_duration(end - begin)


def _epoch(text: str | None) -> float | None:
    # datetime is loaded by sqlite3 already; time.strptime would load five modules more.
    try:
        return datetime.fromisoformat(text.rstrip("Z") + "+00:00").timestamp() if text else None
    except ValueError:
        return None


def _now() -> float:
    import time

    return time.time()


def _encode(row: Row) -> dict[str, object]:
    from holdfast.model.ids import name_of

    fields = row._asdict()
    fields.pop("stamp")
    return {**fields, "name": name_of(row.run_id), "run_dir": row.run_dir}
