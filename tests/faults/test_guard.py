"""Faults as runs: that they happen is seen in the kernel's facts, and nothing is left, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.faults.engine import end_marked, run_fault
from holdfast.faults.needs import NeedTests
from holdfast.faults.spec import Fault, FaultJudgement, FaultProof, ProofKind
from holdfast.faults.table import find_fault
from holdfast.model.verdict import FailureClass
from tests.leaks import find_processes, read_command
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

CALLER = """
import sys
from holdfast.faults.engine import run_fault
from holdfast.faults.needs import NeedTests
from holdfast.faults.table import find_fault
run_fault(find_fault(sys.argv[1]), NeedTests())
"""


def require(fault: Fault) -> Fault:
    """Skip where the box cannot do it."""
    reason = NeedTests().lacking(fault)
    if reason:
        pytest.skip(reason)
    return fault


def read_temporary() -> list[str]:
    """What is in the directory for temporary files."""
    return os.listdir(os.environ["TMPDIR"])


@pytest.mark.requirement("DIAG-02", "FAIL-09", "FAIL-14")
@pytest.mark.parametrize(
    "name",
    [
        "killed",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("host-memory", "hang-up", "segfault", "edited-script")
        ),
    ],
)
def test_the_fault_happens_and_is_told_apart(name: str) -> None:
    report = run_fault(require(find_fault(name)), NeedTests())
    assert not report.unproven, report
    assert report.judgement is FaultJudgement.RIGHT, report
    assert read_temporary() == []


@pytest.mark.slow
def test_a_fault_that_does_not_happen_proves_nothing() -> None:
    report = Fault(
        "key-error", "claims what does not happen", (FailureClass.BUG,), (FaultProof(ProofKind.SIGNAL, "11"),),
        ("ending", "key-error"),
    )  # fmt: skip
    # The guard looks the fault up by its name, so the claim is put to it through the table's own entry.
    code = (
        "import sys, holdfast.faults.guard as guard\n"
        "from holdfast.faults.spec import FaultProof, ProofKind\n"
        "from holdfast.model.record import replace\n"
        "real = guard.find_fault\n"
        "guard.find_fault = lambda name: replace(real(name), proofs=(FaultProof(ProofKind.SIGNAL, '11'),))\n"
        "sys.exit(guard.main(sys.argv[1:]))\n"
    )
    box = os.environ["TMPDIR"] + "/box"
    os.mkdir(box, 0o700)
    read_end, write_end = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", code, f'{{"name": "{report.name}", "box": "{box}"}}'],
        stdin=read_end, capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    os.close(read_end)
    os.close(write_end)
    assert '"judgement": "not_real"' in done.stdout
    assert "KeyError" in done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("who", ["caller", "guard"])
@pytest.mark.parametrize("name", ["fuse-hang", pytest.param("fsfreeze", marks=pytest.mark.slow)])
def test_nothing_is_left_when_somebody_is_killed(who: str, name: str, tmp_path: Path) -> None:
    require(find_fault(name))
    caller = subprocess.Popen([sys.executable, "-c", CALLER, name], start_new_session=True)
    try:
        sandbox = wait_until(_find_sandbox, what="the sandbox")
        word = "writing" if name == "fsfreeze" else "reading"
        wait_until(lambda: word in _read(f"{sandbox}/marks").split(), what="the trouble")
        victim = caller.pid if who == "caller" else _find_guard(sandbox)
        os.kill(victim, signal.SIGKILL)
        caller.wait(LIMIT_S)
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: not find_processes(sandbox), what="the end of all its processes")
    wait_until(lambda: not os.path.exists(sandbox), what="the end of the sandbox")
    with open("/proc/self/mountinfo") as file:
        assert sandbox not in file.read()


def _find_sandbox() -> str:
    """Directories only: `tempfile` tries a file of its own there before it names the place."""
    with os.scandir(os.environ["TMPDIR"]) as entries:
        return next((entry.path for entry in entries if entry.is_dir()), "")


def _find_guard(sandbox: str) -> int:
    guards = [pid for pid, command in find_processes(sandbox).items() if "holdfast.faults.guard" in command]
    # The server and the watchdog are children of it, with the same command line.
    return next(pid for pid in guards if not any(_parent(pid) == other for other in guards))


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def test_a_sweep_touches_only_what_carries_the_sandboxs_mark(tmp_path: Path) -> None:
    sandbox = str(tmp_path / "sandbox")
    sleeper = "import time; print('up', flush=True); time.sleep(60)"
    started = []
    for mark in (sandbox, f"{sandbox}-other", ""):
        environ = {**os.environ, "HOLDFAST_FAULT": mark}
        child = subprocess.Popen([sys.executable, "-c", sleeper], env=environ, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n", read_command(child.pid)
        started.append(child)
    try:
        assert end_marked(sandbox) == [started[0].pid]
        assert started[0].wait(LIMIT_S) == -signal.SIGKILL
        assert started[1].poll() is None
        assert started[2].poll() is None
    finally:
        for child in started:
            child.kill()
            child.communicate()
