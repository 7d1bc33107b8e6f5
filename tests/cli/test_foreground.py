"""``holdfast run`` where everything ends with the process that was started: containers, batch jobs, notebooks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.observe import list_attempts, observe_run
from holdfast.model import wire
from tests.agent.standing import AS_INIT, SAVES, STEPD
from tests.cli.conftest import ENTRY
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cli

IN_SLURM = (sys.executable, "-I", "-S", "-c", STEPD)


@pytest.fixture
def started(isolated_environment: dict[str, str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _start(started: list[subprocess.Popen[bytes]], *command: str, **environ: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    started.append(process)
    return process


def _find_run(root: str, word: bytes = b"ready\n") -> str:
    def look() -> str:
        for name in os.listdir(root) if os.path.isdir(root) else ():
            output = Path(root, name, wire.ATTEMPTS, "1", wire.OUTPUT)
            if output.exists() and word in output.read_bytes():
                return f"{root}/{name}"
        return ""

    return wait_until(look, what="its job is ready")


@pytest.mark.slow
def test_as_process_1_a_term_stops_the_run_instead_of_leaving_it(
    started: list[subprocess.Popen[bytes]], isolated_environment: dict[str, str]
) -> None:
    """Seen: "detached", exit 143 at once, and the kernel killed all of the container: no checkpoint, no exit record."""
    front = _start(started, *AS_INIT, *ENTRY, "run", "--name", "held", "--", *SAVES)
    run_dir = _find_run(isolated_environment["HOLDFAST_RUNS"])
    children = Path(f"/proc/{front.pid}/task/{front.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    out, err = front.communicate(timeout=LIMIT_S)
    assert front.returncode == 130, err
    # A shell may say that its sleep was terminated: the whole tree gets the signal.
    assert out.startswith(b"ready\n")
    assert Path(run_dir, wire.CHECKPOINTS, "saved").exists()
    assert observe_run(run_dir).condition == "stopped"


@pytest.mark.slow
@pytest.mark.requirement("SLM-12")
def test_inside_a_slurm_job_it_supervises_itself_and_refuses_to_detach(
    started: list[subprocess.Popen[bytes]], isolated_environment: dict[str, str]
) -> None:
    """Seen: with proctrack/linuxproc a detached run went on with cards that were given to others."""
    refused = _start(started, *IN_SLURM, *ENTRY, "run", "-d", "--", "true", SLURM_JOB_ID="7")
    _, err = refused.communicate(timeout=LIMIT_S)
    assert refused.returncode == 64
    assert b"cannot be detached here: this is inside job 7 of Slurm" in err
    root = isolated_environment["HOLDFAST_RUNS"]
    assert not os.path.isdir(root) or not [name for name in os.listdir(root) if name[0] != "."]
    front = _start(
        started, *IN_SLURM, *ENTRY, "run", "--json", "--", "sh", "-c", "echo ready; exit 4", SLURM_JOB_ID="7"
    )
    out, err = front.communicate(timeout=LIMIT_S)
    assert front.returncode == 4, err
    assert b'"exit_code": 4' in out
    run_dir = _find_run(root)
    found = observe_run(run_dir)
    assert found.manifest["containment"]["level"] not in ("cgroup_v1", "cgroup_v2")
    assert not found.manifest.get("cgroup")
    assert list_attempts(run_dir) == (1,)


@pytest.mark.slow
def test_a_shell_with_the_variables_of_a_job_is_no_job(
    started: list[subprocess.Popen[bytes]], isolated_environment: dict[str, str]
) -> None:
    front = _start(started, *ENTRY, "run", "-d", "--prove", "0", "--", "true", SLURM_JOB_ID="7")
    _, err = front.communicate(timeout=LIMIT_S)
    assert front.returncode == 0, err
    root = isolated_environment["HOLDFAST_RUNS"]
    run_dir = f"{root}/{next(name for name in os.listdir(root) if name[0] != '.')}"
    wait_until(lambda: observe_run(run_dir).over, what="it is over")


@pytest.mark.slow
def test_in_a_notebook_an_interrupt_leaves_the_run_alone(
    started: list[subprocess.Popen[bytes]], isolated_environment: dict[str, str]
) -> None:
    """Seen: interrupting one cell stopped the runs of two others."""
    front = _start(started, *ENTRY, "run", "--name", "cell", "--", *SAVES, JPY_PARENT_PID="1")
    run_dir = _find_run(isolated_environment["HOLDFAST_RUNS"])
    front.send_signal(signal.SIGINT)
    _, err = front.communicate(timeout=LIMIT_S)
    assert front.returncode == 130
    assert b"in a notebook (JPY_PARENT_PID) an interrupt stops no run" in err
    # The job says that it is ready a moment before its supervisor writes that it runs.
    wait_until(lambda: observe_run(run_dir).condition == "running", what="the run goes on")
    done = subprocess.run([*ENTRY, "stop", os.path.basename(run_dir)], capture_output=True, check=False)
    assert done.returncode == 0, done
