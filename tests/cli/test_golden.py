"""What `ls`, `show`, `queue` and `gpus` print, to the letter, over a state directory that an earlier holdfast left.

`tests/fixtures/state` was written once, by the program, on a box named b17: runs that have succeeded, failed, run and
wait for cards, a queue, a lease and a place in line over simulated cards. It is never written again: what an upgrade
finds must stay readable. The texts in `tests/golden` follow the program: UPDATE_GOLDEN=1 has this file write them anew,
and the diff is what a user sees change.
"""

from __future__ import annotations

import difflib
import json
import os
import pwd
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process.processes import identify_self
from holdfast.host.process.table import own_pid_namespace
from holdfast.model import wire
from holdfast.store.paths import queue_directory
from tests.cli.queues import say
from tests.each import each
from tests.json_forms import find_faults

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cli

FIXTURE = Path(__file__).parents[1] / "fixtures" / "state"
GOLDEN = Path(__file__).parents[1] / "golden"
AN_HOUR_LATER = 1795354651.0
"""2026-11-22T13:37:31Z, by which this box is an hour behind the last record."""
COMMANDS = {
    "ls": ("ls",),
    "show-succeeded": ("show", "prepare"),
    "show-failed": ("show", "broken"),
    "show-running": ("show", "digits"),
    "show-waiting": ("show", "lr-2"),
    "show-job": ("show", "lr-1"),
    "queue": ("queue",),
    "queue-show-done": ("queue", "show", "night/lr-1"),
    "queue-show-failed": ("queue", "show", "night/typo"),
    "queue-show-running": ("queue", "show", "night/lr-2"),
    "queue-show-blocked": ("queue", "show", "night/eval"),
    "queue-show-paused": ("queue", "show", "day/tidy"),
    "gpus": ("gpus",),
}


@pytest.fixture
def state(isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A copy of the fixture as this box's own state; answers what stands for what in the golden texts.

    The runs stay those of another box. The lease is put onto this one, with this process as its supervisor: the lease
    of a process that is gone is void.
    """
    names = {"RUNS": isolated_environment["HOLDFAST_RUNS"], "LEASES": isolated_environment["HOLDFAST_LEASE_DIR"]}
    names["QUEUE"] = queue_directory()
    for name, place in names.items():
        shutil.copytree(FIXTURE / name.lower(), place, dirs_exist_ok=True)
    for directory in (names["QUEUE"], f"{names['QUEUE']}/journal", f"{names['QUEUE']}/environments"):
        os.chmod(directory, 0o700)
    # What git does not keep of a directory: a lease area is for everybody.
    os.chmod(names["LEASES"], 0o1777)
    (database,) = Path(names["QUEUE"]).glob("queue.*.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update submissions set runs_root = ?", (names["RUNS"],))
    (lease,) = Path(names["LEASES"]).glob("lease-*.json")
    record = json.loads(lease.read_text())
    record.update(uid=os.geteuid(), pid_namespace=own_pid_namespace(), host=os.uname().nodename, members=[])
    record["supervisor"] = wire.encode(identify_self())
    lease.write_text(json.dumps(record))
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", str(FIXTURE / "cards.json"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(time, "time", lambda: AN_HOUR_LATER)
    account = SimpleNamespace(pw_name="anna", pw_dir=isolated_environment["HOME"])
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    with pytest.MonkeyPatch.context() as zone:
        zone.setenv("TZ", "UTC")
        time.tzset()
        yield names
    time.tzset()


def test_whoever_looks_changes_nothing(state: dict[str, str]) -> None:
    places = [state["RUNS"], state["LEASES"]]
    before = [read_tree(place) for place in places]
    for words in COMMANDS.values():
        say(*words)
        say(*words, "--json")
    assert [read_tree(place) for place in places] == before


def read_tree(place: str) -> dict[str, tuple[bytes, float]]:
    """Content and time of change of each file, a directory's names with it."""
    found = {}
    for path in sorted(Path(place).rglob("*")):
        found[str(path)] = (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime)
    return found


@each("name", COMMANDS)
def test_the_text_is_the_golden_one(state: dict[str, str], name: str) -> None:
    said = say(*COMMANDS[name])
    text = said.out + (f"--- standard error ---\n{said.err}" if said.err else "") + f"--- exit code {said.code} ---\n"
    for what, place in state.items():
        text = text.replace(place, f"${what}")
    text = text.replace(f"pid {os.getpid()}", "pid $PID")
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    wanted = golden.read_text()
    assert text == wanted, "".join(
        difflib.unified_diff(wanted.splitlines(True), text.splitlines(True), "golden", "now")
    )


JSON_COMMANDS = {
    "ls": ("ls",),
    "show": ("show", "digits"),
    "show --diff": ("show", "--diff", "broken"),
    "logs": ("logs", "broken", "prepare"),
    "metrics": ("metrics", "digits"),
    "gpus": ("gpus",),
    "gpus reservations": ("gpus", "reservations"),
    "stop": ("stop", "broken", "prepare"),
    "rm": ("rm", "--dry-run", "broken"),
    "queue": ("queue",),
    "queue show": ("queue", "show", "night/lr-2"),
    "queue check": ("queue", "check", "night"),
    "patrol": ("patrol",),
    "handbook": ("handbook", "digits"),
}


@each("verb", JSON_COMMANDS)
def test_what_json_says_has_the_form_of_the_schema(state: dict[str, str], verb: str) -> None:
    assert state
    said = say(*JSON_COMMANDS[verb], "--json")
    faults = find_faults(verb, json.loads(said.out))
    assert not faults, faults[:5]
