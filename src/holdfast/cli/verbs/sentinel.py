"""``holdfast sentinel``: wait for one thing of one run, in the foreground or detached."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_json, table
from holdfast.model.errors import StorageError, UsageError

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.agent.sentinel import Answer, Condition
    from holdfast.agent.sentinel_records import Record
    from holdfast.cli.runs import Found

EPILOG = """\b
holdfast sentinel digits --for ended                     wait here until it is over
holdfast sentinel digits --for step=5000 -d              wait detached; the outcome is kept
holdfast sentinel digits --for artifact=artifacts/r.json --max 2h
holdfast sentinel digits --for stalled -d --notify-command 'mail -s stalls me@example.org'
holdfast sentinel digits                                 which are armed, and how others ended"""


@click.command(short_help=SUMMARIES["sentinel"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--for",
    "wanted",
    metavar="CONDITION",
    help="ended, started, failed, stalled, step=N or artifact=PATH (in the run).",
)
@click.option("--max", "life", default="12h", show_default=True, metavar="DURATION", help="The most it may live.")
@click.option("-d", "--detach", is_flag=True, help="Wait in a session of its own and record the outcome.")
@click.option(
    "--notify-command", metavar="COMMAND", help="Run this at the end, with the outcome as JSON on its input; no shell."
)
@click.option("--detached", is_flag=True, hidden=True, help="This is the detached one.")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    run: str,
    wanted: str | None,
    life: str,
    detach: bool,
    notify_command: str | None,
    detached: bool,
    runs: str | None,
    as_json: bool,
) -> int:
    """Wait until something is so of a run, then end.

    RUN is its id, the beginning of it, or its name. A sentinel sleeps until the kernel tells of a change. There is one
    per run and condition: a new one ends the earlier one. Without --for: list the sentinels of RUN.

    Exit code 0: it is so. 1: it can no longer come true, or the run is lost. 124: not within --max. 130: it was ended,
    for example by a newer one. With -d: 0 once it is armed.
    """
    from holdfast.agent.sentinel import parse_condition
    from holdfast.cli.runs import find, require_readable
    from holdfast.cli.sentinels import check_words, spawn
    from holdfast.cli.stopping import parse_wait

    condition = None if wanted is None else parse_condition(wanted)
    check_words(notify_command)
    life_s = parse_wait(life)
    assert life_s is not None
    if life_s <= 0:
        raise UsageError("--max must be longer than nothing", hint="write it like 30m")
    found = find(run, root=runs)
    if found.notice:
        note(found.notice)
    require_readable(found)
    if condition is None:
        return _list(found, as_json=as_json)
    if detach:
        return _report_armed(spawn(found, condition, life, notify_command), as_json=as_json)
    return _wait(found, condition, life_s, notify_command, detached=detached, as_json=as_json)


def _list(found: Found, *, as_json: bool) -> int:
    from holdfast.agent.sentinel_records import is_waiting, list_all

    records = [record for _, record in list_all() if record is not None and record.run_id == found.run_id]
    if as_json:
        print_json({"run_id": found.run_id, "sentinels": records})
        return 0
    rows = [
        (
            record.condition,
            record.outcome or ("waiting" if is_waiting(record) else "gone"),
            record.armed_at,
            record.words,
        )
        for record in records
    ]
    if rows:
        table(("for", "state", "armed", "outcome"), rows)
    else:
        note(f"{found.run_id} has no sentinel")
    return 0


def _report_armed(record: Record, *, as_json: bool) -> int:
    if as_json:
        print_json({"armed": not record.outcome, "sentinel": record})
    elif record.outcome:
        print(f"{record.run_id}: {record.condition}: {record.outcome}: {record.words}")
    else:
        print(f"{record.run_id}: waiting for {record.condition} (pid {record.process.pid})")
        note(f"holdfast sentinel {record.run_id} shows how it ended")
    return 0


def _wait(
    found: Found, condition: Condition, life_s: float, notify_command: str | None, *, detached: bool, as_json: bool
) -> int:
    from holdfast.agent import observe, sentinel, sentinel_records
    from holdfast.host import clock, processes

    attempt = max(observe.list_attempts(found.run_dir), default=1)
    record = sentinel_records.Record(
        run_id=found.run_id,
        run_dir=found.run_dir,
        attempt=attempt,
        condition=condition.text,
        host=os.uname().nodename,
        process=processes.identify_self(),
        armed_at=clock.utc_now(),
        until=clock.epoch_s() + life_s,
        detached=detached,
    )
    try:
        superseded = sentinel_records.arm(record)
    except OSError as error:
        raise StorageError(f"the sentinel cannot be recorded: {error}", hint="see XDG_STATE_HOME") from error
    if superseded is not None:
        note(f"took the place of pid {superseded.process.pid}, armed {superseded.armed_at}")
    answer = None
    try:
        answer = sentinel.wait(found.run_dir, condition, max_s=life_s, attempt=attempt)
    finally:
        _finish(record, answer)
    if notify_command and answer.verdict is not sentinel.Verdict.ENDED:
        _tell(notify_command, record, answer)
    if as_json:
        facts = {"verdict": answer.verdict, "words": answer.words, "exit_code": answer.exit_code}
        print_json({"run_id": found.run_id, "attempt": attempt, "condition": condition.text, **facts})
    else:
        note(answer.words)
    return answer.exit_code


def _finish(record: Record, answer: Answer | None) -> None:
    """Leave no record of a foreground wait, however it ended (Ctrl-C too); of a detached one its outcome."""
    from holdfast.agent import sentinel_records

    if answer is None:
        sentinel_records.finish(record, "failed", "it ended without an answer", 70)
    else:
        sentinel_records.finish(record, answer.verdict.value, answer.words, answer.exit_code)


def _tell(command: str, record: Record, answer: Answer) -> None:
    from holdfast.agent.telling import tell
    from holdfast.core.redact import redact_text

    message = {
        "event": "sentinel",
        "run_id": record.run_id,
        "attempt": record.attempt,
        "condition": record.condition,
        "verdict": answer.verdict,
        "words": redact_text(answer.words)[:2000],
        "exit_code": answer.exit_code,
    }
    problem = tell(command, message)
    if problem:
        note(f"nobody was told: {problem}")
