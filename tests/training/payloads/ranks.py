"""One of several ranks that train a small net: with DistributedDataParallel (gloo), or each for itself.

Usage: ranks.py DIRECTORY JSON; the JSON has total, every, mode ("ddp" or "alone"), and what is odd about this launch.
Each step appends a line to steps-RANK.txt, so that a test sees how far a rank is and which rows it was given.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from holdfast import training
from holdfast.training.adapters import distributed

torch.set_num_threads(1)
directory, options = sys.argv[1], json.loads(sys.argv[2])
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ddp = options.get("mode", "ddp") == "ddp" and world > 1


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 90

    def __getitem__(self, at: int) -> Any:
        noise = torch.Generator().manual_seed(at)
        return at, torch.randn(8, generator=noise) + 0.1 * torch.randn(8), torch.randn(1, generator=noise)


def main() -> None:
    log = open(os.path.join(directory, f"steps-{rank}.txt"), "a", buffering=1)  # noqa: SIM115 - until the end
    with training.run(os.path.join(directory, "checkpoints"), every=options.get("every", 4), seed=5) as run:
        torch.manual_seed(5)
        layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)]
        model = torch.nn.Sequential(*layers)
        torch.manual_seed(100 + rank)  # dropout and noise differ from rank to rank
        unused = options.get("find_unused", False)
        net = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused) if ddp else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.7)
        sampler: DistributedSampler[Any] = DistributedSampler(Rows(), world, rank, seed=5)
        loader = DataLoader(Rows(), batch_size=3, sampler=sampler)
        same = options.get("replicated", ddp)
        run.track(model=net, optimizer=optimizer, scheduler=scheduler, replicated=same)
        mine: dict[str, Any] = {"rows": [], "mean": torch.zeros(8)}
        if not options.get("no_data"):
            run.track(mine=mine)
            batches: Any = run.batches(loader)
        else:
            batches = (batch for _ in iter(int, 1) for batch in loader)
        if ddp and options.get("settle", True):
            distributed.settle_buckets(net, lambda: net(torch.randn(3, 8)).sum())
        log.write("ready\n")
        for step in run.steps(options["total"]):
            rows, x, y = next(batches)
            loss = ((net(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            mine["rows"].extend(rows.tolist())
            mine["mean"] += x.mean(0)
            run.log(loss=loss.item())
            log.write(f"{step + 1}\n")
            if not ddp:
                time.sleep(0.03)  # a step's work: nothing else keeps these ranks near each other
    digest = hashlib.sha256()
    # DDP overwrites buffers with rank 0's before each forward pass: what the last pass left on the others is nobody's.
    buffers = [*model.buffers()] if rank == 0 or not ddp else []
    for tensor in [*model.parameters(), *buffers, mine["mean"], torch.get_rng_state()]:
        digest.update(tensor.detach().numpy().tobytes())
    rows = hashlib.sha256(json.dumps(mine["rows"]).encode()).hexdigest()
    done = {"digest": digest.hexdigest(), "rows": rows, "step": run.step, "count": len(mine["rows"])}
    with open(os.path.join(directory, f"done-{rank}.json"), "w") as file:
        json.dump(done, file)


if ddp:
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
try:
    main()
finally:
    if ddp and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
