"""Leaving a little of the card to others, by the call that torch obeys (RAIL-05, B-12).

There is no environment variable for this: names such as ``TORCH_CUDA_MEMORY_FRACTION`` are read by nobody.
Source: torch.cuda.set_per_process_memory_fraction, a limit of torch's caching allocator for each device.
"""

from __future__ import annotations

import sys

DEFAULT_SHARE = 0.95


def limit_gpu_memory(share: float = DEFAULT_SHARE) -> int:
    """Let torch allocate at most `share` of each visible card's memory; beyond it torch raises its out-of-memory error.

    Call it after importing torch and before the first allocation. Without torch, or without a visible card, nothing is
    to be limited.

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
    devices = int(torch.cuda.device_count())
    for device in range(devices):
        torch.cuda.set_per_process_memory_fraction(share, device)
    return devices
