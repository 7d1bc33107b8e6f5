"""Leaving a little of the card to others, by the call that torch obeys (RAIL-05, B-12).

There is no environment variable for this: names such as ``TORCH_CUDA_MEMORY_FRACTION`` are read by nobody.
Source: torch.cuda.set_per_process_memory_fraction, a limit of torch's caching allocator for each device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

DEFAULT_SHARE = 0.95


def limit_gpu_memory(share: float = DEFAULT_SHARE, devices: Iterable[int] | None = None) -> int:
    """Let torch allocate at most `share` of each visible card's memory; beyond it torch raises its out-of-memory error.

    Call it after importing torch and before the first allocation. Without torch, or without a visible card, nothing is
    to be limited.

    Args:
        share: Above 0 and up to 1.
        devices: Indices of visible cards, None for all. A process that uses one of several names it, because the
            call sets up CUDA on the cards that it is made for.

    Returns:
        The number of devices that were limited.

    Raises:
        ValueError: `share` is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"{share!r} is not a share of the memory: give a number above 0 and up to 1")
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    count = int(torch.cuda.device_count())
    chosen = range(count) if devices is None else [device for device in devices if 0 <= device < count]
    for device in chosen:
        torch.cuda.set_per_process_memory_fraction(share, device)
    return len(chosen)
