"""Which source goes through what `follow` was given: the only file that knows all kinds of sources."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from .errors import DataUnusable
from .iterable import IterableSource
from .loaders import LoaderSource, is_map_style
from .sampling import BatchSampler
from .sources import BatchSource, SequenceSource, StatefulSource, has_methods, is_sequence


def source_of(loader: object, name: str, *, seed_samples: bool = True) -> BatchSource:
    """The way to go through `loader`.

    Raises:
        DataUnusable: There is none.
    """
    # Accelerate's loaders have the methods always, and a state only with this option.
    stateful = getattr(loader, "use_stateful_dataloader", True) is not False
    if stateful and has_methods(loader, "state_dict", "load_state_dict", "__iter__"):
        return StatefulSource(loader, name)
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(loader, data.DataLoader) and is_map_style(loader, data):
        return LoaderSource(loader, name, seed_samples=seed_samples)
    if is_sequence(loader) or isinstance(loader, BatchSampler):
        return SequenceSource(loader, name)
    if isinstance(loader, (str, bytes, Mapping)) or not (hasattr(loader, "__iter__") or callable(loader)):
        raise DataUnusable(
            f"{name} is a {type(loader).__name__}, which has no batches",
            "give a DataLoader, a list or array of batches, an iterable, or a function from the epoch to one",
        )
    return IterableSource(loader, name)
