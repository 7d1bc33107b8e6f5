"""Start a behaviour and look at it: what the tests of live diagnosis share."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.live.gather.run_files import RunFiles
from holdfast.diagnosis.live.gather.target import LiveTarget
from holdfast.diagnosis.live.judge import diagnose_live
from holdfast.host.process.processes import identify
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.live.report import LiveReport

PAYLOAD = Path(__file__).parent / "payloads" / "behaviours.py"
SOURCE = Path(__file__).parents[3] / "src"
INTERVAL_S = 0.5


@contextlib.contextmanager
def behaving(mode: str, directory: Path, *more: str, unbuffered: bool = False) -> Iterator[LiveTarget]:
    """A process that behaves as `mode` says, as a run of ours with its files in `directory`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = str(SOURCE)
    if unbuffered:
        environment["PYTHONUNBUFFERED"] = "1"
    argv = [sys.executable, str(PAYLOAD), mode, str(directory), *more]
    with (directory / "output.log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        wait_until((directory / "ready").exists, what=f"{mode} is ready")
        identity = identify(process.pid)
        assert identity is not None
        path = str(directory)
        files = RunFiles(f"{path}/output.log", f"{path}/heartbeat.json", path, (f"{path}/artifacts",), f"{path}/flight")
        yield LiveTarget(mode, (identity,), ours=True, files=files)
    finally:
        process.kill()
        process.wait()


def stand_still(directory: Path, *, step: int = 100, for_s: float = 600.0, **more: object) -> None:
    """A heartbeat that has not moved for a while."""
    import json

    path = directory / "heartbeat.json"
    path.write_text(json.dumps({"schema": 1, "step": step, "phase": "train", "steps_per_s": 2.0, **more}))
    then = time.time() - for_s
    os.utime(path, (then, then))
    log = directory / "output.log"
    if log.exists():
        os.utime(log, (then, then))


def look(target: LiveTarget, *, interval_s: float = INTERVAL_S, deep: bool = False) -> LiveReport:
    """Diagnose; sooner than a person would get it."""
    return diagnose_live(target, interval_s=interval_s, deep=deep)


def explain(report: LiveReport) -> str:
    """The whole report, for a test's message."""
    lines = [f"{report.verdict.kind.value} {report.verdict.confidence.value} by {report.verdict.detector}"]
    lines += [f"  for: {clue.text}" for clue in report.verdict.evidence_for]
    lines += [f"  unknown: {clue.text}" for clue in report.verdict.unknown]
    for section in report.sections:
        lines += [f"[{section.name}]", *section.lines, *(f"  unread: {why}" for why in section.unread)]
    return "\n".join(lines)
