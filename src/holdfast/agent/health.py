"""Health samples while the job runs: its cards, its memory and CPU as a whole tree, its own progress (OBS-08).

One line every `health_every`; the driver is asked through the probe without waiting for it, so a stuck driver costs a
sample.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..model.run import Running, State

if TYPE_CHECKING:
    from .context import Context
    from .job_control import JobControl
    from .leasing import CardLease

ALERTS = {"wrong_card": "wrong_card", "install": "install_seen"}
"""The event for each thing that is told once."""
REPEATED = ("step", "epoch", "phase", "loss", "last_durable_step", "nonfinite")
"""What of a heartbeat is kept in each sample."""


class HealthSampler:
    """Samples between `begin` and `end`."""

    def __init__(self, context: Context, job: JobControl, lease: CardLease) -> None:
        """Nothing is sampled before `begin`."""
        self._context, self._job, self._lease = context, job, lease
        self._alerted: set[str] = set()
        self._step: tuple[float, float] | None = None

    def begin(self, state: State) -> None:
        """Sample from now on, if the job runs."""
        if isinstance(state, Running):
            self._context.loop.timers.arm("health", self._context.spec.health_every_s, self._sample)

    def end(self) -> None:
        """No more samples."""
        self._context.loop.timers.disarm("health")

    def _sample(self) -> None:
        values: dict[str, object] = {**self._read_tree(), **self._read_progress(), "cards": self._read_cards()}
        self._context.recorder.sample(values)
        self._look_for_installs()
        self._context.loop.timers.arm("health", self._context.spec.health_every_s, self._sample)

    def _look_for_installs(self) -> None:
        """A package installer among the job's processes: every run would do it again (RAIL-09)."""
        if self._context.spec.allow_install or "install" in self._alerted:
            return
        from ..core.scripts import find_install
        from ..host.processes import read_command

        for pid in self._job.list_pids():
            command = read_command(pid) or ""
            if find_install(command) is not None:
                self._alert("install", pid=pid, command=command[:200])
                return

    def _read_tree(self) -> dict[str, object]:
        gear = self._job.gear
        if gear is None or gear.group is None:
            return self._read_tree_by_process()
        usage = gear.group.usage()
        limit = self._context.spec.limits.memory_bytes
        return {
            "memory_bytes": usage.memory_bytes,
            "memory_anon_bytes": usage.memory_anon_bytes,
            "memory_limit_bytes": limit,
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
            "memory_limit_bytes": self._context.spec.limits.memory_bytes,
            "tasks": len(pids),
        }

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

    def _read_cards(self) -> list[dict[str, object]]:
        inventory = self._lease.read_again()
        if inventory is None:
            return []
        leased = self._lease.leased_cards
        self._check_strays(leased)
        return [
            {
                "index": card.index,
                "uuid": card.uuid,
                "memory_used_bytes": card.memory_used_bytes,
                "utilisation_pct": card.utilisation_pct,
                "temperature_c": card.temperature_c,
                "power_w": card.power_w,
                "throttle": card.throttle,
                "faults": card.faults,
                "simulated": inventory.source.value == "simulated",
            }
            for card in inventory.cards
            if card.uuid in leased
        ]

    def _check_strays(self, leased: frozenset[str]) -> None:
        """A process of this run on a card that it has not leased: somebody else's card (the right-card guarantee)."""
        for card in self._lease.inventory.cards:
            if card.uuid in leased:
                continue
            strays = [process.pid for process in card.processes or () if process.run_id == self._context.run_id]
            if strays:
                self._alert("wrong_card", card=card.uuid, index=card.index, pids=strays, watcher=os.getpid())
