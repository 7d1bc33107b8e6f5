"""What a training script may import: small, standard library only, nothing happens at import time.

`holdfast.training` grows with checkpoints, stop flags and heartbeats; today it has what the box itself cannot enforce from
outside the process.
"""

from __future__ import annotations

from .memory import limit_gpu_memory
from .requests import checkpoint_requested

__all__ = ["checkpoint_requested", "limit_gpu_memory"]
