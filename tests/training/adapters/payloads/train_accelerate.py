"""A loop of one's own with an Accelerator that accumulates gradients; alone or as several ranks."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-not-found,unused-ignore]
from torch.utils.data import DataLoader, Dataset

from holdfast import training
from holdfast.training.adapters import accelerate

torch.set_num_threads(1)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 38

    def __getitem__(self, at: int) -> Any:
        noise = torch.Generator().manual_seed(at)
        x = torch.randn(8, generator=noise)
        return x + 0.1 * torch.randn(8), torch.randn(1, generator=noise)


options = json.loads(sys.argv[2])
with training.run(sys.argv[1], every=options.get("every"), seed=3) as run:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.get("accumulate", 1))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.7)
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=options.get("workers", 0))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    accelerate.track_accelerator(run, accelerator)
    batches = accelerate.follow_loader(run, loader)
    for step in run.steps(options["steps"]):
        ended = False
        while not ended:
            x, y = next(batches)
            with accelerator.accumulate(model):
                loss = ((model(x) - y) ** 2).mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                ended = accelerator.sync_gradients
        run.log(loss=loss.item())
        if run.rank == 0:
            print("step", step + 1, flush=True)
            while step + 1 == options.get("halt") and not run.stop_requested:
                time.sleep(0.001)  # until the signal that is on its way is here
digest = hashlib.sha256()
for tensor in accelerator.unwrap_model(model).state_dict().values():
    digest.update(tensor.numpy().tobytes())
done = {"digest": digest.hexdigest(), "step": run.step, "epoch": run.epoch, "rate": scheduler.get_last_lr()[0]}
if run.rank == 0:
    print("done", json.dumps(done), flush=True)
