"""What a job that stands still is doing, for the report of its stall: `holdfast diagnose` in a disposable child.

Only for a stall that is reported. Where the job file has the job stopped for it, the stop does not wait for this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..host.offload import Offload, OffloadFailed
from ..model import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..diagnosis.evidence import Reading
    from ..diagnosis.live.target import CardFacts, LiveTarget
    from ..host.nvml import Probe
    from ..model.identity import ProcessId
    from .context import Context
    from .job_control import JobControl
    from .leasing import CardLease

WITHIN_S = 12.0
"""Two looks 5 s apart, and what is asked of the job and of the disks in between."""
CARDS_S = 2.0
MOST_CLUES = 5

Told = dict[str, object]


class StallDiagnosis:
    """One diagnosis at a time."""

    def __init__(self, context: Context, job: JobControl, lease: CardLease) -> None:
        """Nothing is looked at before `begin`."""
        self._context, self._job, self._lease = context, job, lease
        self._work: Offload | None = None
        self._then: Callable[[Told], None] | None = None

    def begin(self, then: Callable[[Told], None]) -> None:
        """Look; `then` gets the verdict, or why there is none (``failed``), within 12 s in any case."""
        if self._work is not None:
            then({"failed": "another diagnosis is under way"})
            return
        context, gear = self._context, self._job.gear
        group = None if gear is None else gear.group
        groups = () if group is None else tuple(group.directories())
        processes, cards = tuple(self._job.list_processes()), self._lease.leased_cards
        try:
            work = self._work = Offload(
                lambda: diagnose(
                    context.run_id, context.run_dir, context.directory, processes, group_dirs=groups, cards=cards
                )
            )
        except OSError as error:
            self._tell(then, {"failed": error.strerror or str(error)})
            return
        self._then = then
        context.helpers.add(work.pid)
        context.loop.add(work.fileno(), lambda: self._take(work))
        context.loop.timers.arm(self, WITHIN_S, lambda: self._give_up(f"no answer within {WITHIN_S:g} s"))

    def end(self) -> None:
        """The job no longer stands still but is being ended: say what there is."""
        self._give_up("the job's end came first")

    def _take(self, work: Offload) -> None:
        if not work.is_done():
            return
        then = self._forget()
        try:
            found: Told = dict(work.result())
        except OffloadFailed as error:
            found = {"failed": str(error)}
        if then is not None:
            self._tell(then, found)

    def _give_up(self, why: str) -> None:
        work = self._work
        then = self._forget()
        if work is not None:
            work.abandon()
        if then is not None:
            self._tell(then, {"failed": why})

    def _forget(self) -> Callable[[Told], None] | None:
        (work, self._work), (then, self._then) = (self._work, None), (self._then, None)
        if work is not None:
            self._context.loop.timers.disarm(self)
            self._context.loop.remove(work.fileno())
            self._context.helpers.discard(work.pid)
        return then

    def _tell(self, then: Callable[[Told], None], found: Told) -> None:
        self._context.recorder.event("diagnosed", **found)
        then(found)


def diagnose(
    run_id: str,
    run_dir: str,
    attempt_dir: str,
    processes: tuple[ProcessId, ...],
    *,
    group_dirs: tuple[str, ...],
    cards: frozenset[str],
) -> Told:
    """In the child: the verdict on these processes of a run, in plain values."""
    from ..diagnosis.live.judge import diagnose_live
    from ..diagnosis.live.target import target_from_run
    from ..host.nvml import Probe, disown

    disown()
    target = target_from_run(
        run_id, processes, run_dir=run_dir, attempt_dir=attempt_dir, group_dirs=group_dirs, cards=len(cards)
    )
    with Probe() as probe:
        read = (lambda: _read_cards(target, cards, probe)) if cards else None
        verdict = diagnose_live(target, read_cards=read).verdict
    return {
        "class": verdict.kind.value,
        "confidence": verdict.confidence.value,
        "detector": verdict.detector,
        "action": verdict.action,
        "evidence_for": wire.encode(verdict.evidence_for[:MOST_CLUES]),
    }


def _read_cards(target: LiveTarget, uuids: frozenset[str], probe: Probe) -> Reading[tuple[CardFacts, ...]]:
    """The leased cards as numbers; unread when one of them did not answer."""
    from ..diagnosis.evidence import Reading
    from ..diagnosis.live.target import card_facts
    from ..host.gpus import read_inventory

    inventory = read_inventory(CARDS_S, probe=probe)
    pids = frozenset(target.list_pids())
    found = tuple(card_facts(card, pids) for card in inventory.cards if card.uuid in uuids)
    if len(found) < len(uuids):
        return Reading(unread=inventory.reason or "a leased card did not answer")
    return Reading(found)
