"""The queue goes on after failures, losses and full cards: real cells, a real worker, nothing run twice in vain."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queueing.verification import reconcile
from holdfast.host import processes
from holdfast.model import wire
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, OutOfMemory, Retries
from holdfast.model.queue import Cell, CellState, OrderVerb
from holdfast.model.run import Running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.queueing.working import Work

pytestmark = [pytest.mark.process, pytest.mark.requirement("QUEUE-07")]

RESULT = "artifacts/result.json"
WRITE = "open(os.environ['HOLDFAST_ARTIFACT_DIR'] + '/result.json', 'w').write('{}')\n"
BLIP = (
    "import os, sys\n"
    "if os.environ['HOLDFAST_ATTEMPT'] == '1':\n"
    "    sys.exit('wandb.errors.CommError: Run initialization has timed out after 90.0 sec.')\n" + WRITE
)
HANG = "import os, time\nif os.environ['HOLDFAST_REASON'] != 'requeue':\n    time.sleep(60)\n" + WRITE
"""Waits (within bounds) until it is begun by the queue."""
FULL = (
    "import os, sys\n"
    "print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
    "if os.environ['HOLDFAST_ATTEMPT'] == '1':\n"
    "    sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"
    " of 23.64 GiB of which 1.06 GiB is free.')\n" + WRITE
)
ONCE = Retries(max=1, wait_s=0.01)


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


def hash_of(cell: Cell) -> str:
    return str(json.loads(Path(str(cell.run_dir), wire.RUN).read_text())["job_sha256"])


def attempts_of(cell: Cell) -> list[str]:
    return sorted(path.name for path in Path(str(cell.run_dir), wire.ATTEMPTS).iterdir())


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-05", "QUEUE-06", "QUEUE-10", "QUEUE-15")
def test_a_failed_cell_stops_no_other_but_what_needs_it(work: Work) -> None:
    fixed = Path(work.workdir, "fixed")
    second = f"import os, sys\nif not os.path.exists({str(fixed)!r}):\n    sys.exit(3)\n" + WRITE
    cells = {"a": python("import os\n" + WRITE), "b": python(second), "c": python("import os\n" + WRITE)}
    work.submit(cells, artifacts=(RESULT,))
    work.submit({"d": python("import os\n" + WRITE)}, artifacts=(RESULT,), each={"d": {"needs": ("b",)}})
    work.wait_left()
    assert work.states() == {
        "a": CellState.DONE,
        "b": CellState.FAILED,
        "c": CellState.DONE,
        "d": CellState.BLOCKED,
    }
    with work.open() as queue:
        report = reconcile(queue, "g")
    assert (report.complete, report.command) == (False, "holdfast queue retry g/b")
    fixed.touch()
    work.order(OrderVerb.RETRY, cells=(work.cells()["b"].key,))
    work.ensure()
    work.wait_left()
    assert set(work.states().values()) == {CellState.DONE}
    assert attempts_of(work.cells()["b"]) == ["1", "2"]
    with work.open() as queue:
        assert reconcile(queue, "g").complete


@pytest.mark.slow
@pytest.mark.requirement("FAIL-02", "FAIL-16")
def test_a_transient_failure_is_repeated_once_by_its_run_and_not_by_the_queue(work: Work) -> None:
    work.submit({"a": python(BLIP)}, retries=ONCE, artifacts=(RESULT,))
    cell = work.wait_state("a", CellState.DONE)
    assert (cell.requeued, attempts_of(cell)) == (0, ["1", "2"])
    assert hash_of(cell) == cell.sha256
    work.wait_left()


def lose(work: Work, name: str) -> None:
    """As by a restart of the box: the worker and all of a cell's run are gone, and its records are of another boot."""
    view = work.view(name)
    assert view.state is not None
    state = view.state.state
    assert isinstance(state, Running)
    work.kill_worker()
    supervisor = view.state.supervisor
    assert supervisor is not None
    victims = [supervisor, state.keeper, state.job.process]
    for victim in victims:
        processes.send_signal(victim, signal.SIGKILL)
    wait_until(lambda: not any(map(processes.is_alive, victims)), what="they are dead")
    for left in processes.find_marked(view.run_id):
        processes.send_signal(left, signal.SIGKILL)
    wait_until(lambda: not processes.find_marked(view.run_id), what="nothing of it lives")
    path = Path(view.attempt_dir, wire.STATE)
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record).replace(record["boot_id"], "00000000-0000-4000-8000-000000000000"))


@pytest.mark.requirement("QUEUE-02", "FAIL-16")
def test_a_cell_that_was_lost_with_its_box_goes_on_with_the_next_worker(work: Work) -> None:
    work.submit({"a": python(HANG)}, retries=ONCE, artifacts=(RESULT,))
    work.wait_state("a", CellState.RUNNING)
    wait_until(lambda: work.view("a").condition == "running", what="it runs")
    lose(work, "a")
    work.ensure()
    cell = work.wait_state("a", CellState.DONE)
    assert (cell.requeued, attempts_of(cell)) == (1, ["1", "2"])
    assert hash_of(cell) == cell.sha256
    first = json.loads(Path(str(cell.run_dir), "attempts/1", wire.EXIT).read_text())
    assert first["outcome"] == "lost"
    work.wait_left()


@pytest.mark.slow
@pytest.mark.requirement("FAIL-05")
def test_a_full_card_is_followed_by_a_larger_one_where_the_job_says_so(work: Work, tmp_path: Path) -> None:
    box = tmp_path / "cards.json"
    sizes = {"GPU-small": "24GiB", "GPU-large": "80GiB"}
    cards = [{"uuid": uuid, "name": "Simulated GPU", "memory_total": size} for uuid, size in sizes.items()]
    box.write_text(json.dumps({"cards": cards}))
    work.environ["HOLDFAST_SIMULATED_GPUS"] = str(box)
    retries = Retries(max=1, wait_s=0.01, out_of_memory=OutOfMemory.LARGER)
    gpu = GpuOptions(idle_window_s=0.0, wait_s=30.0)
    work.submit({"a": python(FULL)}, retries=retries, gpus=GpuRequest(count=1), gpu=gpu, artifacts=(RESULT,))
    cell = work.wait_state("a", CellState.DONE)
    assert (cell.requeued, attempts_of(cell)) == (1, ["1", "2"])
    used = [Path(str(cell.run_dir), "attempts", n, wire.OUTPUT).read_text().split()[0] for n in ("1", "2")]
    assert used == ["GPU-small", "GPU-large"]
    assert hash_of(cell) == cell.sha256
    work.wait_left()
