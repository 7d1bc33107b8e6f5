"""A Trainer that draws random numbers wherever one can: dropout, collator, order of samples, evaluation."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments  # type: ignore[import-not-found,unused-ignore]

from holdfast import training
from holdfast.training.adapters import huggingface

torch.set_num_threads(1)


class Rows(Dataset[Any]):
    """38 rows: the last batch of an epoch is a smaller one."""

    def __len__(self) -> int:
        return 38

    def __getitem__(self, at: int) -> Any:
        noise = torch.Generator().manual_seed(at)
        return {"x": torch.randn(8, generator=noise), "y": torch.randn(1, generator=noise)}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )

    def forward(self, x: Any, y: Any) -> Any:
        return {"loss": ((self.layers(x) - y) ** 2).mean()}


def collate(rows: Any) -> Any:
    batch = {name: torch.stack([row[name] for row in rows]) for name in ("x", "y")}
    batch["x"] = batch["x"] + 0.1 * torch.randn_like(batch["x"])  # as a collator that masks at random
    return batch


class Say(TrainerCallback):  # type: ignore[misc,unused-ignore]
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        print("step", state.global_step, flush=True)
        while state.global_step == options.get("halt") and not run.stop_requested:
            time.sleep(0.001)  # until the signal that is on its way is here

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        print("trackers end", flush=True)


options = json.loads(sys.argv[2])
arguments = TrainingArguments(
    output_dir=sys.argv[1] + "-trainer",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    learning_rate=1e-2,
    warmup_steps=4,
    save_strategy="no",
    logging_steps=5,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    label_names=["y"],
    seed=3,
    **options.get("arguments", {}),
)
with training.run(sys.argv[1], every=options.get("every"), seed=3) as run:
    trainer = Trainer(
        model=Net(), args=arguments, train_dataset=Rows(), eval_dataset=Rows(), data_collator=collate, callbacks=[Say()]
    )
    huggingface.train(trainer, run)
digest = hashlib.sha256()
for tensor in trainer.model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
done = {"digest": digest.hexdigest(), "step": trainer.state.global_step, "epoch": trainer.state.epoch}
print("done", json.dumps(done | {"logged": [row["step"] for row in trainer.state.log_history]}), flush=True)
