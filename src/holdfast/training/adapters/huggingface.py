"""Hugging Face's Trainer: ``huggingface.train(trainer, run)`` instead of ``trainer.train()``.

Only the Trainer knows when everything that belongs to a step is over: after `on_step_end` it still logs, evaluates
(which draws random numbers) and steps schedulers that follow a metric. All of that is over when it asks for the batches
of the next step, so that is where it is saved and stopped. The batches come from `Run.batches` over the DataLoader
inside of the one that accelerate prepared: accelerate reads one batch ahead, and a position would be off by that one.

Where the Trainer is in its epochs it reads from a ``trainer_state.json``, its own way to resume; it gets one in a
directory of its own. Facts from transformers 5 (trainer.py): `_init_training_state`, `_run_epoch`, `get_batch_samples`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

from holdfast.training.errors import TrainingError

from .boundary import begin, log_numbers, pass_boundary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.training.session import Run

    Foreign = Any  # an object of transformers, accelerate or torch


def train(trainer: Foreign, run: Run) -> Foreign:
    """`trainer.train()` that saves by the run's cadence, stops between two steps and goes on where it was.

    Give the Trainer ``save_strategy="no"`` unless you want its checkpoints as well.

    Returns:
        What `Trainer.train` returns; its loss is the mean since the resume.

    Raises:
        Stopped: the run was asked to leave; everything is saved, and the end of the run's block leaves with 143.
        TrainingError: the Trainer shards its state in a way that is not followed.
    """
    for name in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        if getattr(trainer, name, False):
            raise TrainingError(
                f"the Trainer says {name}: its state is split over the ranks in a format of its own",
                "use the Trainer's own checkpoints (save_strategy, resume_from_checkpoint) for this model",
            )
    callback = HoldfastCallback(run, trainer)
    trainer.add_callback(callback)
    return callback.train()


class TrainerRecord:
    """The Trainer's own state (step, logs, best metric) as what `Run.track` takes."""

    def __init__(self, trainer: Foreign) -> None:
        self._trainer = trainer
        self.restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """As the Trainer writes it into trainer_state.json."""
        state = self._trainer.state
        stateful = [*self._trainer.callback_handler.callbacks, self._trainer.control]
        for each in stateful:
            name = type(each).__name__
            # Callbacks with a state, such as early stopping; two of one class are a list there.
            if hasattr(each, "state") and not isinstance(state.stateful_callbacks.get(name), list):
                state.stateful_callbacks[name] = each.state()
        return json.loads(json.dumps(dataclasses.asdict(state)))  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep it for the Trainer, which reads it when it begins."""
        self.restored = state


class HoldfastCallback:
    """The run's side in a Trainer's callbacks; made by `train`.

    An instance is a `TrainerCallback` too: the class is put together when the first one is made, because transformers
    is not imported before.
    """

    def __new__(cls, *_: Any) -> HoldfastCallback:  # noqa: ANN401, PYI034 - a class that is made here
        """Make an instance of this class and of transformers' base class."""
        from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

        made: HoldfastCallback = object.__new__(type(cls.__name__, (cls, TrainerCallback), {}))
        return made

    def __init__(self, run: Run, trainer: Foreign) -> None:
        self._run, self._trainer = run, trainer
        self._record = TrainerRecord(trainer)
        self._get_batches = trainer.get_batch_samples
        self._rest: Iterator[Foreign] = iter(())
        self._begun = self._stopping = False

    def train(self) -> Foreign:
        """Train to the end, from where the run is."""
        run, trainer = self._run, self._trainer
        prepared = trainer.get_train_dataloader()
        if type(prepared).__name__ == "DataLoaderDispatcher":
            raise TrainingError(
                "the Trainer reads on rank 0 for all ranks, which has no position of each rank",
                'set accelerator_config={"dispatch_batches": False} in the TrainingArguments',
            )
        self._batches = run.batches(getattr(prepared, "base_dataloader", prepared))
        run.track(trainer=self._record, replicated=run.world > 1)
        run.resume()
        run.on_stop(self._end_trackers)
        trainer.get_batch_samples = self._next_batches
        # The weights come from the run, which proved them.
        trainer._load_from_checkpoint = lambda *_, **__: None  # noqa: SLF001 - there is no public way around it
        try:
            if self._record.restored is None:
                return trainer.train()
            with tempfile.TemporaryDirectory(prefix="holdfast-trainer-") as place:
                with open(os.path.join(place, "trainer_state.json"), "w", encoding="utf-8") as file:
                    json.dump(self._record.restored, file)
                return trainer.train(resume_from_checkpoint=place)
        finally:
            del trainer.get_batch_samples, trainer._load_from_checkpoint  # noqa: SLF001 - as above

    def on_train_begin(self, args: Foreign, state: Foreign, control: Foreign, **made: Foreign) -> None:  # noqa: ARG002
        """The optimizer and the scheduler are there: track and restore them."""
        same = self._run.world > 1
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        things = {"model": made["model"], "optimizer": made["optimizer"], "scheduler": made["lr_scheduler"]}
        self._run.track(**things, scaler=scaler, replicated=same)

    def on_epoch_begin(self, args: Foreign, state: Foreign, control: Foreign, **_: Foreign) -> None:  # noqa: ARG002
        """The batches of this epoch that were not given yet."""
        self._rest = self._batches.rest_of_epoch()

    def on_log(
        self,
        args: Foreign,  # noqa: ARG002 - the signature of the hook
        state: Foreign,  # noqa: ARG002
        control: Foreign,  # noqa: ARG002
        logs: dict[str, Any] | None = None,
        **_: Foreign,
    ) -> None:
        """Loss, learning rate and evaluation results go to the run too."""
        log_numbers(self._run, logs or {})

    def on_train_end(self, args: Foreign, state: Foreign, control: Foreign, **_: Foreign) -> None:  # noqa: ARG002
        """All steps are done; also called on a stop, for the trackers among the callbacks."""
        if self._stopping:
            return
        if not self._begun:
            self._run.begin()
        if state.global_step != self._run.step:
            self._run.beat(state.global_step)
        self._run.finish()

    def _next_batches(self, _: Foreign, count: int, device: Foreign) -> tuple[list[Foreign], Foreign]:
        """In place of `Trainer.get_batch_samples`: between two steps."""
        run, state = self._run, self._trainer.state
        if not self._begun:
            self._begun = True
            if state.global_step < state.max_steps:
                begin(run)
            else:
                run.begin()
        elif state.global_step != run.step:
            pass_boundary(run, state.global_step)
        if state.global_step >= state.max_steps:
            # Everything was done already, in the middle of an epoch: the Trainer itself would take one step more.
            self._trainer.control.should_training_stop = True
            return [], None
        batches: tuple[list[Foreign], Foreign] = self._get_batches(self._rest, count, device)
        return batches

    def _end_trackers(self, why: str) -> None:  # noqa: ARG002 - what Run.on_stop calls
        """Let Weights & Biases, TensorBoard and the like finish as at the end of a training."""
        self._stopping = True
        trainer = self._trainer
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
