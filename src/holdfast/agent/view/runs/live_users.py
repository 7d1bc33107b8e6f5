"""Live runs that execute files below a path: asked by a deploy before it overwrites anything (PROC-21).

Proof is taken from the processes themselves: their executable, the files that their argument vectors name, and what
they have mapped. A run whose processes cannot be looked at is told as unknown, not as free.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from holdfast.host.process.processes import find_marked
from holdfast.model.identity import ProcessId
from holdfast.model.record import record

MOST_FILES = 20
MOST_WORDS = 1 << 20
"""Bytes of a command line: any process can say that gigabytes are its arguments."""


@record
class LiveUser:
    """One live run and the files below the path that it executes from; `files` empty: it could not be looked at."""

    run_id: str
    files: tuple[str, ...]


def find_users(path: str, run_ids: Iterable[str]) -> tuple[LiveUser, ...]:
    """The runs among `run_ids` (live ones) that use files below `path`."""
    top = os.path.realpath(path)
    users = []
    for run_id in run_ids:
        processes = find_marked(run_id)
        found = sorted({name for process in processes for name in _list_files(process, top)})
        if found or not processes:
            users.append(LiveUser(run_id, tuple(found[:MOST_FILES])))
    return tuple(users)


def _list_files(process: ProcessId, top: str) -> Iterable[str]:
    base = f"/proc/{process.pid}"
    try:
        cwd = os.readlink(f"{base}/cwd")
        with open(f"{base}/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read(MOST_WORDS).split(b"\0") if word]
        with open(f"{base}/maps", encoding="utf-8", errors="surrogateescape") as file:
            mapped = {line.split(None, 5)[5].rstrip("\n") for line in file if line.count(" /")}
    except OSError:
        return
    named = {os.path.realpath(os.path.join(cwd, word)) for word in words if len(word) < 4096}
    for name in named | mapped:
        if (name == top or name.startswith(top.rstrip("/") + "/")) and os.path.isfile(name):
            yield name
