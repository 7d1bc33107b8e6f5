"""What the command line calls: one fault in a sandbox of its own, under a guard, and nothing left of it.

The guard undoes everything when we die. Should the guard itself be killed, we end what carries the sandbox's mark in
its environment; a sandbox's path is random and made by us, so nobody else carries it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.host.files import files
from holdfast.host.process import pidfd, processes
from holdfast.model import wire
from holdfast.model.identity import ProcessId
from holdfast.model.record import replace

from .box import LOOK_S, MARK, Sandbox, read_text
from .spec import Fault, FaultJudgement, FaultReport, Stage
from .stages import THAWER

if TYPE_CHECKING:
    from .needs import NeedTests

LIMIT_S = 300.0
"""The guard's own limits are shorter; beyond this it hangs itself."""
UNDO_S = 60.0
SWEEP_S = 15.0
GUARD = "holdfast.faults.guard"


def run_fault(
    fault: Fault, needs: NeedTests, *, keep: bool = False, nvml_library: str | None = None,
    interrupted: Callable[[], bool] = lambda: False, judge_records: Callable[[Fault, str], FaultReport] | None = None,
) -> FaultReport:  # fmt: skip
    """Let `fault` happen, have it judged, undo it.

    `judge_records` judges a file of kernel log records (`Stage.KERNEL_LOG`): the reader of that log is no part of us.

    Raises:
        KeyboardInterrupt: somebody asked to end it; it is undone.
    """
    reason = needs.lacking(fault)
    expected = tuple(kind.value for kind in fault.expects) or ("prevented",)
    if reason:
        return FaultReport(fault.name, FaultJudgement.IMPOSSIBLE, expected=expected, reason=reason)
    directory = tempfile.mkdtemp(prefix="holdfast-fault-")
    try:
        if fault.stage is Stage.KERNEL_LOG:
            return _judge_records(fault, f"{directory}/kmsg", judge_records)
        report = _run_guard(fault, directory, nvml_library, interrupted, keep=keep)
        return replace(report, box=directory) if keep else report
    finally:
        if not keep:
            files.remove_tree(directory)


def _judge_records(fault: Fault, path: str, judge: Callable[[Fault, str], FaultReport] | None) -> FaultReport:
    if judge is None:
        return FaultReport(fault.name, FaultJudgement.IMPOSSIBLE, reason="nobody here reads the kernel's log")
    with open(path, "x", encoding="utf-8") as file:
        file.writelines(f"{record}\n" for record in fault.records)
    return judge(fault, path)


def _run_guard(
    fault: Fault, directory: str, nvml_library: str | None, interrupted: Callable[[], bool], *, keep: bool
) -> FaultReport:
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
            end_marked(directory)
    if was_interrupted:
        raise KeyboardInterrupt
    try:
        return wire.decode(FaultReport, json.loads(answer))
    except (ValueError, wire.WireError):
        words = read_text(f"{directory}/guard.log").strip()[-500:]
        code = guard.returncode
        return FaultReport(
            fault.name, FaultJudgement.BROKEN, reason=f"the guard ended with {code} and no report: {words}"
        )


def _wait(guard: subprocess.Popen[bytes], interrupted: Callable[[], bool]) -> bool:
    """Until the guard has left; True when we are to end it instead."""
    deadline = time.monotonic() + LIMIT_S
    held = pidfd.hold(guard.pid)
    if held is None:
        return False
    try:
        while not held.wait(LOOK_S):
            if interrupted():
                return True
            if time.monotonic() > deadline:
                return False
    finally:
        held.close()
    return False


def _wait_for_guard(guard: subprocess.Popen[bytes]) -> None:
    try:
        guard.wait(UNDO_S)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()


def end_marked(directory: str) -> list[int]:
    """End every process that carries this sandbox's mark; the pids that were signalled."""
    signalled: list[int] = []
    deadline = time.monotonic() + SWEEP_S
    while time.monotonic() < deadline:
        marked = _find_marked(directory)
        if not marked:
            break
        # The identity was taken before the environment was read, and is compared again before the signal.
        signalled += [found.pid for found in marked if pidfd.send_signal(found, signal.SIGKILL)]
        time.sleep(LOOK_S)
    for run_id in _list_runs(directory):
        box = Sandbox(directory, {}, -1)
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
