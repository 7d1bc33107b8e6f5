"""Accelerate: what an `Accelerator` prepared, tracked, and its loaders followed; the loop stays the script's own.

    accelerate.track_accelerator(run, accelerator)
    batches = accelerate.follow_loader(run, loader)

One step of the run is one step of the optimizer: gradients that are still being accumulated are not saved.

Facts from accelerate 1.15, data_loader.py: a prepared loader holds the DataLoader that it goes through as
`base_dataloader` and reads one batch ahead of what it gives; `begin`, `end_of_dataloader` and `end` are how
`Accelerator.accumulate` and `gather_for_metrics` hear where an epoch ends.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from holdfast.training.errors import TrainingError

from .boundary import number

if TYPE_CHECKING:
    from holdfast.training.data.batches import Batches
    from holdfast.training.session import Run

    Foreign = Any  # an object of accelerate or torch

SPLIT = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP")


def track_accelerator(run: Run, accelerator: Foreign) -> None:
    """Track everything that the accelerator prepared or that was registered with it; call it after `prepare`.

    Names: ``model``, ``optimizer``, ``scheduler`` (the second of a kind is ``model1``), ``scaler``, ``custom``. With
    several ranks all of it is the same on each of them, except what was registered with `register_for_checkpointing`.

    Raises:
        TrainingError: nothing was prepared, or the model is split over the ranks.
    """
    kind = getattr(accelerator.distributed_type, "name", str(accelerator.distributed_type))
    if kind in SPLIT:
        raise TrainingError(
            f"the accelerator splits the model over the ranks ({kind}) in a format of its own",
            "use accelerator.save_state() and load_state() for this model",
        )
    things = {
        **number("model", accelerator._models),  # noqa: SLF001 - there is no public list of them
        **number("optimizer", accelerator._optimizers),  # noqa: SLF001
        **number("scheduler", accelerator._schedulers),  # noqa: SLF001
    }
    if not things:
        raise TrainingError("the accelerator has prepared nothing yet", "call accelerator.prepare(...) first")
    run.track(**things, scaler=accelerator.scaler, replicated=run.world > 1)
    run.track(**number("custom", accelerator._custom_objects))  # noqa: SLF001


def follow_loader(run: Run, loader: Foreign, *, name: str = "data") -> PreparedBatches:
    """`Run.batches` for a loader that `Accelerator.prepare` made: without end, on the device, exact to the batch.

    Raises:
        TrainingError: rank 0 reads for all ranks.
    """
    if type(loader).__name__ == "DataLoaderDispatcher":
        raise TrainingError(
            f"{name} is read on rank 0 for all ranks, which leaves no position of each rank",
            "give Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))",
        )
    base = getattr(loader, "base_dataloader", None)
    if base is None:
        raise TrainingError(
            f"{name} is a {type(loader).__name__}, which accelerate did not prepare", "use run.batches() for it"
        )
    return PreparedBatches(run.batches(base, name=name), loader)


class PreparedBatches:
    """An endless iterator over the batches of a prepared loader; `batches` has the epoch and the position."""

    def __init__(self, batches: Batches, loader: Foreign) -> None:
        self.batches = batches
        self._loader = loader
        self._told: int | None = None

    def __iter__(self) -> PreparedBatches:
        return self

    def __next__(self) -> Foreign:
        batches, loader = self.batches, self._loader
        batch = next(batches)
        if batches.epoch != self._told:
            if self._told is not None:
                loader.end()
            loader.begin()
            self._told = batches.epoch
        loader.end_of_dataloader = batches.position == batches.length
        if loader.device is None:
            return batch
        return sys.modules["accelerate"].utils.send_to_device(batch, loader.device)
