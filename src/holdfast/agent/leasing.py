"""Cards for one run: choose, lock, look again under the lock, wait in line, keep the record true, give back.

The order that keeps two runs apart: survey and choose (a guess), lock all or nothing (the truth among holdfast's
users), read the cards once more (the truth about everybody else). A refusal at any point gives everything back.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.events import LeaseBlocked, LeaseFailed, LeaseGranted
from ..host.clock import boottime_ns, utc_now
from ..host.offload import Offload, OffloadFailed
from ..host.processes import identify_self, user_name
from ..model import wire
from ..model.errors import HoldfastError
from ..model.gpu import Inventory, InventorySource
from ..model.lease import Busy, LeasedDevice, LeaseRecord, Phase, Witness
from ..model.run import Finalizing, Refusal, Running, Starting, State, Stopping, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..core.rules import Rules
    from ..host.lease_area import Area
    from ..host.lease_waiting import Waiter
    from ..host.leases import Held
    from ..host.nvml import Probe
    from ..host.sharing import House
    from ..model.gpu import CardRules, Choice
    from ..model.identity import ProcessId
    from .context import Context
    from .packing import Shared

FIRST_READING_S = 20.0
"""nvmlInit takes seconds on a box without persistence mode; the first reading is worth waiting for."""
READING_MARGIN_S = 10.0
"""The probe keeps its own deadlines; a child that is this late hangs elsewhere, and no run waits for it for ever."""
RECHECK_S = 0.8
RELEASE_PATIENCE_S = 10.0
"""How long the driver gets to hand a dead job's memory back before the cards are let go anyway."""
CLOSE_LATER_S = 0.5
"""After the start, which somebody waits for."""
_PHASES = {Starting: Phase.PREFLIGHT, Running: Phase.RUN, Stopping: Phase.STOPPING, Finalizing: Phase.POSTFLIGHT}


