"""What a training script imports: ``from holdfast import training``. Standard library only, nothing at import time.

``with training.run(...) as run`` is the whole of it for most scripts (docs/training.md); `latest`, `verify` and `load`
look at checkpoints from elsewhere.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .api import latest, load, verify
    from .box.environment import DevicesMissing
    from .box.memory import limit_gpu_memory
    from .box.requests import checkpoint_requested
    from .box.slices import advise_loader
    from .cadence import checkpoint_bytes
    from .data.batches import follow
    from .data.sampling import BatchSampler
    from .errors import (
        CannotResume,
        CannotSave,
        DirectoryBusy,
        NonFinite,
        NoValidCheckpoint,
        SaveFailed,
        Stopped,
        TrainingError,
    )
    from .randomness.rng import seed_everything
    from .session import Run
    from .start import run
    from .storage.checkpoints import CheckpointCheck
    from .storage.write.save import Save

_PLACES = {
    "run": "start", "Run": "session", "Save": "storage.write.save",
    "latest": "api", "load": "api", "verify": "api", "CheckpointCheck": "storage.checkpoints",
    "BatchSampler": "data.sampling", "follow": "data.batches", "seed_everything": "randomness.rng",
    "limit_gpu_memory": "box.memory", "checkpoint_requested": "box.requests", "advise_loader": "box.slices",
    "checkpoint_bytes": "cadence", "DevicesMissing": "box.environment",
    "TrainingError": "errors", "CannotSave": "errors", "SaveFailed": "errors", "CannotResume": "errors",
    "NoValidCheckpoint": "errors", "DirectoryBusy": "errors", "NonFinite": "errors", "Stopped": "errors",
}  # fmt: skip
"""Where each public name lives: a module is loaded when its first name is used."""

__all__ = [
    "BatchSampler",
    "CannotResume",
    "CannotSave",
    "CheckpointCheck",
    "DevicesMissing",
    "DirectoryBusy",
    "NoValidCheckpoint",
    "NonFinite",
    "Run",
    "Save",
    "SaveFailed",
    "Stopped",
    "TrainingError",
    "advise_loader",
    "checkpoint_bytes",
    "checkpoint_requested",
    "follow",
    "latest",
    "limit_gpu_memory",
    "load",
    "run",
    "seed_everything",
    "verify",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names above
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys.version_info < (3, 10):  # noqa: UP036 - an image's own Python, which nobody has asked before
        words = "holdfast.training needs Python 3.10 or newer, and this is {}.{} ({})"
        raise ImportError(words.format(*sys.version_info[:2], sys.executable))
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{place}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
