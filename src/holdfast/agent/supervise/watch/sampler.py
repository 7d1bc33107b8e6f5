"""Health samples while the job runs: its cards, its disks, its memory and CPU as a whole tree, its progress (OBS-08).

One line every `health_every`; the driver is asked through the probe without waiting for it, so a stuck driver costs a
sample. From the samples follow alerts: an event, and a notice to whoever wants to be told. Besides, the clocks of
`clocks` run here, and the stacks are taken here when one of them, or a deadline, runs out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.supervise.notify import StatusMessages, say_facts
from holdfast.core.job.redact import redact_text
from holdfast.core.run.scripts import find_install
from holdfast.host.contain.limits import read_tree_memory
from holdfast.host.process.processes import read_command
from holdfast.model.run import Running, State

from .clocks import StallClocks
from .disks import DiskWatch
from .memory import MemoryWatch
from .notice import NoticeWatch
from .stacks import StackCapture

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.job import JobControl
    from holdfast.agent.supervise.lease.lease import Lease
    from holdfast.model.gpu import Card

    from .leased_cards import LeasedCards

ALERTS = {"wrong_card": "wrong_card", "install": "install_seen"}
"""The event for each thing that is told once."""
REPEATED = ("step", "epoch", "phase", "loss", "last_durable_step", "nonfinite")
"""What of a heartbeat is kept in each sample."""
QUIET = frozenset({"card_underfed"})
"""Advice, which is written down; nobody is called for it."""
OF_CARD = (
    "memory_used_bytes",
    "memory_total_bytes",
    "utilisation_pct",
    "memory_utilisation_pct",
    "temperature_c",
    "power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "sm_clock_max_mhz",
    "memory_clock_mhz",
    "throttle",
    "clock_reasons",
    "faults",
)
"""What of a card is kept in each sample."""


class HealthSampler:
    """Samples between `begin` and `end`."""

    def __init__(self, context: SupervisorContext, job: JobControl, lease: Lease) -> None:
        """Nothing is sampled before `begin`."""
        self._context, self._job, self._lease = context, job, lease
        self._alerted: set[str] = set()
        self._step: tuple[float, float] | None = None
        self._clocks: StallClocks | None = None
        self._notice = NoticeWatch(context)
        self._disks: DiskWatch | None = None
        self._cards: LeasedCards | None = None
        self._memory: MemoryWatch | None = None
        self._leader: int | None = None
        self._status: StatusMessages | None = None

    def begin(self, state: State) -> None:
        """Sample and look from now on, if the job runs; the clocks of one that is being stopped stand still."""
        if not isinstance(state, Running):
            self.stop_clocks()
            return
        self._leader, devices = state.job.process.pid, state.devices
        if self._cards is None and (devices or self._context.attempt > 1):
            from .leased_cards import LeasedCards  # lazy: a first attempt without cards has nothing to compare

            self._cards = LeasedCards(self._context, self._lease, devices, self._tell)
        if self._context.spec.health_every_s > 0:
            self._context.loop.timers.arm("health", self._context.spec.health_every_s, self._sample)
        if self._status is None and self._context.spec.channels.every is not None:
            self._status = StatusMessages(self._context, self._context.spec.channels.every)
            self._status.begin()
        if self._clocks is None:
            self._clocks = StallClocks(self._context, self._job, self._lease, self.capture)
            self._clocks.begin(state)
            self._notice.begin()

    def stop_clocks(self) -> None:
        """The job no longer runs freely: nothing of it counts as a stall."""
        self._notice.end()
        if self._clocks is not None:
            self._clocks.end()
        if self._status is not None:
            self._status.end()

    def end(self) -> None:
        """No more samples. What the driver has reported up to now is fetched: the cards are still leased."""
        self.stop_clocks()
        self._context.loop.timers.disarm("health")
        if self._cards is not None:
            self._cards.hear()
        if self._disks is not None:
            self._disks.close()

    def capture(self, why: str, then: Callable[[dict[str, object]], None]) -> None:
        """Take the stacks of the whole tree, then go on: after a second at most (docs/health.md)."""
        try:
            capture = StackCapture(self._context, self._job.list_processes(), why, then)
            capture.begin()
        except OSError as error:
            # Help for a person; the stop or report that waits for it comes all the same.
            self._context.recorder.log(f"the stacks could not be taken: {error}")
            then({"why": why, "failed": str(error)})

    def _sample(self) -> None:
        self._context.loop.timers.arm("health", self._context.spec.health_every_s, self._sample)
        tree, progress, cards = self._read_tree(), self._read_progress(), self._read_cards()
        values: dict[str, object] = {
            **tree,
            **progress,
            "cards": [self._describe_card(card) for card in cards],
            "disks": self._read_disks(),
        }
        self._context.recorder.sample(values)
        if self._cards is not None:
            self._cards.judge(cards, progress, tree.get("cpu_s"))
        self._look_for_installs()

    def _read_disks(self) -> list[dict[str, object]]:
        if self._disks is None:
            self._disks = DiskWatch(self._context, self._tell)
        return self._disks.read()

    def _tell(self, event: str, **data: object) -> None:
        """One alert: whoever raises it knows when it is over, and raises it again only after that."""
        self._context.recorder.event(event, **data)
        if event not in QUIET:
            self._context.notify(event, reason=say_facts(data))

    def _look_for_installs(self) -> None:
        """A package installer among the job's processes: every run would do it again (RAIL-09)."""
        if self._context.spec.allow_install or "install" in self._alerted:
            return

        for pid in self._job.list_pids():
            command = read_command(pid) or ""
            if find_install(command) is not None:
                self._alert("install", pid=pid, command=redact_text(command[:4000])[:200])
                return

    def _read_tree(self) -> dict[str, object]:
        containment = self._job.containment
        if containment is None or containment.group is None:
            return self._read_tree_by_process()
        usage = containment.group.usage()
        return {
            "memory_bytes": usage.memory_bytes,
            "memory_anon_bytes": usage.memory_anon_bytes,
            **self._judge_memory(usage.memory_anon_bytes),
            "cpu_s": usage.cpu_s,
            "throttled_s": usage.throttled_s,
            "tasks": usage.tasks,
            "oom_kills": usage.oom_kills,
        }

    def _read_tree_by_process(self) -> dict[str, object]:
        pids = self._job.list_pids()
        used = read_tree_memory(pids)
        return {
            "memory_bytes": used.memory_bytes,
            "memory_exact": used.exact,
            **self._judge_memory(used.memory_bytes),
            "tasks": len(pids),
        }

    def _judge_memory(self, used: int | None) -> dict[str, object]:
        if self._memory is None:
            self._memory = MemoryWatch(self._context, self._tell)
        return self._memory.judge(used, self._leader)

    def _alert(self, what: str, **data: object) -> None:
        if what not in self._alerted:
            self._alerted.add(what)
            name = ALERTS[what]
            self._context.recorder.event(name, **data)
            self._context.notify(name, reason=say_facts(data))

    def _read_progress(self) -> dict[str, object]:
        beat = self._context.heartbeat()
        values: dict[str, object] = {name: beat[name] for name in REPEATED if name in beat}
        step, at = beat.get("step"), beat.get("time")
        if isinstance(step, (int, float)) and isinstance(at, (int, float)):
            if self._step is not None and at > self._step[1]:
                values["steps_per_s"] = round((step - self._step[0]) / (at - self._step[1]), 4)
            self._step = (float(step), float(at))
        return values

    def _read_cards(self) -> list[Card]:
        inventory = self._lease.read_again()
        if inventory is None:
            return []
        self._check_strays(self._lease.leased_cards)
        if self._cards is None:
            return []
        self._cards.hear()
        return self._cards.look()

    def _describe_card(self, card: Card) -> dict[str, object]:
        return {
            "index": card.index,
            "uuid": card.uuid,
            **{name: getattr(card, name) for name in OF_CARD},
            "simulated": self._lease.inventory.source.value == "simulated",
        }

    def _check_strays(self, leased: frozenset[str]) -> None:
        """A process of this run on a card that it has not leased: somebody else's card (the right-card guarantee)."""
        for card in self._lease.inventory.cards:
            if card.uuid in leased:
                continue
            strays = [process.pid for process in card.processes or () if process.run_id == self._context.run_id]
            if strays:
                self._alert("wrong_card", card=card.uuid, index=card.index, pids=strays, watcher=os.getpid())
