"""torchrun over two nodes of a real Slurm: its ranks meet, stop after the same step, and go on from it together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.slurm.lab import LabRun
from tests.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from tests.slurm.lab import Lab

pytest.importorskip("torch")
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

PAYLOAD = """\
import os, time
import torch
from torch import distributed
from holdfast import training

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with training.run(os.environ["HOLDFAST_CHECKPOINT_DIR"], seed=5) as run:
    run.track(model=net, optimizer=optimizer, replicated=True)
    first = None
    for step in run.steps(400):
        if first is None:
            first = step
            print("begin", step, "rank", rank, "of", world, flush=True)
        optimizer.zero_grad()
        net(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        print("step", step + 1, flush=True)
        time.sleep(0.2 if os.environ["HOLDFAST_ATTEMPT"] == "1" else 0.0)
print("finished", flush=True)
"""


@pytest.mark.requirement("MN-04", "MN-05", "MN-06")
def test_MN_06_all_ranks_stop_after_one_step_and_go_on_from_it_over_both_nodes(lab: Lab) -> None:
    (lab.code / "train.py").write_text(PAYLOAD)
    words = ("run", "--on", "lab", "-d", "--nodes", "2", "--gpus", "1", "--no-gpu-verify")
    done = lab(
        *words, *("--env", "GLOO_SOCKET_IFNAME=lo", "--", sys.executable, "-m", "torch.distributed.run", "train.py")
    )
    run = LabRun(lab, done.stdout.strip())

    def output(node: int, attempt: int) -> str:
        name = "output.log" if node == 0 else f"nodes/{node}/output.log"
        path = run.path / f"attempts/{attempt}/{name}"
        return path.read_text() if path.exists() else ""

    def last_step(node: int, attempt: int) -> str:
        return [line for line in output(node, attempt).splitlines() if line.startswith("step ")][-1]

    wait_until(lambda: "step 3\n" in output(1, 1), 300 * PATIENCE, what="both nodes train")
    lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    assert lab("wait", run.name, code=None).returncode == 0, output(0, 2)
    assert run.exit(1)["outcome"] == "preempted"
    stopped = last_step(0, 1)
    assert stopped == last_step(1, 1)
    step = stopped.split()[1]
    begun = [line for node in (0, 1) for line in output(node, 2).splitlines() if line.startswith("begin")]
    assert begun == [f"begin {step} rank 0 of 2", f"begin {step} rank 1 of 2"]
    assert last_step(0, 2) == last_step(1, 2) == "step 400"
