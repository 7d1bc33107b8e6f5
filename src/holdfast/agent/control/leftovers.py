"""Ending what earlier runs left behind (PRE-22, B-65): only what `view.runs.leftovers` has proven, and proves again.

Between look and act a number may get a new owner: so the proof is made again while a pidfd is held, and the signal
goes through that pidfd. TERM first, KILL after a grace. Each act is one line in ``reaper.jsonl`` of the account's state
directory.
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

from holdfast.agent.view.runs.leftovers import Leftover, SparedProcess, prove_leftover
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.host.files.ownership import make_own_directory
from holdfast.host.process import pidfd
from holdfast.host.process.processes import is_alive, read_stat
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.record import asdict, record
from holdfast.store.index import state_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

GRACE_S = 10.0
KILL_WAIT_S = 2.0
AUDIT = "reaper.jsonl"


@record
class ReapedProcess:
    """What became of one leftover: ``ended`` (after TERM), ``killed``, ``gone`` before, ``spared``, or ``alive``."""

    leftover: Leftover
    outcome: str
    words: str = ""


def end_leftovers(
    leftovers: Iterable[Leftover], *, grace_s: float = GRACE_S, audit: str | None = None
) -> tuple[ReapedProcess, ...]:
    """End these, as far as each is still what it was: TERM, `grace_s` seconds, KILL. `audit` is the record's path.

    Raises:
        StorageError: the record of what is done cannot be written; nothing was signalled.
    """
    path = audit or _audit_path()
    chosen = list(leftovers)
    _record(path, {"event": "begin", "pids": [one.process.pid for one in chosen]})
    held: list[tuple[Leftover, pidfd.HeldProcess]] = []
    done: list[ReapedProcess] = []
    try:
        for one in chosen:
            process, outcome = _take(one)
            if process is None:
                done.append(outcome)
                continue
            held.append((one, process))
            _send(process, signal.SIGTERM)
            _send(process, signal.SIGCONT)
        done += _finish(held, grace_s)
    finally:
        for _, process in held:
            process.close()
    for end in done:
        facts = {"event": end.outcome, "words": end.words, **asdict(end.leftover)}
        _record(path, facts, required=False)
    return tuple(done)


def _take(one: Leftover) -> tuple[pidfd.HeldProcess | None, ReapedProcess]:
    """A leftover that is still proven, held; or None and what became of it."""
    gone = ReapedProcess(one, "gone", "it had ended by itself")
    try:
        held = pidfd.hold_process(one.process)
    except OSError as error:
        return None, ReapedProcess(one, "alive", f"not signalled: {error.strerror}")
    if held is None:
        return None, gone
    again = prove_leftover(one.process.pid)
    if isinstance(again, Leftover) and again.process == one.process and again.run_id == one.run_id:
        return held, gone
    held.close()
    if not is_alive(one.process):
        return None, gone
    why = again.why if isinstance(again, SparedProcess) else "it is not provably of an ended run any more"
    return None, ReapedProcess(one, "spared", why)


def _send(process: pidfd.HeldProcess, number: int) -> None:
    try:
        process.send(number)
    except OSError:
        return  # it shows when it is waited for


def _finish(held: list[tuple[Leftover, pidfd.HeldProcess]], grace_s: float) -> list[ReapedProcess]:
    left = pidfd.wait_for_ends([process for _, process in held], grace_s)
    for process in left:
        _send(process, signal.SIGKILL)
    stuck = pidfd.wait_for_ends(left, KILL_WAIT_S)
    done = []
    for one, process in held:
        if process in stuck:
            facts = read_stat(one.process.pid)
            words = f"KILL was sent, and it is still there (state {facts.state if facts else '?'})"
            done.append(ReapedProcess(one, "alive", words))
        elif process in left:
            done.append(ReapedProcess(one, "killed", f"KILL, after {grace_s:g} s of grace"))
        else:
            done.append(ReapedProcess(one, "ended", "TERM"))
    return done


def _audit_path() -> str:
    return f"{state_directory()}/{AUDIT}"


def _record(path: str, facts: dict[str, object], *, required: bool = True) -> None:
    line = {"utc": clock.utc_now(), "uid": os.geteuid(), "by_pid": os.getpid(), **facts}
    try:
        make_own_directory(os.path.dirname(path), "the directory of the record", "set XDG_STATE_HOME")
        files.append(path, json.dumps(line).encode() + b"\n")
    except (HoldfastError, OSError) as error:
        if required:
            words = f"nothing was ended: what is done cannot be recorded in {path}: {error}"
            raise StorageError(words, hint="make room there, or set XDG_STATE_HOME") from error
