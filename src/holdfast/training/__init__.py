"""What a training script may import: small, standard library only, nothing happens at import time.

What the box cannot do from outside of the process: a limit that only torch obeys, a request to save that only the
script can follow.
"""

from __future__ import annotations

from .memory import limit_gpu_memory
from .requests import checkpoint_requested

__all__ = ["checkpoint_requested", "limit_gpu_memory"]