class CardLease:
    """The lease of one run. Emits LeaseGranted, LeaseBlocked or LeaseFailed; `fds` is for the job tree to inherit."""

    def __init__(self, context: Context, prepare_start: Callable[[], object]) -> None:
        """Nothing is leased before `begin`. `prepare_start` does for a start what can be done in line."""
        self._context, self._prepare_start = context, prepare_start
        self._held: Held | None = None
        self._waiter: Waiter | None = None
        self._work: Offload | None = None
        self._inventory = Inventory(InventorySource.NONE)
        self._lost: dict[str, Busy] = {}
        self._probe: Probe | None = None
        self._area: Area | None = None
        self._doubtful: frozenset[str] = frozenset()
        self._full: frozenset[tuple[str, str]] = frozenset()
        self._house: House | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """The lock descriptors that keeper and job must inherit; empty without a lease."""
        return () if self._held is None else self._held.fds

    @property
    def inventory(self) -> Inventory:
        """The last reading of the cards."""
        return self._inventory

    def probe(self) -> Probe:
        """The probe that is kept warm while this run has to do with cards."""
        if self._probe is None:
            from ..host.nvml import Probe

            self._probe = Probe()
        return self._probe

    @property
    def leased_cards(self) -> frozenset[str]:
        """The UUIDs of the cards of this lease."""
        return frozenset() if self._held is None else frozenset(d.card_uuid for d in self._held.record.devices)

    @property
    def is_deciding(self) -> bool:
        """Whether cards are locked and being looked at: whoever waits for them has them nearly."""
        return self._held is not None and self._work is not None

    @property
    def probe_pid(self) -> int | None:
        """The pid of the probe child, which is no part of the job."""
        return None if self._probe is None else self._probe.pid

    def begin(self) -> None:
        """Read the cards in a child, because the driver may hang; then choose."""
        self._lost.clear()
        self._read_aside(0.0, self._choose_first)

    def _read_aside(self, window_s: float, then: Callable[[], None]) -> None:
        """Read the cards in a disposable child, their utilisation over `window_s`, and go on with `then`."""
        context = self._context
        self._abandon_reading()
        work = self._work = Offload(lambda: _read_and_sample(window_s, context.rules, context.environ))
        limit_s = FIRST_READING_S + window_s + READING_MARGIN_S

        def give_up() -> None:
            self._abandon_reading()
            words = f"the cards did not answer within {limit_s:g} s"
            self._fail("gpu_unreadable", 78, words, "the driver or /proc hangs; see `holdfast gpus`")

        def take() -> None:
            if not work.is_done():
                return
            context.loop.timers.disarm("reading")
            context.loop.remove(work.fileno())
            self._work = None
            try:
                self._inventory = wire.decode(Inventory, work.result())
                then()
            except OffloadFailed as error:
                self._fail("gpu_unreadable", 78, f"the cards could not be read: {error}", "see `holdfast gpus`")
            except HoldfastError as error:
                self._fail(error.code, error.exit_code, str(error), error.hint)

        context.loop.add(work.fileno(), take)
        context.loop.timers.arm("reading", limit_s, give_up)

    def _abandon_reading(self) -> None:
        self._context.loop.timers.disarm("reading")
        if self._work is not None:
            self._context.loop.remove(self._work.fileno())
            self._work.abandon()
            self._work = None

    def _fail(self, code: str, exit_code: int, message: str, hint: str) -> None:
        self._context.emit(LeaseFailed(Refusal(code, exit_code, message, hint)))

    # --- choosing --------------------------------------------------------------------------------------------------

    def _rules(self) -> CardRules:
        from ..core.rules import card_rules

        return card_rules(self._context.spec, self._context.rules)

    def _choose_first(self) -> None:
        from ..core import cards
        from ..host import lease_area
        from ..host.allocation import imposed_allocation
        from ..host.lease_survey import survey as look_around

        context, spec = self._context, self._context.spec
        if imposed_allocation(context.environ) is not None:
            self._take_imposed()
            return
        self._area = lease_area.open_area(context.rules.lease_dir, environ=context.environ)
        self._sweep()
        everything = _all_devices(self._inventory)
        house = self._find_house()
        if bars := house.find_bars(self._area, self._record(()), spec.gpus.wanted):
            self._block(bars)
            return
        survey = look_around(self._area, everything)
        reserved = house.find_reserved(self._area, everything)
        held, shared = survey.busy, self._look_at_sharers()
        if shared is not None:
            from .packing import drop_sharers

            held = drop_sharers(survey)
        leased = {uuid: _phrase(busy[0]) for uuid, busy in held.items() if busy}
        kept = {uuid: _phrase(busy) for uuid, busy in {**self._lost, **reserved}.items()}
        leased.update(kept)
        for card in self._inventory.cards:
            # A leased slice makes the whole card busy, but not its other slices: `choose` knows that by itself.
            if any(part.uuid not in leased for part in card.mig_slices):
                leased.pop(card.uuid, None)
        busy_now = (
            *(busy for reasons in held.values() for busy in reasons),
            *self._lost.values(),
            *reserved.values(),
        )

        def choose(taken: Mapping[str, str]) -> Choice:
            return cards.choose(
                spec.gpus,
                self._inventory if shared is None else shared.inventory,
                leased=taken,
                rules=self._rules(),
                imposed=context.environ.get("CUDA_VISIBLE_DEVICES"),
                device_order=context.environ.get("CUDA_DEVICE_ORDER"),
                rooms=None if shared is None else shared.rooms,
            )

        # Cards that are kept for this account come first.
        others = house.list_not_own(self._area, everything, spec.gpus)
        choice = choose({**leased, **others})
        if others and not choice.devices:
            choice = choose(leased)
        if choice.devices:
            context.recorder.event("cards_chosen", devices=choice.devices, rejected=choice.rejected)
            self._try_lock(choice.devices)
            return
        from ..core.packing import find_impossible

        if impossible := find_impossible(spec, self._inventory, context.rules):
            self._fail("no_card", 78, "; ".join(impossible), "see `holdfast gpus`, or ask for what this box has")
            return
        if not cards.is_worth_waiting(spec.gpus, self._inventory, choice):
            words = choice.problem or "no card fits"
            self._fail("no_card", 78, words, "see `holdfast gpus`, or ask for fewer or other cards")
            return
        if shared is not None:
            known = {item.device for item in busy_now}
            wanted = (d for d in everything if d.uuid not in known and _is_wanted(d, spec.gpus.devices))
            busy_now = (*busy_now, *shared.busy(wanted))
        named = tuple(item for item in busy_now if item.device in {uuid for uuid, _ in choice.rejected})
        rest = tuple(
            Busy(uuid, Witness.CARD, why)
            for uuid, why in choice.rejected
            if uuid not in {item.device for item in named}
        )
        self._block((*named, *rest))

    def _find_house(self) -> House:
        """What this run owes to other accounts."""
        if self._house is None:
            from .sharing import build_house

            simulated = self._inventory.source is InventorySource.SIMULATED
            self._house = build_house(self._context.spec, self._context.rules, simulated=simulated)
        return self._house

    def _sweep(self) -> None:
        """Clear away what earlier runs of this account left in the area; no hurry, and no harm when it fails."""
        from ..host.lease_breaking import sweep

        assert self._area is not None
        try:
            removed = sweep(self._area)
        except (OSError, HoldfastError) as error:
            self._context.recorder.log(f"the lease area could not be swept: {error}")
            return
        if removed:
            self._context.recorder.event("leases_swept", files=removed)

    def _take_imposed(self) -> None:
        """Inside Slurm or Kubernetes the allocation is given: verify it, lock nothing (LEASE-17)."""
        from ..core import cards

        value = self._context.environ.get("CUDA_VISIBLE_DEVICES")
        allowed = cards.resolve_imposed(value, self._inventory, device_order="PCI_BUS_ID")
        devices = tuple(d for d in _all_devices(self._inventory) if allowed is not None and d.uuid in allowed)
        whole = tuple(d for d in devices if d.slice_uuid is None)
        if len(whole) < self._context.spec.gpus.wanted:
            words = f"the scheduler gave CUDA_VISIBLE_DEVICES={value!r}, the job wants {self._context.spec.gpus.wanted}"
            self._fail("allocation_mismatch", 78, words, "ask the scheduler for as many cards as the job wants")
            return
        self._context.emit(LeaseGranted(whole))

    # --- locking ---------------------------------------------------------------------------------------------------

    def _try_lock(self, uuids: tuple[str, ...]) -> None:
        from ..host import leases

        assert self._area is not None
        record = self._record(self._resolve(uuids))
        outcome = leases.acquire(self._area, record, house=self._find_house(), admit=self._admit(record))
        if isinstance(outcome, tuple):
            lost = {busy.device: busy for busy in outcome if busy.device not in self._lost}
            if lost and not self._context.spec.gpus.devices:
                # Somebody chose the same card in the same moment and was quicker: another one may still be free.
                self._lost.update(lost)
                self._choose_first()
                return
            self._block(outcome)
            return
        self._held = outcome
        # Nobody else of holdfast can come in between now: time to see whether the cards really rest (LEASE-10).
        self._read_aside(self._context.spec.gpu.idle_window_s, lambda: self._decide(handed_over=False))

    def _look_again(self) -> None:
        """At hand-over: one reading under the lock, by the probe that is warm."""
        self._read_now()
        self._decide(handed_over=True)

    def _read_now(self) -> None:
        from ..host.gpus import read_inventory
        from .unfit import mark_unfit

        limit_s = RECHECK_S if self._probe is not None else FIRST_READING_S
        inventory = read_inventory(limit_s, probe=self.probe())
        self._inventory = mark_unfit(inventory, self._context.rules, self._context.environ, kernel=False)

    def _decide(self, *, handed_over: bool) -> None:
        """Keep the locked cards, or give them back because a reading under the lock says that they are busy."""
        assert self._held is not None
        devices = self._held.record.devices
        busy = self._judge(devices, handed_over=handed_over)
        self._doubtful = frozenset(item.device for item in busy)
        if not busy:
            self._end_wait()
            self._context.emit(LeaseGranted(devices))
            return
        self._held.release()
        self._held = None
        if self._waiter is not None:
            self._waiter.refused(busy)
        elif not self._context.spec.gpus.devices and not self._doubtful <= self._lost.keys():
            # Any card would do: perhaps another one rests.
            self._lost.update({item.device: item for item in busy})
            self._choose_first()
            return
        self._block(busy)

    def _judge(self, devices: tuple[LeasedDevice, ...], *, handed_over: bool) -> tuple[Busy, ...]:
        from ..core import cards

        rules, found = self._rules(), []
        shared = self._look_at_sharers()
        inventory = self._inventory if shared is None else shared.inventory
        if handed_over:
            # Utilisation is an average over the past second, the previous run's here. Processes and memory still count.
            rules = replace(rules, max_utilisation_pct=100)
        for device in devices:
            card = next((card for card in inventory.cards if card.uuid == device.card_uuid), None)
            if card is None:
                found.append(Busy(device.uuid, Witness.CARD, f"not in the last reading ({inventory.reason})"))
                continue
            part = next((part for part in card.mig_slices if part.uuid == device.slice_uuid), None)
            run_id = self._context.run_id
            if part is None:
                reasons = cards.judge_card(card, rules, own_run_id=run_id)
            else:
                reasons = cards.judge_slice(card, part, rules, own_run_id=run_id)
            if reasons:
                pids = tuple(process.pid for process in card.processes or ())
                found.append(Busy(device.uuid, Witness.CARD, "; ".join(reasons), pids=pids))
            elif shared is not None:
                found += shared.busy((device,))
        return tuple(found)

    def _look_at_sharers(self) -> Shared | None:
        """Who shares which card by the last reading and the records of now; None when this run does not share."""
        spec = self._context.spec
        if not spec.gpu.share or self._area is None:
            return None
        from . import packing

        asker = packing.Asker(self._context.run_id, self._context.attempt, spec.gpu.memory_bytes)
        return packing.look(self._area, self._inventory, asker, self._rules())

    def _admit(self, record: LeaseRecord) -> Callable[[], tuple[Busy, ...]] | None:
        """What is asked under the gates of shared cards: whether there is room for us beside those who share."""

        def find_full() -> tuple[Busy, ...]:
            shared = self._look_at_sharers()
            return () if shared is None else shared.busy(record.devices)

        return find_full if record.share else None

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _block(self, busy: tuple[Busy, ...]) -> None:
        context = self._context
        waits = context.spec.gpu.wait_s > 0
        index = {device.uuid: device.index for device in _all_devices(self._inventory)}
        busy = tuple(replace(item, index=index.get(item.device)) for item in busy)
        context.emit(LeaseBlocked(busy, final=not waits))
        if waits and self._waiter is None:
            self._wait()
        elif self._waiter is not None:
            self._rearm()

    def _wait(self) -> None:
        from ..core import cards
        from ..host.lease_waiting import Waiter

        assert self._area is not None
        allowed = cards.resolve_imposed(
            self._context.environ.get("CUDA_VISIBLE_DEVICES"),
            self._inventory,
            device_order=self._context.environ.get("CUDA_DEVICE_ORDER"),
        )
        wanted = self._context.spec.gpus.devices
        everything = [d for d in _all_devices(self._inventory) if allowed is None or d.uuid in allowed]
        from ..host.lease_survey import is_sound

        candidates = tuple(d for d in everything if _is_wanted(d, wanted) and is_sound(self._area, d))
        wanted_count = self._context.spec.gpus.wanted
        self._waiter = Waiter(self._area, self._record(()), candidates, wanted_count, self._find_house())
        self._warm_up()
        if self._waiter.fileno() >= 0:
            self._context.loop.add(self._waiter.fileno(), self._on_wake)
        self._on_wake()

    def _warm_up(self) -> None:
        """Load and initialise all that a start needs while we wait: at hand-over an idle card is waiting for us."""
        from ..host import gpus

        self._prepare_start()
        if self._inventory.source is InventorySource.NVML:
            self.probe().warm(FIRST_READING_S)
        else:
            gpus.read_inventory(RECHECK_S)

    def _on_wake(self) -> None:
        assert self._waiter is not None
        if not self._waiter.ready():
            self._rearm()
            return
        wanted = self._context.spec.gpus.wanted
        free = {device.uuid for device in self._waiter.free}
        # Whole cards first, in PCI order, but those that said no under the lock last: they are asked only there.
        ordered = sorted(_all_devices(self._inventory), key=lambda device: device.uuid in self._doubtful)
        if self._context.spec.gpu.share:
            shared = self._read_sharers()
            free = {uuid for uuid in free if uuid not in shared.rooms or shared.rooms[uuid].fits}
            if len(free) < wanted:
                self._rest_for_room(shared)
                return
            ordered.sort(key=shared.order)
        devices = tuple(device for device in ordered if device.uuid in free)[:wanted]
        record = self._record(devices)
        outcome = self._waiter.acquire(record, self._admit(record))
        if isinstance(outcome, tuple):
            self._rearm()
            return
        self._held = outcome
        self._look_again()

    def _read_sharers(self) -> Shared:
        """Who shares which card, by a reading of now."""
        self._read_now()
        shared = self._look_at_sharers()
        assert shared is not None
        return shared

    def _rest_for_room(self, shared: Shared) -> None:
        """Sleep until a run that shares our cards leaves, or a time comes at which what is known of one changes."""
        assert self._waiter is not None
        free = self._waiter.free
        self._waiter.rest(shared.busy(free), shared.recheck_s(free))
        runs = shared.list_runs(free)
        if runs == self._full:
            self._rearm()
            return
        self._full = runs
        self._block(shared.busy(free))

    def _rearm(self) -> None:
        if self._waiter is not None and self._waiter.next_retry_s is not None:
            self._context.loop.timers.arm("lease", self._waiter.next_retry_s, self._on_wake)

    def _end_wait(self) -> None:
        self._context.loop.timers.disarm("lease")
        if self._waiter is not None:
            if self._waiter.fileno() >= 0:
                self._context.loop.remove(self._waiter.fileno())
            self._waiter.leave()
            self._context.loop.timers.arm("close_waiter", CLOSE_LATER_S, self._waiter.close)
            self._waiter = None

    # --- record ----------------------------------------------------------------------------------------------------

    def _resolve(self, uuids: tuple[str, ...]) -> tuple[LeasedDevice, ...]:
        known = {device.uuid: device for device in _all_devices(self._inventory)}
        return tuple(known[uuid] for uuid in uuids)

    def _record(self, devices: tuple[LeasedDevice, ...]) -> LeaseRecord:
        context = self._context
        from ..core.redact import redact_argv

        words, _ = redact_argv(context.spec.command)
        return LeaseRecord(
            run_id=context.run_id,
            attempt=context.attempt,
            user=user_name(os.getuid()),
            uid=os.getuid(),
            host=os.uname().nodename,
            since=utc_now(),
            phase=Phase.PREFLIGHT,
            devices=devices,
            supervisor=identify_self(),
            command=" ".join(words)[:200],
            config=context.spec.config,
            run_dir=context.run_dir,
            share=context.spec.gpu.share,
            simulated=self._inventory.source is InventorySource.SIMULATED,
            until=self._find_house().until,
            since_boot_ns=boottime_ns(),
            memory_bytes=context.spec.gpu.memory_bytes if context.spec.gpu.share else None,
        )

    def on_state(self, state: State) -> None:
        """Keep the public record true: phase and the processes by which the lease lives."""
        if not isinstance(state, Waiting) and self._waiter is not None and self._held is None:
            self._end_wait()
        phase = _PHASES.get(type(state))
        if self._held is None or phase is None or not isinstance(state, (Starting, Running, Stopping, Finalizing)):
            return
        record = replace(self._held.record, phase=phase, members=_holders(state), supervisor=identify_self())
        if record.share and phase is Phase.RUN and record.running_since_s is None:
            record = replace(record, running_since_s=boottime_ns() / 1e9)
        self._publish(record)

    def note_cgroup(self, path: str | None) -> None:
        """Name the job's cgroup in the record: a witness that every user can read."""
        if self._held is not None:
            self._publish(replace(self._held.record, cgroup=path))

    def _publish(self, record: LeaseRecord) -> None:
        assert self._held is not None
        if record == self._held.record:
            return
        try:
            self._held.update(record)
        except HoldfastError as error:
            self._context.recorder.log(f"the lease's record could not be renewed: {error}")

    def resume(self, state: State, *, rebooted: bool = False) -> None:
        """Take the lease over from a supervisor that was killed; the keeper's descriptors hold it meanwhile.

        Where nobody holds it any more (the run has ended, or all of it is dead) somebody else may have the card by now:
        then only what is left of our record is cleared away.
        """
        from ..host.allocation import imposed_allocation

        if not self._context.spec.gpus.wanted or imposed_allocation(self._context.environ) is not None:
            return
        from ..host import lease_area, leases
        from ..host.processes import is_alive

        devices = state.devices if isinstance(state, (Starting, Running, Stopping, Finalizing)) else ()
        holders = _holders(state)
        try:
            self._area = lease_area.open_area(self._context.rules.lease_dir, environ=self._context.environ)
            if rebooted or not devices or not any(map(is_alive, holders)):
                leases.clear_leftovers(self._area, self._context.run_id, self._context.attempt)
                return
            record = replace(
                self._find_record(devices),
                phase=_PHASES[type(state)],
                members=holders,
                supervisor=identify_self(),
            )
            self._held = leases.adopt(self._area, record, holders)
            self._keep_warm()
        except HoldfastError as error:
            self._context.recorder.log(f"the lease could not be taken over: {error}")

    def _keep_warm(self) -> None:
        """Load and initialise now what the end needs: then the next run waits for this card."""
        from ..host import gpus  # noqa: F401 - loaded for its sake
        from ..host.nvml import ProbeFailed

        if self._context.recorder.read_manifest().get("gpu_source") != InventorySource.NVML.value:
            return
        try:
            self.probe().warm(FIRST_READING_S, listen=True)
        except ProbeFailed as error:
            self._context.recorder.log(f"the GPU probe does not come up: {error}")

    def _find_record(self, devices: tuple[LeasedDevice, ...]) -> LeaseRecord:
        """Our record as an earlier supervisor left it, so that "since" stays what it was; a new one if it is gone."""
        from ..host.lease_records import read_records

        assert self._area is not None
        context = self._context
        seen_records, _ = read_records(self._area, about=frozenset(device.card_uuid for device in devices))
        for seen in seen_records:
            if (seen.record.run_id, seen.record.attempt) == (context.run_id, context.attempt):
                return seen.record
        simulated = bool(context.recorder.read_manifest().get("simulated"))
        return replace(self._record(devices), simulated=simulated)

    # --- the end ---------------------------------------------------------------------------------------------------

    def read_again(self) -> Inventory | None:
        """A fresh reading of the leased cards for the exit record; None when no card is leased."""
        if self._held is None:
            return None
        from ..host.gpus import read_inventory

        self._inventory = read_inventory(RECHECK_S, probe=self.probe())
        return self._inventory

    def release(self) -> None:
        """Give everything back; harmless when there is nothing."""
        self._abandon_reading()
        self._end_wait()
        if self._held is not None:
            from .sharing import note_use

            note_use(self._context, self._held)
            self._held.release()
            self._held = None
            self._context.recorder.event("lease_released")
        if self._probe is not None:
            self._probe.close()
            self._probe = None


