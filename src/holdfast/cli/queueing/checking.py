"""``holdfast queue check``, ``install``, ``uninstall``, ``work``: the roster against the disk, and after a reboot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.consent import confirm, remove_entries
from holdfast.cli.render import clean, note, paint, print_json, table

from .opening import complete_groups, open_queue, start_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.queueing.verification import Report
    from holdfast.model.queue import Cell
    from holdfast.store.queue import Queue

MOST_DONE = 10
"""Cells that are done are named only when they are few."""
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")

CHECK_EPILOG = """\b
holdfast queue check                   every group
holdfast queue check night             one group
holdfast queue check night --deep      read the results whole, and compare them across cells"""

INSTALL_EPILOG = """\b
holdfast queue install                 shows the entry and asks
holdfast queue install --cron --yes    an @reboot line of cron, without a question"""


@click.command("check", short_help="Hold the roster against what is on disk.", epilog=CHECK_EPILOG)
@click.argument("group", required=False, shell_complete=complete_groups)
@click.option("--deep", is_flag=True, help="Read the results whole, and look for the same bytes in several cells.")
@_JSON
def check(*, group: str | None, deep: bool, as_json: bool) -> int:
    """Hold the roster against what is on disk, and say what re-runs the rest.

    Each cell that has run is looked at again: its exit record, the checks after its end, its declared results as they
    are now, its configuration. Cells are done, open, missing, empty, failed, duplicate or unverified; runs that belong
    to no cell are named. What cannot be read is never done. Nothing is changed.

    Exit code 0: every cell is proven done. 1: something is open.
    """
    from holdfast.agent.queueing.verification import reconcile

    with open_queue() as queue:
        report = reconcile(queue, _find_group(queue, group), deep=deep)
    print_json(encode_report(report)) if as_json else print_report(report)
    return 0 if report.complete else 1


def _find_group(queue: Queue, word: str | None) -> str | None:
    from .changing import require_group

    return None if word is None else require_group(queue, word).name


def find_unproven(cells: Sequence[Cell], words: Sequence[str]) -> list[Cell]:
    """Of these cells those that are named one by one, were done, and are not proven done any more."""
    from holdfast.agent.queueing.verification import look_at
    from holdfast.model.queue import CellState

    named = [cell for cell in cells if cell.state is CellState.DONE and {cell.label, cell.run_id} & {*words}]
    return [cell for cell in named if not look_at(cell).done]


def encode_report(report: Report) -> dict[str, Any]:
    """The JSON object of ``queue check --json``."""
    return {
        "groups": report.groups,
        "complete": report.complete,
        "counts": {standing.value: number for standing, number in report.counts.items()},
        "cells": [
            {
                "cell": item.cell.label,
                "state": item.cell.state,
                "standing": item.standing,
                "why": item.why,
                "path": item.path or None,
                "run_id": item.cell.run_id,
                "attempts": item.cell.attempts,
            }
            for item in report.items
        ],
        "remarks": report.remarks,
        "command": report.command,
        "hint": report.hint,
    }


def print_report(report: Report) -> None:
    """The roster for people: how many stand where, each cell that is not done, and the command."""
    total = len(report.items)
    counts = ", ".join(f"{number} {standing.value}" for standing, number in report.counts.items())
    print(f"{total} cell{'' if total == 1 else 's'}{': ' if counts else ''}{counts}")
    shown = [item for item in report.items if not item.done or total <= MOST_DONE]
    if shown:
        rows = [(item.cell.label, paint(item.standing.value), item.why, item.path or None) for item in shown]
        table(("cell", "stands", "evidence", "path"), rows)
    for remark in report.remarks:
        word = "suspicious: " if remark.suspicious and remark.standing.value == "duplicate" else ""
        print(clean(f"{remark.standing.value}: {word}{remark.subject} {remark.why} ({remark.path})"))
    if report.command:
        print(clean(f"re-run what is missing:  {report.command}"))
    if report.hint:
        note(report.hint)


@click.command("install", short_help="Have cron or systemd go on after a reboot.", epilog=INSTALL_EPILOG)
@click.option("--cron", "clock", flag_value="cron", help="An @reboot line of cron.")
@click.option("--systemd", "clock", flag_value="systemd", help="A unit of the systemd user manager.")
@_YES
@_JSON
def install(*, clock: str | None, yes: bool, as_json: bool) -> int:
    """Have this account's queue go on by itself after a restart of the box. The exact entry is shown first.

    The entry starts the queue's worker once. That settles the runs which were lost with the box and begins their next
    attempts, within the bounds of docs/queue.md. Without an entry the next `holdfast queue` does the same. Without
    --cron or --systemd: systemd where its user manager runs, else cron. An earlier entry is replaced.
    """
    from holdfast.agent.patrolling import entries
    from holdfast.agent.queueing import boot

    which = entries.Clock(clock) if clock else boot.choose()
    entry = boot.build(which)
    if not as_json:
        print(entry.text, end="" if entry.text.endswith("\n") else "\n")
    _explain(which is entries.Clock.SYSTEMD)
    confirm(f"Install this {which.value} entry?", yes=yes, as_json=as_json)
    entries.install(entry)
    if as_json:
        print_json({"installed": True, "clock": which.value, "entry": entry.text})
    else:
        note("installed; `holdfast queue uninstall` removes it")
    return 0


def _explain(systemd: bool) -> None:  # noqa: FBT001 - one fact, said where it is asked
    from holdfast.agent.queueing import boot
    from holdfast.host.processes import user_name
    from holdfast.host.sessions import is_lingering

    note(f"what it says will stand in {boot.last_words()}")
    note("a cell whose environment had secrets is held after a reboot: they are kept in memory only")
    user = user_name(os.geteuid())
    if systemd and not is_lingering(user):
        note(
            f"units of {user} start at the first login of {user}, not at boot, and their processes end with the last"
            f" logout; `loginctl enable-linger {user}` changes both"
        )


@click.command("uninstall", short_help="Take that entry away.")
@_YES
@_JSON
def uninstall(*, yes: bool, as_json: bool) -> int:
    """Take away what `holdfast queue install` made, and nothing else. Runs and the queue stay as they are."""
    from holdfast.agent.queueing import boot

    question = "Remove the queue's entry from there?"
    return remove_entries(boot.find_installed(), boot.uninstall, question, yes=yes, as_json=as_json)


@click.command("work", hidden=True)
@click.option("--boot", is_flag=True, help="Say what was found, for the entry of `queue install`.")
def work(*, boot: bool) -> int:
    """See that a worker looks after the queue, and leave."""
    from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES

    with open_queue() as queue:
        left = len(queue.cells(states=(*WAITING_STATES, *ACTIVE_STATES)))
        started = start_worker(queue) if left else False
    if boot:
        from holdfast.host.clock import utc_now

        done = "a worker was started" if started else "no worker was needed" if not left else "a worker is there"
        print(f"{utc_now()} {left} cell{'' if left == 1 else 's'} not over; {done}")
    return 0
