"""Whom to look at: a run of ours, or any process and its descendants.

Theory. A run's processes are given by identity (pid, start time, boot), proven by whoever calls; their descendants are
looked for anew at each look. A bare pid may belong to anybody: it is looked at and never signalled (`ours` is False).
We ourselves and what we started are never part of it, also when the target is our own shell.
"""

from __future__ import annotations

import os

from holdfast.diagnosis.live.detect.progress import PATIENCE_S, STARTUP_S
from holdfast.host.contain.create import find_cgroups
from holdfast.host.process.processes import identify, list_pids, read_stat
from holdfast.model import wire
from holdfast.model.gpu import Card
from holdfast.model.identity import ProcessId
from holdfast.model.record import field, record

from .run_files import RunFiles


@record
class CardNumbers:
    """One card as numbers: percent, watts, MHz; None is "not readable".

    `ours_present` says whether one of the target's processes is listed on the card (None: not readable), `throttle` the
    hard reasons that hold its clocks down (None: not readable).
    """

    name: str
    utilisation_pct: float | None = None
    memory_utilisation_pct: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    ours_present: bool | None = None
    throttle: tuple[str, ...] | None = ()

    @property
    def power_share(self) -> float | None:
        """Power as a part of the limit."""
        if self.power_w is None or not self.power_limit_w:
            return None
        return self.power_w / self.power_limit_w

    @property
    def clock_share(self) -> float | None:
        """The SM clock as a part of its maximum."""
        if self.sm_clock_mhz is None or not self.sm_clock_max_mhz:
            return None
        return self.sm_clock_mhz / self.sm_clock_max_mhz


HARD_THROTTLE = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake", "reliability"})
"""Names of `model.gpu.CLOCK_LIMITS` that cost speed. A software power cap at full load is normal, so it is not here."""


def build_card_numbers(card: Card, pids: frozenset[int]) -> CardNumbers:
    """One card of an inventory as numbers, from the view of the processes `pids`.

    In a PID namespace of its own NVML's numbers are not ours; then none of `pids` is found although one may be there,
    so a card with processes of another namespace leaves `ours_present` None.
    """
    present: bool | None = None
    if card.processes is not None:
        mine = [process for process in card.processes if process.pid in pids]
        foreign = any(process.kind.value in ("other_namespace", "unknown") for process in card.processes)
        present = bool(mine) if mine or not foreign else None
    told = card.clock_reasons is not None or bool(card.throttle)
    reasons = tuple(name for name in card.throttle if name in HARD_THROTTLE) if told else None
    return CardNumbers(
        name=f"{card.name} {card.uuid}",
        utilisation_pct=card.utilisation_pct,
        memory_utilisation_pct=card.memory_utilisation_pct,
        power_w=card.power_w,
        power_limit_w=card.power_limit_w,
        sm_clock_mhz=card.sm_clock_mhz,
        sm_clock_max_mhz=card.sm_clock_max_mhz,
        ours_present=present,
        throttle=reasons,
    )


@record
class LiveTarget:
    """What is looked at.

    `roots` are the processes by identity; `ours` says that they are proven to belong to a run of this account, which
    is what allows the private signal. `cards` is how many cards the run leased; `usual_steps_per_s` its throughput in
    earlier runs of the same configuration. `patience_s` is the least age of the last step that counts as overdue.
    """

    name: str
    roots: tuple[ProcessId, ...]
    ours: bool = False
    files: RunFiles = field(default_factory=RunFiles)
    group_dirs: tuple[str, ...] = ()
    cards: int = 0
    usual_steps_per_s: float | None = None
    patience_s: float = PATIENCE_S
    startup_s: float = STARTUP_S

    def list_pids(self) -> tuple[int, ...]:
        """The roots that still are who they were, and all their descendants, without ourselves."""
        stats = {pid: stat for pid in list_pids() if (stat := read_stat(pid)) is not None}
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.ppid, []).append(pid)
        pending = [p.pid for p in self.roots if p.pid in stats and stats[p.pid].start_ticks == p.start_ticks]
        found: dict[int, None] = {}
        while pending:
            pid = pending.pop(0)
            if pid in found or pid == os.getpid():
                continue
            found[pid] = None
            pending += sorted(children.get(pid, ()))
        return tuple(found)


def target_from_run(
    name: str,
    processes: tuple[ProcessId, ...],
    *,
    run_dir: str,
    attempt_dir: str,
    group_dirs: tuple[str, ...] = (),
    cards: int = 0,
    usual_steps_per_s: float | None = None,
) -> LiveTarget:
    """A run of this account whose `processes` are proven to be its own."""
    return LiveTarget(
        name=name,
        roots=processes,
        ours=True,
        files=RunFiles(
            log=f"{attempt_dir}/{wire.OUTPUT}",
            heartbeat=f"{attempt_dir}/{wire.HEARTBEAT}",
            attempt_dir=attempt_dir,
            artifact_dirs=(f"{run_dir}/{wire.ARTIFACTS}", f"{run_dir}/{wire.CHECKPOINTS}"),
            flight_dir=f"{attempt_dir}/flight",
        ),
        group_dirs=group_dirs,
        cards=cards,
        usual_steps_per_s=usual_steps_per_s,
    )


def target_from_pid(pid: int) -> LiveTarget | None:
    """Any process and its descendants, for looking at only; None when there is no such process.

    Its log is what its standard output points to, where that is a file; its control groups are its own.
    """
    process = identify(pid)
    if process is None:
        return None
    places = find_cgroups(pid)
    every = ([places.unified] if places.unified is not None else []) + list(places.v1)
    groups = tuple(dict.fromkeys(place.path for place in every if place.exact))
    return LiveTarget(f"pid {pid}", (process,), files=RunFiles(log=_output_file(pid)), group_dirs=groups)


def _output_file(pid: int) -> str:
    try:
        target = os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""
    plain = target.startswith("/") and not target.startswith("/dev/") and not target.endswith(" (deleted)")
    return target if plain else ""
