"""Lightning 2: ``Trainer(callbacks=[HoldfastCallback(run)])`` and ``trainer.fit(model, ...)``, nothing else.

Lightning's own resume begins after `on_train_batch_end`, when validation and the schedulers that follow it are still
to come, and leaves a validation out that was due there. So a step ends here when Lightning asks for the next batch:
the training's loader is replaced by one whose iterator does what is due between two steps. Where the loops are in
their counters is put back at that same place, in the first batch that is asked for; the fit never knows of a restart.

Facts from lightning 2.6: `loops/training_epoch_loop.py` (`advance`), `loops/fetchers.py` (a loader that has a length is
not read ahead), `trainer/connectors/checkpoint_connector.py` (what a checkpoint consists of), `signal_connector.py`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from holdfast.training.errors import TrainingError

from .boundary import begin, log_numbers, number, pass_boundary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.training.data.batches import Batches
    from holdfast.training.session import Run

    Foreign = Any  # an object of lightning or torch

ELSEWHERE = (
    *("state_dict", "optimizer_states", "lr_schedulers", "loops"),
    *("hyper_parameters", "hparams_name", "hparams_type", "datamodule_hyper_parameters", "datamodule_hparams_name"),
)
"""Parts of a Lightning checkpoint that are tracked by themselves, or that the script says anyway: hyperparameters may
be objects of any kind."""


class HoldfastCallback:
    """Saves by the run's cadence, stops between two steps, goes on where it was; leaves with 143 through `fit`.

    An instance is a Lightning `Callback` too: the class is put together when the first one is made, because Lightning
    is not imported before. Give the Trainer ``enable_checkpointing=False`` unless you want its checkpoints as well.
    """

    def __new__(cls, *_: Any) -> HoldfastCallback:  # noqa: ANN401, PYI034 - a class that is made here
        """Make an instance of this class and of Lightning's base class, of whichever of its two names is in use."""
        if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
            module: Foreign = sys.modules["pytorch_lightning"]
        else:
            from lightning import pytorch as module  # type: ignore[import-not-found,no-redef,unused-ignore]
        made: HoldfastCallback = object.__new__(type(cls.__name__, (cls, module.Callback), {}))
        return made

    def __init__(self, run: Run) -> None:
        self._run = run
        self._trainer: Foreign = None
        self._record = FitRecord()

    def on_fit_start(self, trainer: Foreign, pl_module: Foreign) -> None:
        """Model, optimizers and schedulers are there: track and restore them."""
        if trainer.strategy.restore_checkpoint_after_setup:
            raise TrainingError(
                f"{type(trainer.strategy).__name__} splits the model over the ranks in a format of its own",
                "use Lightning's own checkpoints (ModelCheckpoint, fit(ckpt_path=...)) for this model",
            )
        if not pl_module.automatic_optimization:
            raise TrainingError(
                "the module optimizes by hand (automatic_optimization=False): its steps are not counted in batches",
                "write the loop yourself: run.track(...), run.batches(loader), run.steps(...)",
            )
        run, same = self._run, self._run.world > 1
        self._trainer = trainer
        run.track(**self._record.follow(trainer, pl_module), replicated=same)
        run.track(trainer=self._record, replicated=same)
        run.resume()
        self._record.give_to_trainer()

    def on_train_start(self, trainer: Foreign, pl_module: Foreign) -> None:  # noqa: ARG002 - the signature of the hook
        """Take over the signals and the loader."""
        # Lightning's TERM handler has it leave before the step is saved, with code 0, and broadcasts in the handler.
        trainer._signal_connector.teardown()  # noqa: SLF001 - there is no setting
        trainer._signal_connector.received_sigterm = False  # noqa: SLF001
        combined = trainer.fit_loop._combined_loader  # noqa: SLF001 - Trainer.train_dataloader gives what is inside
        if len(combined.flattened) != 1:
            raise TrainingError(
                f"the fit reads from {len(combined.flattened)} loaders at once", "combine them in one dataset or loader"
            )
        batches = self._run.batches(combined.flattened[0])
        if batches.length is None:
            raise TrainingError(
                "the loader has no length: Lightning reads it ahead, and its position would be off by a batch",
                "give it a length (__len__), or write the loop yourself",
            )
        combined.flattened = [EpochLoader(batches, combined.flattened[0], self._pass_boundary)]
        iter(trainer.fit_loop._data_fetcher)  # noqa: SLF001 - it holds an iterator of the loader from before

    def on_train_batch_end(self, trainer: Foreign, *_: Foreign) -> None:
        """Log what the module logged in this step."""
        log_numbers(self._run, trainer.logged_metrics)

    def on_train_end(self, trainer: Foreign, pl_module: Foreign) -> None:  # noqa: ARG002 - the signature of the hook
        """All steps are done. Not called when they were before: neither the fit nor the run begins then."""
        if trainer.global_step != self._run.step:
            self._run.beat(trainer.global_step)
        self._run.finish()

    def _pass_boundary(self) -> None:
        """Between two batches: everything of the last one is over, nothing of the next one has begun."""
        run, trainer = self._run, self._trainer
        loop = trainer.fit_loop.epoch_loop
        if not self._record.begun:
            self._record.give_to_loops()
            begin(run)
        elif trainer.global_step != run.step and not loop._should_accumulate():  # noqa: SLF001 - gradients are not saved
            pass_boundary(run, trainer.global_step)


