"""Keras 3, with any backend: ``run.track(model=keras.KerasState(model))`` and a loop around `train_on_batch`.

`Model.fit` cannot be continued in the middle of an epoch: it has a first epoch to begin with and no first step, resets
its metrics there, and some of its data adapters read ahead. So there is no callback that would pretend to: write

    model_state = keras.KerasState(model)      # after compile()
    run.track(model=model_state)
    for step in run.steps(1000):
        logs = model.train_on_batch(*next(batches), return_dict=True)

All that a training step changes is in variables: weights, the optimizer's slots, iterations and learning rate, and the
states of the seeds that dropout draws from (source: keras/src/models/model.py, `get_state_tree`). Metrics are left out:
Keras makes their variables in the first step only. They are means of what was shown, and begin anew after a resume.
"""

from __future__ import annotations

from typing import Any

from holdfast.training.errors import TrainingError

Foreign = Any  # an object of keras


class KerasState:
    """A compiled Keras model with its optimizer, as what `Run.track` takes."""

    def __init__(self, model: Foreign) -> None:
        """Build the optimizer's variables, which Keras itself leaves to the first step.

        Raises:
            TrainingError: the model is not built or not compiled.
        """
        if not model.built or getattr(model, "optimizer", None) is None:
            raise TrainingError(
                f"the model {model.name!r} is not {'compiled' if model.built else 'built'}",
                "give it an Input or call model.build(shape), and call model.compile(...), before it is tracked",
            )
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """All variables as numpy arrays, by group and path."""
        return {
            group: {path: variable.numpy() for path, variable in found.items()}
            for group, found in self._variables().items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Assign all variables.

        Raises:
            ValueError: the checkpoint has other variables; the message names the first.
        """
        for group, found in self._variables().items():
            stored = state.get(group, {})
            differ = sorted(stored.keys() ^ found.keys())
            if differ:
                where = "the checkpoint" if differ[0] in stored else "the model"
                raise ValueError(f"only {where} has {group} {differ[0]} ({len(differ)} of them differ)")
            for path, variable in found.items():
                if tuple(stored[path].shape) != tuple(variable.shape):
                    shapes = f"{list(stored[path].shape)} in the checkpoint, {list(variable.shape)} in the model"
                    raise ValueError(f"{group} {path} has the shape {shapes}")
                variable.assign(stored[path])

    def _variables(self) -> dict[str, dict[str, Foreign]]:
        model = self._model
        groups = {"weights": model.variables, "optimizer": model.optimizer.variables}
        return {name: _by_path(variables) for name, variables in groups.items()}


def _by_path(variables: list[Foreign]) -> dict[str, Foreign]:
    """Variables by their paths; the second one of a path gets a number."""
    found: dict[str, Foreign] = {}
    for variable in variables:
        name, at = variable.path, 1
        while name in found:
            name, at = f"{variable.path}#{at}", at + 1
        found[name] = variable
    return found
