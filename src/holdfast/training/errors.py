"""What the library raises into a training script: each says what failed, on what, what was seen and what to do."""

from __future__ import annotations

EXIT_STOPPED = 143
"""128 + SIGTERM: the run saved and left because it was asked to; the same command continues it (B-50)."""


class TrainingError(Exception):
    """Something that a person must decide about; `remedy` says how to go on."""

    def __init__(self, message: str, remedy: str = "") -> None:
        """Say what happened, and what to do about it when that is known."""
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message, self.remedy = message, remedy


class CannotSave(TrainingError, TypeError):
    """A value in what is tracked has no plain form; `key` is its place, such as ``optimizer.state.3.fn``."""

    def __init__(self, key: str, what: str, remedy: str) -> None:
        """Name the place and the kind of value."""
        super().__init__(f"{key} cannot be saved: {what}", remedy)
        self.key = key


class SaveFailed(TrainingError):
    """A checkpoint was not made durable; the earlier ones are untouched and training may go on."""


class CannotResume(TrainingError):
    """There is a checkpoint, and it does not fit this script; nothing was started from scratch instead."""


class NoValidCheckpoint(CannotResume):
    """There are checkpoints, and none of them proves right."""


class DirectoryBusy(TrainingError):
    """Another process writes checkpoints into this directory."""


class NonFinite(TrainingError):
    """A logged value became NaN or infinite, and the policy says to end the run."""


class Stopped(SystemExit):
    """Raised between two steps when the run was asked to leave: everything is saved, the exit code is 143.

    A `SystemExit`, so that ``except Exception`` of a script does not swallow it and a script that does not care ends
    with the code that tells its launcher to start the same command again.
    """

    def __init__(self, why: str, step: int, saved: bool) -> None:  # noqa: FBT001 - one of three facts
        """`why` as in stop.json; `step` is the number of complete steps; `saved`: they are in a durable checkpoint."""
        super().__init__(EXIT_STOPPED)
        self.why, self.step, self.saved = why, step, saved