class EpochLoader:
    """The training's loader as Lightning sees it: each iterator gives what is left of an epoch."""

    def __init__(self, batches: Batches, loader: Foreign, between: Foreign) -> None:
        self._batches, self._loader, self._between = batches, loader, between
        self.dataset = getattr(loader, "dataset", None)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Foreign]:
        rest = None
        while True:
            self._between()
            # Only made here: what is left is not known before the run has gone back to its place.
            rest = self._batches.rest_of_epoch() if rest is None else rest
            try:
                batch = next(rest)
            except StopIteration:
                return
            yield batch


class FitRecord:
    """What a Lightning checkpoint has besides model, optimizers and schedulers, as what `Run.track` takes."""

    def __init__(self) -> None:
        self.trainer: Foreign = None
        self.restored: dict[str, Any] | None = None
        self.begun = False
        self.scaler: Foreign = None
        self.optimizer: Foreign = None

    def follow(self, trainer: Foreign, module: Foreign) -> dict[str, Foreign]:
        """What has a file of its own, by name."""
        self.trainer = trainer
        # The scaler is saved with the precision plugin, and the wrappers of the optimizers have no state: under these
        # names the run, which warns of what is not tracked, finds that they are.
        self.scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.optimizer = trainer.strategy._lightning_optimizers  # noqa: SLF001
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        return {"model": module, **number("optimizer", trainer.optimizers), **number("scheduler", schedulers)}

    def state_dict(self) -> dict[str, Any]:
        """Callbacks, precision, the data module, and the loops with their counters."""
        dumped = self.trainer._checkpoint_connector.dump_checkpoint(weights_only=False)  # noqa: SLF001
        kept = {key: value for key, value in dumped.items() if key not in ELSEWHERE}
        loops = dumped["loops"]["fit_loop"]
        fetched = self.trainer.fit_loop._data_fetcher.fetched  # noqa: SLF001 - tells Lightning which batch is the last
        return {"checkpoint": kept, "fit_loop": loops, "fetched": fetched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep it until the trainer is where it belongs."""
        self.restored = state

    def give_to_trainer(self) -> None:
        """All but the loops, through Lightning's own way to restore, which goes on with the optimizers after this."""
        if self.restored is None:
            return
        trainer = self.trainer
        connector = trainer._checkpoint_connector  # noqa: SLF001 - `fit(ckpt_path=...)` reads pickles only
        connector._loaded_checkpoint = {  # noqa: SLF001
            **self.restored["checkpoint"],
            # The run has restored these; Lightning insists on them, and its hooks look at them.
            "state_dict": trainer.lightning_module.state_dict(),
            "optimizer_states": [each.state_dict() for each in trainer.optimizers],
            "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        }
        connector.restore_model()
        connector.restore_datamodule()
        connector.restore_callbacks()
        # The hooks up to the first batch see the right epoch and step, and a fit that is over does not begin.
        loop, progress = trainer.fit_loop, self.restored["fit_loop"]
        loop.epoch_progress.current.processed = progress["epoch_progress"]["current"]["processed"]
        loop.epoch_progress.current.completed = progress["epoch_progress"]["current"]["completed"]
        optimization = "epoch_loop.automatic_optimization.optim_progress"
        loop.epoch_loop.automatic_optimization.optim_progress.load_state_dict(progress[optimization])

    def give_to_loops(self) -> None:
        """The counters of all loops, in the place where they were read."""
        self.begun = True
        state, self.restored = self.restored, None
        if state is None:
            return
        loop = self.trainer.fit_loop
        loop.load_state_dict(state["fit_loop"])
        loop.restarting = False
        for each in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
            each.on_iteration_done()
        loop._data_fetcher.fetched = state["fetched"]  # noqa: SLF001 - as above
