"""A Lightning module that draws random numbers wherever one can, with validation in the middle of epochs."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
import warnings
from typing import Any

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning.pytorch as pl  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from holdfast import training  # noqa: E402
from holdfast.training.adapters.lightning import HoldfastCallback  # noqa: E402

torch.set_num_threads(1)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 38

    def __getitem__(self, at: int) -> Any:
        noise = torch.Generator().manual_seed(at)
        x = torch.randn(8, generator=noise)
        return x + 0.1 * torch.randn(8), torch.randn(1, generator=noise)


class Net(pl.LightningModule):  # type: ignore[misc,unused-ignore]
    def __init__(self, options: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.options = options
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch: Any, at: int) -> Any:
        x, y = batch
        loss = ((self.layers(x) - y) ** 2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, at: int) -> None:
        x, y = batch
        self.log("val_loss", ((self.layers(x) - y) ** 2).mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.options.get("plateau"):
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            steps = {"scheduler": scheduler, "monitor": "val_loss", "interval": "step", "frequency": 5}
            return {"optimizer": optimizer, "lr_scheduler": steps}
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]


class Say(pl.Callback):  # type: ignore[misc,unused-ignore]
    said: int | None = None

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step != self.said and not trainer.fit_loop._should_accumulate():
            self.said = trainer.global_step
            print("step", trainer.global_step, flush=True)
            while trainer.global_step == options.get("halt") and not run.stop_requested:
                time.sleep(0.001)  # until the signal that is on its way is here


options = json.loads(sys.argv[2])
with training.run(sys.argv[1], every=options.get("every"), seed=3) as run:
    workers = options.get("workers", 0)
    data = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=workers)
    model = Net(options)
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[1] + "-trainer",
        callbacks=[Say(), HoldfastCallback(run)],
        **options.get("trainer", {}),
    )
    trainer.fit(model, data, DataLoader(Rows(), batch_size=8))
    print("after fit", flush=True)
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
rate = trainer.optimizers[0].param_groups[0]["lr"]
done = {"digest": digest.hexdigest(), "step": trainer.global_step, "epoch": trainer.current_epoch, "rate": rate}
print("done", json.dumps(done), flush=True)
