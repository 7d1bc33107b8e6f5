"""The platform that is a box elsewhere. The contract is in `platforms.base`; the work is the entries' of `agent.place`.

What a box answers is checked before it is believed: it is about the run that was asked for, and of the right form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.control_characters import clean
from holdfast.model import wire
from holdfast.model.errors import PlaceError
from holdfast.model.order import Order, RunRef
from holdfast.model.record import replace
from holdfast.platforms.base import OrderResult, ProvenStart
from holdfast.transfer.answers import read_error

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

ANSWER_WITHIN_S = 180.0
"""How long the entry may take to make a run: a tree of 2 GiB is hashed there, one of 200 MB copied, on a busy disk."""
COME_UP_S = 15.0


class SshPlatform:
    """Runs on a box, under the runs root of its place."""

    kind = "ssh"

    def __init__(self, box: Box) -> None:
        """Work with the runs of `box`."""
        self._box = box

    def submit(self, order: Order, *, prove_s: float | None = None) -> OrderResult:
        """Have the box take the order, whose code is there already; as of `Platform.submit`."""
        root = self._box.ensure().root
        words, limit_s = ["--root", root], ANSWER_WITHIN_S
        if prove_s is not None:
            words += ["--prove", f"{prove_s:g}"]
            limit_s += COME_UP_S + order.job.timeouts.preflight_s + prove_s
        answer = self._box.entry("submit", words, stdin=wire.to_bytes(order), limit_s=limit_s)
        return read_submission(answer, order.run_id, self._box.place.name, root)


def read_submission(answer: dict[str, object], run_id: str, place: str, root: str) -> OrderResult:
    """What a box answered to the order of `run_id`.

    Raises:
        PlaceError: it answered something else.
    """
    try:
        ref = wire.decode(RunRef, answer.get("run"), "run")
        if ref.run_id != run_id or ref.run_dir != f"{root}/{run_id}":
            raise wire.WireError(f"run: it is about {clean(ref.run_dir)[:200]!r}")
        started = answer.get("started")
        proven = None if started is None else wire.decode(ProvenStart, started, "started")
        problem = None if answer.get("problem") is None else read_error(answer["problem"], place)
    except wire.WireError as error:
        raise PlaceError(
            f"{place} answered something else than the run {run_id}: {error}",
            hint=f"holdfast place probe {place}",
            details={"place": place, "why": "bad_answer"},
        ) from error
    return OrderResult(replace(ref, place=place), proven, problem)
