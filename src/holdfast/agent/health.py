"""Health samples while the job runs: its cards, its disks, its memory and CPU as a whole tree, its progress (OBS-08).

One line every `health_every`; the driver is asked through the probe without waiting for it, so a stuck driver costs a
sample. From the samples follow alerts: an event, and a notice to whoever wants to be told. Besides, the clocks of
`clocks` run here, and the stacks are taken here when one of them, or a deadline, runs out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..model.run import Running, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.gpu import Card
    from ..model.lease import LeasedDevice
    from .card_watch import CardWatch, PaceWatch
    from .clocks import Clocks
    from .context import Context
    from .disk_watch import DiskWatch
    from .job_control import JobControl
    from .leasing import CardLease
    from .memory_watch import MemoryWatch
    from .xid_watch import XidWatch

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

    def __init__(self, context: Context, job: JobControl, lease: CardLease) -> None:
        """Nothing is sampled before `begin`."""
        self._context, self._job, self._lease = context, job, lease
        self._alerted: set[str] = set()
        self._step: tuple[float, float] | None = None
        self._devices: tuple[LeasedDevice, ...] = ()
        self._clocks: Clocks | None = None
        self._disks: DiskWatch | None = None
        self._watches: tuple[CardWatch, PaceWatch] | None = None
        self._memory: MemoryWatch | None = None
        self._xids: XidWatch | None = None
        self._leader: int | None = None

    def begin(self, state: State) -> None:
        """Sample and look from now on, if the job runs; the clocks of one that is being stopped stand still."""
        if not isinstance(state, Running):
            self.stop_clocks()
            return
        self._leader, self._devices = state.job.process.pid, state.devices
        if self._context.spec.health_every_s > 0:
            self._context.loop.timers.arm("health", self._context.spec.health_every_s, self._sample)
        if self._clocks is None:
            from .clocks import Clocks

            self._clocks = Clocks(self._context, self._job, self._lease, self.capture)
            self._clocks.begin(state)

    def stop_clocks(self) -> None:
        """The job no longer runs freely: nothing of it counts as a stall."""
        if self._clocks is not None:
            self._clocks.end()

    def end(self) -> None:
        """No more samples. What the driver has reported up to now is fetched: the cards are still leased."""
        self.stop_clocks()
        self._context.loop.timers.disarm("health")
        if self._leader is not None:
            self._hear()
        if self._disks is not None:
            self._disks.close()

    def capture(self, why: str, then: Callable[[dict[str, object]], None]) -> None:
        """Take the stacks of the whole tree, then go on: after a second at most (docs/health.md)."""
        from .stacks import Capture

        try:
            capture = Capture(self._context, self._job.list_processes(), why, then)
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
        self._judge(cards, progress, tree.get("cpu_s"))
        self._look_for_installs()

    def _read_disks(self) -> list[dict[str, object]]:
        if self._disks is None:
            from .disk_watch import DiskWatch

            self._disks = DiskWatch(self._context, self._tell)
        return self._disks.read()

    def _judge(self, cards: list[Card], progress: dict[str, object], cpu_s: object) -> None:
        if not cards and self._context.attempt < 2:
            # Nothing to judge, and nothing to compare with.
            return
        if self._watches is None:
            from .card_watch import CardWatch, PaceWatch

            gpu, run_id = self._context.spec.gpu, self._context.run_id
            cards_watch = CardWatch(self._tell, run_id, gpu.memory_bytes if gpu.share else None)
            self._watches = cards_watch, PaceWatch(self._context, self._tell)
        watch, pace = self._watches
        if cards:
            watch.note(cards, progress.get("step"), cpu_s)
        pace.note(progress.get("steps_per_s"), cards)

    def _tell(self, event: str, **data: object) -> None:
        """One alert: whoever raises it knows when it is over, and raises it again only after that."""
        self._context.recorder.event(event, **data)
        if event not in QUIET:
            self._context.notify(event)

    def _look_for_installs(self) -> None:
        """A package installer among the job's processes: every run would do it again (RAIL-09)."""
        if self._context.spec.allow_install or "install" in self._alerted:
            return
        from ..core.redact import redact_text
        from ..core.scripts import find_install
        from ..host.processes import read_command

        for pid in self._job.list_pids():
            command = read_command(pid) or ""
            if find_install(command) is not None:
                self._alert("install", pid=pid, command=redact_text(command[:4000])[:200])
                return

    def _read_tree(self) -> dict[str, object]:
        gear = self._job.gear
        if gear is None or gear.group is None:
            return self._read_tree_by_process()
        usage = gear.group.usage()
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
        from ..host.limits import read_tree_memory

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
            from .memory_watch import MemoryWatch

            self._memory = MemoryWatch(self._context, self._tell)
        return self._memory.judge(used, self._leader)

    def _alert(self, what: str, **data: object) -> None:
        if what not in self._alerted:
            self._alerted.add(what)
            name = ALERTS[what]
            self._context.recorder.event(name, **data)
            self._context.notify(name)

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
        self._hear()
        return self._leased_cards()

    def _leased_cards(self) -> list[Card]:
        from .card_watch import find_leased

        return find_leased(self._lease.inventory, self._devices)

    def _hear(self) -> None:
        """Fetch the Xids that were reported; not from a driver that has just answered nothing in time."""
        inventory, cards = self._lease.inventory, self._leased_cards()
        if not inventory.cards or not cards or inventory.source.value != "nvml":
            return
        if self._xids is None:
            from .xid_watch import XidWatch

            self._xids = XidWatch(self._context, self._tell)
        self._xids.look(self._lease.probe(), cards)

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
