"""Observes many runs within bounds, in a child that may hang in the kernel without blocking the patrol (MON-14).

One child looks at one run after the other and says a line about each. A run whose line does not come in time costs its
own answer: the child is given up, and another goes on behind that run. A root that cost `PATIENCE` runs is given up
altogether, so that a dead mount with hundreds of runs costs seconds.
"""

from __future__ import annotations

import json
import os
import select
import stat
from collections.abc import Iterator
from typing import Any

from holdfast.core.patrol.evidence import RunEvidence, StallLimits
from holdfast.host.clock import monotonic_s
from holdfast.host.files.files import write_all
from holdfast.host.process.offload import Offload
from holdfast.model import wire
from holdfast.model.ids import is_run_id

from .gather import gather_evidence

PATIENCE = 2
"""So many runs of one root may fail to answer before the rest of it is not asked."""


def list_runs(root: str, limit_s: float) -> tuple[list[str], int]:
    """The ids of this account's runs under a root, newest first, and how many are of other accounts.

    Raises:
        OffloadFailed: the root cannot be read, or did not answer in time.
    """
    names, foreign = Offload(lambda: _list(root)).wait(limit_s)
    return names, foreign


def _list(root: str) -> tuple[list[str], int]:
    own, foreign = [], 0
    with os.scandir(root) as entries:
        for entry in entries:
            if not is_run_id(entry.name):
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(facts.st_mode):
                continue
            if facts.st_uid == os.geteuid():
                own.append(entry.name)
            else:
                foreign += 1
    return sorted(own, reverse=True), foreign


def look_at_many(
    runs: list[tuple[str, str]], limits: StallLimits, *, each_s: float, deadline: float
) -> Iterator[tuple[str, str, RunEvidence | str]]:
    """Root, run id, and what was seen of it or why nothing was, for each of `runs`.

    `deadline` is on the monotonic clock; what was not asked by then says so.
    """
    hung = dict.fromkeys({root for root, _ in runs}, 0)
    while runs:
        if monotonic_s() >= deadline:
            yield from ((root, run_id, "not looked at: the time for this patrol was up") for root, run_id in runs)
            return
        answered = 0
        for (root, run_id), answer in zip(
            runs, _converse(runs, limits, each_s=each_s, deadline=deadline), strict=False
        ):
            answered += 1
            if isinstance(answer, _NoAnswer):
                hung[root] += 1
            yield root, run_id, answer.why if isinstance(answer, _NoAnswer) else answer
        rest, runs = runs[answered:], []
        for root, run_id in rest:
            if hung[root] < PATIENCE:
                runs.append((root, run_id))
            else:
                yield root, run_id, f"{root} does not answer"


class _NoAnswer:
    """No answer about one run; `why` for people."""

    def __init__(self, why: str) -> None:
        self.why = why


def _converse(
    runs: list[tuple[str, str]], limits: StallLimits, *, each_s: float, deadline: float
) -> Iterator[RunEvidence | str | _NoAnswer]:
    """The answers of one child, in the order of `runs`; ends early after one that did not come."""
    ourselves = frozenset({os.getpid(), os.getppid()})
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        child = Offload(lambda: _speak(runs, limits, ourselves, write_end), keep=(write_end,))
    finally:
        os.close(write_end)
    lines = _read_lines(read_end, each_s, deadline)
    answered = 0
    try:
        for line in lines:
            answered += 1
            yield _decode(line)
    finally:
        os.close(read_end)
        child.abandon()
    if answered < len(runs):
        yield _NoAnswer(f"it could not be looked at: no answer within {each_s:g} s, or the look was killed")


def _read_lines(descriptor: int, each_s: float, deadline: float) -> Iterator[bytes]:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    data = b""
    while True:
        wait_s = min(each_s, deadline - monotonic_s())
        if wait_s <= 0 or not poller.poll(wait_s * 1000):
            return
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return
        *lines, data = (data + chunk).split(b"\n")
        yield from lines


def _decode(line: bytes) -> RunEvidence | str:
    value: dict[str, Any] = json.loads(line)
    return str(value["problem"]) if "problem" in value else wire.decode(RunEvidence, value)


def _speak(runs: list[tuple[str, str]], limits: StallLimits, ourselves: frozenset[int], descriptor: int) -> None:
    """In the child: one line about each run."""
    ourselves |= {os.getpid()}
    for root, run_id in runs:
        try:
            answer = wire.encode(gather_evidence(f"{root}/{run_id}", limits, ourselves))
        except Exception as error:  # noqa: BLE001 - one strange run must not hide the others; it is reported as unknown
            answer = {"problem": f"it could not be looked at: {type(error).__name__}: {error}"}
        write_all(descriptor, json.dumps(answer).encode() + b"\n")
