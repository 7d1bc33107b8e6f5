"""All evidence about one live tree, gathered, in one place: what the detectors judge. Pure questions about it."""

from __future__ import annotations

from holdfast.diagnosis.evidence import NOT_LOOKED, Reading
from holdfast.diagnosis.python_stacks import StackDump
from holdfast.model.record import field, record

from .box_change import BoxChange
from .change import ProcessChange, ThreadChange, TreeChange
from .detect.progress import Pace, ProgressJudgement
from .detect.waits import Wait
from .gather.descriptors import WaitedOn
from .gather.flight import FlightFinding
from .gather.run_files import RunFacts
from .gather.target import CardNumbers, LiveTarget

IDLE_CARD_PCT = 5.0
WRITER = "holdfast-writer"
"""What the process that writes the checkpoints of a training calls itself (`training.storage.write.writer`)."""


def is_writer(process: ProcessChange) -> bool:
    """Whether it is the training library's own helper, which looks once a second whether its training lives."""
    return process.after.name == WRITER


@record
class Case:
    """Two looks and what came of them.

    `cards` are readings of the leased cards in the window, one tuple for each reading. `waited` says by thread id on
    what descriptors a thread waits, `suspects` by pid which slow mounts a process has files on. `dumps` are the Python
    stacks, by pid, in the order in which they were taken. `deep`: tools are attached after this.
    """

    target: LiveTarget
    change: TreeChange
    box: BoxChange
    progress: ProgressJudgement
    run: Reading[RunFacts] = field(default_factory=lambda: Reading(unread=NOT_LOOKED))
    cards: Reading[tuple[tuple[CardNumbers, ...], ...]] = field(default_factory=lambda: Reading(unread=NOT_LOOKED))
    waited: dict[int, WaitedOn] = field(default_factory=dict)
    suspects: dict[int, tuple[WaitedOn, ...]] = field(default_factory=dict)
    dumps: dict[int, tuple[StackDump, ...]] = field(default_factory=dict)
    flight: Reading[tuple[FlightFinding, ...]] = field(default_factory=lambda: Reading(unread=NOT_LOOKED))
    job_age_s: float | None = None
    deep: bool = False

    # ------------------------------------------------------------------------------------------------- the tree

    def ranks(self) -> dict[int, ProcessChange]:
        """The processes of a multi-rank job by rank: the topmost ones that carry a RANK."""
        found: dict[int, ProcessChange] = {}
        for process in self.change.living:
            rank = _rank_of(process)
            parent = self.change.find(process.after.ppid)
            if rank is None or (parent is not None and _rank_of(parent) == rank):
                continue
            found.setdefault(rank, process)
        return found if len(found) > 1 else {}

    def focus(self) -> tuple[ProcessChange, ...]:
        """The processes that do the job: ranks, or what a shell or launcher merely waits for."""
        ranks = self.ranks()
        if ranks:
            return tuple(ranks[rank] for rank in sorted(ranks))
        known = {process.pid for process in self.change.processes}
        pending = [p for p in self.change.living if p.after.ppid not in known]
        found, seen = [], set()
        while pending:
            process = pending.pop(0)
            if process.pid in seen:
                continue
            seen.add(process.pid)
            children = [child for child in self.change.children(process.pid) if not is_writer(child)]
            main = process.deciding
            if children and main is not None and main.wait in (Wait.CHILD, Wait.VFORK):
                pending += children
            else:
                found.append(process)
        return tuple(found)

    def kind_of_wait(self, thread: ThreadChange) -> Wait | None:
        """What a thread waited for at both looks; a poll is told apart by its descriptors. None when it changed."""
        wait = thread.wait
        on = self.waited.get(thread.after.tid)
        if wait in (Wait.POLL, Wait.OTHER, Wait.UNKNOWN) and on is not None:
            return on.kind if on.kind is not Wait.STORAGE else wait
        return wait

    # ------------------------------------------------------------------------------------------------ the cards

    def card_values(self, name: str) -> list[float]:
        """One number of every reading of every card; empty when any of them is unread."""
        values = [getattr(card, name) for reading in self.cards.value or () for card in reading]
        return [] if None in values else values

    @property
    def cards_busy(self) -> bool | None:
        """Whether a card of ours was at work in every reading; None where that is not known or there is none."""
        readings = self.cards.value or ()
        if not readings:
            return None
        tops = [max((c.utilisation_pct for c in r if c.utilisation_pct is not None), default=None) for r in readings]
        if None in tops:
            return None
        return all(top is not None and top > IDLE_CARD_PCT for top in tops)

    # --------------------------------------------------------------------------------------------- the judgement

    @property
    def alive(self) -> bool:
        """Whether the run's own signs of progress forbid to speak of a hang."""
        return self.progress.is_alive

    @property
    def overdue(self) -> bool:
        """Whether the run itself says that it does not get on."""
        return self.progress.pace is Pace.OVERDUE


def _rank_of(process: ProcessChange) -> int | None:
    text = (process.after.environment.value or {}).get("RANK", "")
    return int(text) if text.isdigit() else None
