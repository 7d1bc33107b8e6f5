"""The platform that is this box. The contract is in `platforms.base`; the work is the agent's.

A job that is typed here needs no order: `start` takes it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.place.submit import carry_out
from holdfast.model import wire
from holdfast.model.place import LOCAL
from holdfast.model.record import replace
from holdfast.platforms.base import OrderResult, ProvenStart

if TYPE_CHECKING:
    from holdfast.model.order import Order


class LocalPlatform:
    """Runs on this box, under one directory of runs."""

    kind = LOCAL

    def __init__(self, root: str) -> None:
        """Work with the runs under `root`; it is made when the first run is submitted."""
        self._root = root

    def submit(self, order: Order, *, prove_s: float | None = None) -> OrderResult:
        """Take an order as a desk elsewhere would have it taken here; as of `Platform.submit`."""
        taken = carry_out(order, self._root, os.environ, prove_s=prove_s)
        started = None if taken.started is None else wire.decode(ProvenStart, wire.encode(taken.started))
        return OrderResult(replace(taken.ref, place=LOCAL), started, taken.problem)
