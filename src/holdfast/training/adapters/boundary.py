"""What every adapter does between two steps of a loop that belongs to somebody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.training.session import Run


def begin(run: Run) -> None:
    """The last thing before the first step: random states, and a stop that was asked for while everything was loaded.

    Raises:
        Stopped: it was.
    """
    run.begin()
    run._pass_boundary()  # noqa: SLF001 - as in `pass_boundary`


def pass_boundary(run: Run, step: int) -> None:
    """Say that `step` steps are complete, and save or stop here if that was decided.

    A stop is raised and not returned. The frameworks' own flags (`should_training_stop`, `should_stop`) let the fit
    end as if it were done: epoch-end evaluation, "training completed", and then the script's lines after it, which
    take a half-trained model for the result and cost the time that is left for the save.

    Raises:
        Stopped: the run was asked to leave; everything is saved.
    """
    run.beat(step)
    run._pass_boundary()  # noqa: SLF001 - the step that Run.steps takes here


def log_numbers(run: Run, values: dict[str, Any]) -> None:
    """Log what is a number, or an array of one, under its name."""
    numbers = {}
    for name, value in values.items():
        try:
            numbers[name.replace("/", "_")] = float(value)
        except (TypeError, ValueError, RuntimeError):
            continue
    if numbers:
        run.log(**numbers)


def number(name: str, things: Sequence[Any]) -> dict[str, Any]:
    """Names for several things of a kind: ``optimizer``, ``optimizer1``, ..."""
    return {f"{name}{at or ''}": thing for at, thing in enumerate(things)}
