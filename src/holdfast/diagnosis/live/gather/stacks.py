"""Python stacks of a run's processes without ptrace: asked for by the training library's private signal (DIAG-05).

Who may be asked, and that nobody else is ever signalled, is in `host.contain.stack_signal`.

The stacks file may lie on a mount that does not answer, so the whole exchange happens in a disposable child.
"""

from __future__ import annotations

import os
import time
from typing import Any

from holdfast.diagnosis.evidence import Reading
from holdfast.diagnosis.python_stacks import StackDump, parse_dump
from holdfast.host.clock import boot_id
from holdfast.host.contain import stack_signal
from holdfast.host.contain.stack_signal import StackRecord
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model.identity import ProcessId
from holdfast.model.record import record

from .snapshot import ProcessFacts

ANSWER_WITHIN_S = 0.5
BETWEEN_S = 0.2
QUIET_S = 0.03
MOST_BYTES = 256 * 1024
MOST_ASKED = 16


@record
class CollectedStacks:
    """What asking brought: stacks by pid, twice for each, and why there are none for others."""

    dumps: dict[int, tuple[StackDump, ...]]
    refused: tuple[str, ...] = ()


def collect_stacks(
    processes: tuple[ProcessFacts, ...], records: tuple[str, ...], *, limit_s: float = ANSWER_WITHIN_S, times: int = 2
) -> Reading[CollectedStacks]:
    """Ask these processes, proven to be a run's own, for their stacks, `times` times; each time bounded.

    `records` are the ``stacks*.json`` of the attempt. Without one nobody is asked, and that is the reason given.
    """
    if not records:
        return Reading(
            unread="no process left a record of a stack-dump signal (holdfast's training library writes one)"
        )
    work = Offload(lambda: _ask_all(processes, records[:MOST_ASKED], limit_s, times))
    try:
        answer = work.wait((limit_s + BETWEEN_S) * times + 1.0)
    except OffloadFailed as error:
        return Reading(unread=f"asking for stacks failed: {error}")
    dumps: dict[int, tuple[StackDump, ...]] = {}
    for pid, text in answer["dumps"]:
        dumps[pid] = (*dumps.get(pid, ()), parse_dump(pid, text))
    return Reading(CollectedStacks(dumps, tuple(answer["refused"])))


def _ask_all(
    processes: tuple[ProcessFacts, ...], records: tuple[str, ...], limit_s: float, times: int
) -> dict[str, list[Any]]:
    dumps: list[tuple[int, str]] = []
    refused: list[str] = []
    willing = _find_willing(processes, records, refused)
    for turn in range(times):
        if turn:
            time.sleep(BETWEEN_S)
        # All are asked before any answer is awaited, so that the stacks of ranks belong to one moment.
        asked: list[tuple[ProcessId, StackRecord, int]] = []
        for process, written in willing:
            try:
                asked.append((process, written, stack_signal.request_stacks(process, written)))
            except stack_signal.StacksRefused as why:
                if not turn:
                    refused.append(str(why))
        end = time.monotonic() + limit_s
        for process, written, start in asked:
            text = _collect(written.stacks, start, end)
            if text:
                dumps.append((process.pid, text))
            elif not turn:
                refused.append(f"pid {process.pid} was asked and wrote nothing within {limit_s:g} s")
    return {"dumps": list(dumps), "refused": refused}


def _find_willing(
    processes: tuple[ProcessFacts, ...], records: tuple[str, ...], refused: list[str]
) -> list[tuple[ProcessId, StackRecord]]:
    """The processes that wrote these records; why a record has none is added to `refused`."""
    living = [ProcessId(one.pid, one.start_ticks, boot_id()) for one in processes if not one.is_dead]
    willing = []
    for path in records:
        try:
            record = stack_signal.read_record(path)
        except stack_signal.StacksRefused as why:
            refused.append(f"{path}: {why}")
            continue
        process = stack_signal.find_writer(record, living)
        if process is None:
            refused.append(f"{path}: names pid {record.pid}, which is no living process of this run any more")
        else:
            willing.append((process, record))
    return willing


def _collect(path: str, start: int, end: float) -> str:
    """What was added to the file since `start`: read until it has been quiet for a moment, or the time is over."""
    size, quiet_since = start, time.monotonic()
    while (now := time.monotonic()) < end:
        try:
            grown = os.lstat(path).st_size
        except OSError:
            return ""
        if grown != size:
            size, quiet_since = grown, now
        elif size > start and now - quiet_since >= QUIET_S:
            break
        time.sleep(0.005)
    if size <= start:
        return ""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, min(size - start, MOST_BYTES), start).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
