"""One rank of a torchrun with gloo on the CPU: raises, is killed, or never comes. Needs torch."""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from typing import Any

from .common import LONGEST_S, beat, choose, mark, tell

ODD = 1
"""The rank with which something is wrong."""


def main() -> None:
    """A few collectives together, then the trouble of the odd rank."""
    import torch
    import torch.distributed

    # Both are untyped for us: torch is no dependency.
    tensors: Any = torch
    group: Any = torch.distributed
    trouble, rank = choose(), int(os.environ["RANK"])
    patience = dt.timedelta(seconds=5 if trouble == "late" else 600)
    group.init_process_group("gloo", timeout=patience)
    for step in range(5):
        group.all_reduce(tensors.ones(4))
        if rank == 0:
            beat(step, phase="train", loss=1.0)
            tell(f"step {step} loss 1.0")
    if rank == ODD:
        mark("odd")
        if trouble == "raise":
            raise ValueError("rank 1 met a bad sample")
        if trouble == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LONGEST_S)
    mark("waits")
    group.all_reduce(tensors.ones(4))
    group.destroy_process_group()


if __name__ == "__main__":
    main()
