"""The platform that is a Slurm. The contract is in `platforms.base`; the work is that of the entry ``slurm`` there.

What this desk knows of it is a script and options; what Slurm says comes from the place, where its commands are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model import wire
from holdfast.model.record import replace
from holdfast.model.slurm import SLURM, SlurmFacts
from holdfast.platforms.base import OrderResult
from holdfast.platforms.ssh.platform import ANSWER_WITHIN_S, read_submission

if TYPE_CHECKING:
    from holdfast.model.order import Order
    from holdfast.transfer.box import Box

FACTS_WITHIN_S = 60.0


class SlurmPlatform:
    """Runs as jobs of a Slurm, under the runs root of its place, which each of its nodes sees."""

    kind = SLURM

    def __init__(self, box: Box) -> None:
        """Work with the Slurm whose commands are on `box`."""
        self._box = box

    def submit(self, order: Order, *, prove_s: float | None = None) -> OrderResult:
        """Have Slurm take the order; as of `Platform.submit`, but that nobody waits for a start: that is Slurm's."""
        del prove_s
        root = self._box.ensure().root
        sent = wire.to_bytes(replace(order, scheduler=SLURM))
        answer = self._box.entry("slurm", ("submit", "--root", root), stdin=sent, limit_s=ANSWER_WITHIN_S)
        return read_submission(answer, order.run_id, self._box.place.name, root)


def measure(box: Box) -> SlurmFacts:
    """What the Slurm of a place is and has.

    Raises:
        PlaceError: it does not answer.
        PreflightFailed: its commands are not there, or refuse.
    """
    answer = box.entry("slurm", ("facts",), limit_s=FACTS_WITHIN_S)
    return wire.decode(SlurmFacts, {key: value for key, value in answer.items() if key != "schema"}, "slurm")
