"""What a training script imports: ``from holdfast import training``. Standard library only, nothing at import time.

``with training.run(...) as run`` is the whole of it for most scripts (docs/training.md); `latest`, `verify` and `load`
look at checkpoints from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import latest, load, verify
    from .cadence import checkpoint_bytes
    from .checkpoints import Verdict
    from .data import BatchSampler, follow
    from .environment import DevicesMissing
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
    from .memory import limit_gpu_memory
    from .requests import checkpoint_requested
    from .rng import seed_everything
    from .saving import Save
    from .session import Run, run
    from .slices import advise_loader

_PLACES = {
    "run": "session", "Run": "session", "Save": "saving",
    "latest": "api", "load": "api", "verify": "api", "Verdict": "checkpoints",
    "BatchSampler": "data", "follow": "data", "seed_everything": "rng",
    "limit_gpu_memory": "memory", "checkpoint_requested": "requests", "advise_loader": "slices",
    "checkpoint_bytes": "cadence", "DevicesMissing": "environment",
    "TrainingError": "errors", "CannotSave": "errors", "SaveFailed": "errors", "CannotResume": "errors",
    "NoValidCheckpoint": "errors", "DirectoryBusy": "errors", "NonFinite": "errors", "Stopped": "errors",
}  # fmt: skip
"""Where each public name lives: a module is loaded when its first name is used."""

__all__ = [
    "BatchSampler",
    "CannotResume",
    "CannotSave",
    "DevicesMissing",
    "DirectoryBusy",
    "NoValidCheckpoint",
    "NonFinite",
    "Run",
    "Save",
    "SaveFailed",
    "Stopped",
    "TrainingError",
    "Verdict",
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
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{place}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
