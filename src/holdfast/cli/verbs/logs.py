"""``holdfast logs``: the job's output, the supervisor's messages, or the events of a run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_json
from holdfast.model.errors import NoSuchRun, UsageError

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.cli.runs import Found

HEADED = 2
"""From this many attempts on each one shown gets a heading."""


@click.command(short_help=SUMMARIES["logs"])
@click.argument("run", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the run is over.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines. [default: all]")
@click.option("--supervisor", is_flag=True, help="The supervisor's own messages instead.")
@click.option("--events", is_flag=True, help="The event stream (one JSON object a line) instead.")
@click.option("--attempt", metavar="N|all", help="Which attempt. [default: the newest]")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the lines instead of text.")
def command(
    *,
    run: str,
    follow: bool,
    lines: int | None,
    supervisor: bool,
    events: bool,
    attempt: str | None,
    runs: str | None,
    as_json: bool,
) -> int:
    """Print or follow the output of RUN (its id, the beginning of it, or its name), live or ended.

    The job's bytes are printed as they are. Where the middle was cut because the output is capped, a line in it says
    how much went.
    """
    from holdfast.cli.runs import find
    from holdfast.model import wire

    if supervisor and events:
        raise UsageError("--supervisor and --events exclude each other", hint="choose one")
    if follow and as_json:
        raise UsageError("--follow prints as it comes; --json is one object", hint="leave one out, or follow --events")
    found = find(run, root=runs)
    if found.notice:
        note(found.notice)
    name = wire.SUPERVISOR_LOG if supervisor else wire.EVENTS if events else wire.OUTPUT
    numbers = _choose_attempts(found, attempt)
    if as_json:
        texts = [_read(found, number, name, lines) for number in numbers]
        print_json({"run_id": found.run_id, "file": name, "attempts": texts})
        return 0
    for number in numbers:
        if len(numbers) >= HEADED:
            note(f"attempt {number}")
        _print(found, number, name, lines=lines, follow=follow and number == numbers[-1])
    return 0


def _choose_attempts(found: Found, asked: str | None) -> tuple[int, ...]:
    from holdfast.agent.observe import list_attempts
    from holdfast.cli.runs import require_readable

    attempts = list_attempts(found.run_dir)
    require_readable(found)
    if not attempts:
        raise NoSuchRun(f"{found.run_id} has no attempt yet", hint=f"holdfast show {found.run_id}")
    if asked is None:
        return attempts[-1:]
    if asked == "all":
        return attempts
    if not asked.isascii() or not asked.isdigit() or int(asked) not in attempts:
        known = ", ".join(map(str, attempts))
        raise UsageError(f"{found.run_id} has no attempt {asked!r}", hint=f"it has {known}; or say `all`")
    return (int(asked),)


def _path(found: Found, attempt: int, name: str) -> str:
    from holdfast.model import wire

    return f"{wire.attempt_dir(found.run_dir, attempt)}/{name}"


def _print(found: Found, attempt: int, name: str, *, lines: int | None, follow: bool) -> None:
    from holdfast.agent.tail import Follower, find_last_lines
    from holdfast.cli.attach import write_fully

    path = _path(found, attempt, name)
    if not follow and not os.path.lexists(path):
        from holdfast.agent.observe import observe

        view = observe(found.run_dir, attempt=attempt)
        how = f"{view.condition}: {view.note}" if view.note else view.condition
        note(f"attempt {attempt} of {found.run_id} has written no {name}; {how}")
        return
    offset = 0 if lines is None else find_last_lines(path, lines)
    sys.stdout.flush()
    follower = Follower(path, offset)
    try:
        if follow:
            _follow(found, attempt, follower)
            return
        for data in follower.read():
            write_fully(sys.stdout.buffer, data)
    finally:
        follower.close()


def _follow(found: Found, attempt: int, follower: object) -> None:
    from holdfast.agent import acting, observe
    from holdfast.agent.changes import Changes
    from holdfast.agent.observe import Reach
    from holdfast.agent.tail import Follower
    from holdfast.cli.attach import write_fully
    from holdfast.model import wire

    assert isinstance(follower, Follower)
    view = observe.observe(found.run_dir, attempt=attempt)
    local = view.reach is Reach.HERE
    directory = wire.attempt_dir(found.run_dir, attempt)
    with Changes(directory, local=local) as changes:
        look = True
        while True:
            if look:
                view = observe.observe(found.run_dir, attempt=attempt)
            for data in follower.read():
                write_fully(sys.stdout.buffer, data)
            if view.over or view.vanished or (view.ended and not view.supervised):
                for data in follower.read_rest():
                    write_fully(sys.stdout.buffer, data)
                note(f"{found.run_id} {view.condition}: {view.note}")
                return
            acting.watch_processes(changes, view)
            changed = changes.wait()
            look = changed != frozenset({wire.OUTPUT})


def _read(found: Found, attempt: int, name: str, lines: int | None) -> dict[str, object]:
    from holdfast.agent.tail import Follower, find_last_lines

    path = _path(found, attempt, name)
    follower = Follower(path, 0 if lines is None else find_last_lines(path, lines))
    try:
        text = b"".join(follower.read()).decode("utf-8", "replace")
    finally:
        follower.close()
    return {"attempt": attempt, "path": path, "exists": os.path.exists(path), "lines": text.splitlines()}
