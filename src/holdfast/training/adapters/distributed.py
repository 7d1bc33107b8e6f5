"""DistributedDataParallel: what it takes for a resumed run to add its gradients in the same order.

DDP sends gradients in buckets. It lays them out by the order of the parameters first, and anew after the first backward
pass, by the order in which gradients became ready (torch/csrc/distributed/c10d/reducer.cpp, `rebuild_buckets`). With
three ranks and more, the order in which an element's parts are added depends on its place in the bucket (seen with
gloo). So the first step of a process is rounded in another way than all that follow, and a resumed run has one such
step in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.training.randomness import rng


def settle_buckets(model: Any, compute_loss: Callable[[], Any]) -> None:  # noqa: ANN401 - a DistributedDataParallel
    """Have the buckets laid out for good before the first step; call it on all ranks, at every start, before the loop.

    One forward and backward pass whose traces are removed: gradients, buffers and random numbers are as before. The
    other way is DistributedDataParallel(find_unused_parameters=True), which never lays out anew and pays for that with
    a walk through each graph.

    Args:
        model: The DistributedDataParallel module.
        compute_loss: Computes a loss with `model` from any batch; all trained parameters must have a part in it.
    """
    import torch

    random = rng.capture_states()
    buffers = [buffer.clone() for buffer in model.buffers()]
    compute_loss().backward()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
    rng.restore_states(random)