def _holders(state: State) -> tuple[ProcessId, ...]:
    """The processes by which a run's lease lives: its keeper and its leader, as far as they are known."""
    if not isinstance(state, (Starting, Running, Stopping, Finalizing)):
        return ()
    leader = None if state.job is None else state.job.process
    return tuple(process for process in (state.keeper, leader) if process is not None)


def _read_and_sample(window_s: float, rules: Rules, environ: Mapping[str, str]) -> object:
    """The child's work: one full reading with what the host knows of its cards, then their utilisation over a window.

    Of the samples the highest counts.
    """
    from ..host import nvml
    from ..host.gpus import read_inventory, sample_utilisation
    from .unfit import mark_unfit

    nvml.disown()
    inventory = mark_unfit(read_inventory(FIRST_READING_S), rules, environ)
    if inventory.cards and window_s > 0:
        samples = sample_utilisation([card.uuid for card in inventory.cards], window_s)
        inventory = replace(
            inventory,
            cards=tuple(
                replace(card, utilisation_pct=max((s for s in samples[card.uuid] if s is not None), default=None))
                if any(s is not None for s in samples[card.uuid])
                else card
                for card in inventory.cards
            ),
        )
    return wire.encode(inventory)


def _all_devices(inventory: Inventory) -> tuple[LeasedDevice, ...]:
    """Every leasable device: whole cards first, then slices, in PCI order."""
    ordered = sorted(inventory.cards, key=lambda card: card.index)
    whole = tuple(LeasedDevice(card.uuid, card.index, card.name) for card in ordered)
    parts = tuple(
        LeasedDevice(card.uuid, card.index, card.name, part.uuid) for card in ordered for part in card.mig_slices
    )
    return whole + parts


def _is_wanted(device: LeasedDevice, wanted: tuple[str, ...]) -> bool:
    if not wanted:
        return device.slice_uuid is None
    return any(
        device.uuid.startswith(name) if not name.isdigit() else device.slice_uuid is None and device.index == int(name)
        for name in wanted
    )


def _phrase(busy: Busy) -> str:
    return busy.holder + (f", since {busy.since}" if busy.since else "")
