"""What can be wrong with a loader, or with the position in one that a checkpoint holds."""

from __future__ import annotations

from holdfast.training.errors import CannotResume, TrainingError


class DataChanged(CannotResume, ValueError):
    """The loader is not the one that the checkpoint's position belongs to."""


class DataUnusable(TrainingError, TypeError):
    """What was given is no loader, or its state is no state."""


class DataEnded(TrainingError):
    """An epoch has no batches, or the loader is an iterator that can be gone through only once."""


class DataWarning(UserWarning):
    """The position is kept, and somebody should know at what price."""
