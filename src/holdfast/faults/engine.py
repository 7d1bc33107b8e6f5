"""What the command line calls: one fault in a sandbox of its own, under a guard, and nothing left of it.

The guard undoes everything when we die. Should the guard itself be killed, we end what carries the sandbox's mark in
its environment; a sandbox's path is random and made by us, so nobody else carries it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from ..host import processes
from ..model import wire
from .box import LOOK_S, MARK, Box, read_text
from .spec import Judgement, Report, Stage
from .stages import THAWER

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.identity import ProcessId
    from .needs import Needs
    from .spec import Fault

LIMIT_S = 300.0
"""The guard's own limits are shorter; beyond this it hangs itself."""
UNDO_S = 60.0
SWEEP_S = 15.0
GUARD = "holdfast.faults.guard"


def run_fault(
    fault: Fault, needs: Needs, *, keep: bool = False, nvml_library: str | None = None,
    interrupted: Callable[[], bool] = lambda: False, judge_records: Callable[[Fault, str], Report] | None = None,
) -> Report:  # fmt: skip
    """Let `fault` happen, have it judged, undo it.

    `judge_records` judges a file of kernel log records (`Stage.KERNEL_LOG`): the reader of that log is no part of us.

    Raises:
        KeyboardInterrupt: somebody asked to end it; it is undone.
    """
    reason = needs.lacking(fault)
    expected = tuple(kind.value for kind in fault.expects) or ("prevented",)
    if reason:
        return Report(fault.name, Judgement.IMPOSSIBLE, expected=expected, reason=reason)
    directory = tempfile.mkdtemp(prefix="holdfast-fault-")
    try:
        if fault.stage is Stage.KERNEL_LOG:
            return _judge_records(fault, f"{directory}/kmsg", judge_records)
        report = _run_guard(fault, directory, nvml_library, interrupted, keep=keep)
        return dataclasses.replace(report, box=directory) if keep else report
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _judge_records(fault: Fault, path: str, judge: Callable[[Fault, str], Report] | None) -> Report:
    if judge is None:
        return Report(fault.name, Judgement.IMPOSSIBLE, reason="nobody here reads the kernel's log")
    with open(path, "x", encoding="utf-8") as file:
        file.writelines(f"{record}\n" for record in fault.records)
    return judge(fault, path)


def _run_guard(
    fault: Fault, directory: str, nvml_library: str | None, interrupted: Callable[[], bool], *, keep: bool
) -> Report:
    request = {"name": fault.name, "box": directory, "nvml_library": nvml_library, "keep": keep}
    said = f"{directory}/report.json"
    watched, held = os.pipe2(os.O_CLOEXEC)
    try:
        with open(said, "xb") as out, open(f"{directory}/guard.log", "xb") as err:
            guard = subprocess.Popen(
                [sys.executable, "-m", GUARD, json.dumps(request)],
                stdin=watched, stdout=out, stderr=err, env={**os.environ, MARK: directory}, start_new_session=True,
            )  # fmt: skip
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(watched)
    try:
        was_interrupted = _wait(guard, interrupted)
    finally:
        # Its end of the pipe now reads the end of file: it undoes what is left and leaves.
        os.close(held)
        _wait_for_guard(guard)
        answer = read_text(said)
        if guard.returncode != 0 or not answer:
            sweep(directory)
    if was_interrupted:
        raise KeyboardInterrupt
    try:
        return wire.decode(Report, json.loads(answer))
    except (ValueError, wire.WireError):
        words = read_text(f"{directory}/guard.log").strip()[-500:]
        code = guard.returncode
        return Report(fault.name, Judgement.BROKEN, reason=f"the guard ended with {code} and no report: {words}")


def _wait(guard: subprocess.Popen[bytes], interrupted: Callable[[], bool]) -> bool:
    """Until the guard has left; True when we are to end it instead."""
    deadline = time.monotonic() + LIMIT_S
    pidfd = os.pidfd_open(guard.pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        while not poller.poll(LOOK_S * 1000):
            if interrupted():
                return True
            if time.monotonic() > deadline:
                return False
    finally:
        os.close(pidfd)
    return False


def _wait_for_guard(guard: subprocess.Popen[bytes]) -> None:
    try:
        guard.wait(UNDO_S)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()


def sweep(directory: str) -> list[int]:
    """End every process that carries this sandbox's mark; the pids that were signalled."""
    signalled: list[int] = []
    deadline = time.monotonic() + SWEEP_S
    while time.monotonic() < deadline:
        marked = _find_marked(directory)
        if not marked:
            break
        # The identity was taken before the environment was read, and is compared again before the signal.
        signalled += [found.pid for found in marked if processes.send_signal(found, signal.SIGKILL)]
        time.sleep(LOOK_S)
    for run_id in _list_runs(directory):
        box = Box(directory, {}, -1)
        box.run_dir, box.run_id = f"{directory}/runs/{run_id}", run_id
        box.remove_groups()
    return signalled


def _find_marked(directory: str) -> list[ProcessId]:
    """Living processes with the sandbox's mark; the watchdog of a frozen file system is left to its work."""
    marked = []
    for pid in processes.list_pids():
        found, environ = processes.identify(pid), processes.read_environ(pid)
        if pid == os.getpid() or found is None or environ is None or environ.get(MARK) != directory:
            continue
        stat = processes.read_stat(pid)
        if stat is not None and stat.comm != THAWER and processes.is_alive(found):
            marked.append(found)
    return marked


def _list_runs(directory: str) -> list[str]:
    try:
        return os.listdir(f"{directory}/runs")
    except OSError:
        return []
