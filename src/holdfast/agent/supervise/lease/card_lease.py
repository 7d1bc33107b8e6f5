"""Leases cards for one run: choose, lock, check again under the lock, wait in line, keep the record true, release.

The order that keeps two runs apart: survey and choose (a guess), lock all or nothing (the truth among holdfast's
users), read the cards once more (the truth about everybody else). A refusal at any point gives everything back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.plan import sharing_by_memory
from holdfast.agent.plan.card_fitness import mark_unfit
from holdfast.agent.plan.share_policy import build_policy, find_longest_hold
from holdfast.core.cards import choose as cards
from holdfast.core.cards.packing import ASK_FOR_LESS, NEEDS_CARDS, find_impossible
from holdfast.core.rules.rules import card_rules
from holdfast.core.run.events import LeaseBlocked, LeaseFailed, LeaseGranted
from holdfast.host.clock import boottime_ns, format_utc, parse_utc
from holdfast.host.gpu import inventory as gpus
from holdfast.host.gpu.allocation import imposed_allocation
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.gpu.probe_client import Probe, ProbeFailed
from holdfast.host.lease import area, leases, usage
from holdfast.host.lease.line import Waiter
from holdfast.host.process.processes import identify_self, is_alive
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.gpu import Inventory, InventorySource
from holdfast.model.lease import BusyReason, LeasePhase, LeaseRecord, count_cards
from holdfast.model.record import replace
from holdfast.model.run import Finalizing, Refusal, Running, Starting, State, Stopping, Waiting

from .devices import list_candidates, list_devices, list_given
from .lease import NO_CARDS, Lease
from .own_record import PHASES, build_record, find_own_record, list_holders, remove_own_leftovers
from .publish import PublishedLease
from .read_cards import FIRST_READING_S, read_and_sample
from .taken import explain_choice, find_taken, judge_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.agent.plan.sharing_by_memory import SharingSurvey
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.loop import Child
    from holdfast.host.gpu.allocation import Allocation
    from holdfast.host.lease.area import LeaseArea
    from holdfast.host.lease.share_policy import SharePolicy
    from holdfast.model.gpu import CardChoice, CardRules
    from holdfast.model.identity import ProcessId
    from holdfast.model.lease import LeasedDevice

READING_MARGIN_S = 10.0
"""The probe keeps its own deadlines; a child that is this late hangs elsewhere, and no run waits for it for ever."""
RECHECK_S = 0.8
CLOSE_LATER_S = 0.5
"""After the start, which somebody waits for."""


class CardLease(Lease):
    """The lease of one run. Emits LeaseGranted, LeaseBlocked or LeaseFailed; `fds` is for the job tree to inherit."""

    def __init__(self, context: SupervisorContext, prepare_start: Callable[[], object]) -> None:
        """Nothing is leased before `begin`. `prepare_start` does for a start what can be done in line."""
        self._context, self._prepare_start = context, prepare_start
        self._held: PublishedLease | None = None
        self._waiter: Waiter | None = None
        self._child: Child | None = None
        self._inventory = NO_CARDS
        self._lost: dict[str, BusyReason] = {}
        self._probe: Probe | None = None
        self._area: LeaseArea | None = None
        self._doubtful: frozenset[str] = frozenset()
        self._full: frozenset[tuple[str, str]] = frozenset()
        self._in_the_way: frozenset[tuple[str, str]] = frozenset()
        self._policy: SharePolicy | None = None

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
            self._probe = Probe()
        return self._probe

    @property
    def leased_cards(self) -> frozenset[str]:
        """The UUIDs of the cards of this lease."""
        return frozenset() if self._held is None else frozenset(d.card_uuid for d in self._held.record.devices)

    @property
    def is_deciding(self) -> bool:
        """Whether cards are locked and being looked at: whoever waits for them has them nearly."""
        return self._held is not None and self._child is not None and self._child.under_way

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
        limit_s = FIRST_READING_S + window_s + READING_MARGIN_S

        def take(value: object) -> None:
            try:
                self._inventory = wire.decode(Inventory, value)
                then()
            except HoldfastError as error:
                self._fail(error.code, error.exit_code, str(error), error.hint)

        def fail(why: str) -> None:
            words = "see `holdfast gpus`: the driver or /proc may hang"
            self._fail("gpu_unreadable", 78, f"the cards could not be read: {why}", words)

        self._child = context.loop.run_child(
            lambda: read_and_sample(window_s, context.rules, context.environ), take, fail, within_s=limit_s
        )

    def _abandon_reading(self) -> None:
        if self._child is not None:
            self._child.abandon()

    def _fail(self, code: str, exit_code: int, message: str, hint: str) -> None:
        self._context.emit(LeaseFailed(Refusal(code, exit_code, message, hint)))

    # --- choosing --------------------------------------------------------------------------------------------------

    def _rules(self) -> CardRules:
        return card_rules(self._context.spec, self._context.rules)

    def _choose_first(self) -> None:
        context, spec = self._context, self._context.spec
        allocation = imposed_allocation(context.environ)
        if allocation is not None:
            self._take_imposed(allocation)
            return
        self._area = area.open_area(context.rules.lease_dir, environ=context.environ)
        remove_own_leftovers(context, self._area)
        policy = self._find_policy()
        if bars := policy.find_bars(self._area, self._record(()), spec.gpus.wanted):
            self._block(bars)
            return
        shared = self._look_at_sharers()
        taken = find_taken(self._area, self._inventory, policy, self._lost, shares=shared is not None)
        choice = self._choose(taken.words, shared)
        if choice.devices:
            context.recorder.event("cards_chosen", devices=choice.devices, rejected=choice.rejected)
            self._try_lock(choice.devices)
        elif impossible := find_impossible(spec, self._inventory, context.rules):
            remedy = ASK_FOR_LESS if self._inventory.cards else NEEDS_CARDS
            self._fail("no_card", 78, "; ".join(impossible), remedy)
        elif not cards.is_worth_waiting(spec.gpus, self._inventory, choice):
            words = choice.problem or "no card fits"
            self._fail("no_card", 78, words, "see `holdfast gpus`, or ask for fewer or other cards")
        else:
            self._block(explain_choice(choice, taken, self._inventory, spec.gpus, shared))

    def _choose(self, taken: Mapping[str, str], shared: SharingSurvey | None) -> CardChoice:
        """What to take of what is not `taken`; of cards that are kept for this account, if enough are."""
        assert self._area is not None
        context = self._context

        def choose(taken: Mapping[str, str]) -> CardChoice:
            return cards.choose_cards(
                context.spec.gpus,
                self._inventory if shared is None else shared.inventory,
                leased=taken,
                rules=self._rules(),
                imposed=context.environ.get("CUDA_VISIBLE_DEVICES"),
                device_order=context.environ.get("CUDA_DEVICE_ORDER"),
                rooms=None if shared is None else shared.rooms,
            )

        others = self._find_policy().list_not_own(self._area, list_devices(self._inventory), context.spec.gpus)
        choice = choose({**taken, **others})
        return choose(taken) if others and not choice.devices else choice

    def _find_policy(self) -> SharePolicy:
        """What this run owes to other accounts."""
        if self._policy is None:
            simulated = self._inventory.source is InventorySource.SIMULATED
            self._policy = build_policy(self._context.spec, self._context.rules, simulated=simulated)
        return self._policy

    def _take_imposed(self, allocation: Allocation) -> None:
        """Inside Slurm or Kubernetes the allocation is given: verify it, lock nothing (LEASE-17)."""
        whole = list_given(allocation, self._inventory)
        if len(whole) < self._context.spec.gpus.wanted:
            named = allocation.source is not None and allocation.devices != ()
            seen = f"{len(whole)} of them can be seen here" if named else "no card can be taken from that"
            words = f"{allocation.describe()}: {seen}, the job wants {self._context.spec.gpus.wanted}"
            self._fail("allocation_mismatch", 78, words, "ask the scheduler for as many cards as the job wants")
            return
        self._context.emit(LeaseGranted(whole))

    # --- locking ---------------------------------------------------------------------------------------------------

    def _try_lock(self, uuids: tuple[str, ...]) -> None:
        assert self._area is not None
        record = self._record(self._resolve(uuids))
        outcome = leases.acquire_lease(self._area, record, policy=self._find_policy(), admit=self._admit(record))
        if isinstance(outcome, tuple):
            lost = {busy.device: busy for busy in outcome if busy.device not in self._lost}
            if lost and not self._context.spec.gpus.devices:
                # Somebody chose the same card in the same moment and was quicker: another one may still be free.
                self._lost.update(lost)
                self._choose_first()
                return
            self._block(outcome)
            return
        self._held = PublishedLease(outcome, self._context)
        # Nobody else of holdfast can come in between now: time to see whether the cards really rest (LEASE-10).
        self._read_aside(self._context.spec.gpu.idle_window_s, lambda: self._decide(handed_over=False))

    def _look_again(self) -> None:
        """At hand-over: one reading under the lock, by the probe that is warm."""
        self._read_now()
        self._decide(handed_over=True)

    def _read_now(self) -> None:
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

    def _judge(self, devices: tuple[LeasedDevice, ...], *, handed_over: bool) -> tuple[BusyReason, ...]:
        rules, shared = self._rules(), self._look_at_sharers()
        if handed_over:
            # Utilisation is an average over the past second, the previous run's here. Processes and memory still count.
            rules = replace(rules, max_utilisation_pct=100)
        inventory = self._inventory if shared is None else shared.inventory
        return judge_devices(devices, inventory, rules, shared, run_id=self._context.run_id)

    def _look_at_sharers(self) -> SharingSurvey | None:
        """Who shares which card by the last reading and the records of now; None when this run does not share."""
        spec = self._context.spec
        if not spec.gpu.share or self._area is None:
            return None

        asker = sharing_by_memory.SharingRequest(self._context.run_id, self._context.attempt, spec.gpu.memory_bytes)
        return sharing_by_memory.survey_sharing(self._area, self._inventory, asker, self._rules())

    def _admit(self, record: LeaseRecord) -> Callable[[], tuple[BusyReason, ...]] | None:
        """What is asked under the gates of shared cards: whether there is room for us beside those who share."""

        def find_full() -> tuple[BusyReason, ...]:
            shared = self._look_at_sharers()
            return () if shared is None else shared.busy(record.devices)

        return find_full if record.share else None

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _block(self, busy: tuple[BusyReason, ...]) -> None:
        context = self._context
        waits = context.spec.gpu.wait_s > 0
        index = {device.uuid: device.index for device in list_devices(self._inventory)}
        busy = tuple(replace(item, index=index.get(item.device)) for item in busy)
        short = count_cards(context.spec.gpus.wanted, busy, len(index))
        # Who waits gets the card whole, or its part of it: nothing has to be changed for that.
        sharing = (
            ""
            if waits or self._area is None
            else sharing_by_memory.describe_sharing(self._area, busy, context.spec.gpu)
        )
        context.emit(LeaseBlocked(busy, final=not waits, short=short, sharing=sharing))
        if waits and self._waiter is None:
            self._wait()
        elif self._waiter is not None:
            self._rearm()

    def _wait(self) -> None:
        assert self._area is not None
        asked = self._context.spec.gpus
        candidates = list_candidates(self._inventory, asked.devices, self._context.environ)
        self._waiter = Waiter(self._area, self._record(()), candidates, asked.wanted, self._find_policy())
        self._warm_up()
        if self._waiter.fileno() >= 0:
            self._context.loop.add(self._waiter.fileno(), self._on_wake)
        self._on_wake()

    def _warm_up(self) -> None:
        """Load and initialise all that a start needs while we wait: at hand-over an idle card is waiting for us."""
        self._prepare_start()
        if self._inventory.source is InventorySource.NVML:
            self.probe().warm(FIRST_READING_S)
        else:
            gpus.read_inventory(RECHECK_S)

    def _on_wake(self) -> None:
        assert self._waiter is not None
        if not self._waiter.ready():
            self._tell_in_the_way(self._waiter.unusable)
            return
        self._area = self._waiter.area
        wanted = self._context.spec.gpus.wanted
        free = {device.uuid for device in self._waiter.free}
        # Whole cards first, in PCI order, but those that said no under the lock last: they are asked only there.
        ordered = sorted(list_devices(self._inventory), key=lambda device: device.uuid in self._doubtful)
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
            self._tell_in_the_way(outcome)
            return
        self._held = PublishedLease(outcome, self._context)
        self._look_again()

    def _tell_in_the_way(self, busy: tuple[BusyReason, ...]) -> None:
        """Go on waiting; say who is in the way where it is no lease: nobody would look for that."""
        holders = frozenset((item.device, item.holder) for item in busy if item.run_id is None)
        if not holders or leases.is_passing(busy) or holders == self._in_the_way:
            self._rearm()
            return
        self._in_the_way = holders
        self._block(busy)

    def _read_sharers(self) -> SharingSurvey:
        """Who shares which card, by a reading of now."""
        self._read_now()
        shared = self._look_at_sharers()
        assert shared is not None
        return shared

    def _rest_for_room(self, shared: SharingSurvey) -> None:
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
        known = {device.uuid: device for device in list_devices(self._inventory)}
        return tuple(known[uuid] for uuid in uuids)

    def _record(self, devices: tuple[LeasedDevice, ...]) -> LeaseRecord:
        simulated = self._inventory.source is InventorySource.SIMULATED
        return build_record(self._context, devices, simulated=simulated, until=self._find_policy().until)

    def on_state(self, state: State) -> None:
        """Keep the public record true: phase and the processes by which the lease lives."""
        if not isinstance(state, Waiting) and self._waiter is not None and self._held is None:
            self._end_wait()
        phase = PHASES.get(type(state))
        if self._held is None or phase is None or not isinstance(state, (Starting, Running, Stopping, Finalizing)):
            return
        record = replace(
            self._held.record, phase=phase, members=list_holders(self._context, state), supervisor=identify_self()
        )
        if record.share and phase is LeasePhase.RUN and record.running_since_s is None:
            record = replace(record, running_since_s=boottime_ns() / 1e9)
        self._held.renew(record)

    def note_cgroup(self, path: str | None) -> None:
        """Name the job's cgroup in the record: a witness that every user can read."""
        if self._held is not None:
            self._held.renew(replace(self._held.record, cgroup=path))

    def note_container(self, cgroup: str | None, init: ProcessId) -> None:
        """Name a container's control group and first process in the record, before its command may run."""
        if self._held is not None:
            newest = self._held.record
            members = (*(member for member in newest.members if member != init), init)
            self._held.renew(replace(newest, cgroup=cgroup or newest.cgroup, members=members))

    @property
    def is_public(self) -> bool:
        """Whether the public record says what it is to say."""
        return self._held is None or self._held.is_public

    def note_limits(self) -> None:
        """Say in the record until when the cards are held now, after the job's time limits were changed."""
        if self._held is None:
            return
        record, context = self._held.record, self._context
        longest_s = find_longest_hold(context.spec, context.rules)
        until = None if longest_s is None else format_utc(parse_utc(record.since) + longest_s)
        self._held.renew(replace(record, until=until))

    def resume(self, state: State, *, rebooted: bool = False) -> None:
        """Take the lease over from a supervisor that was killed; the keeper's descriptors hold it meanwhile.

        Where nobody holds it any more (the run has ended, or all of it is dead) somebody else may have the card by now:
        then only what is left of our record is cleared away.
        """
        if not self._context.spec.gpus.wanted or self._was_imposed():
            return
        devices = state.devices if isinstance(state, (Starting, Running, Stopping, Finalizing)) else ()
        holders = list_holders(self._context, state)
        try:
            self._area = area.open_area(self._context.rules.lease_dir, environ=self._context.environ)
            if rebooted or not devices or not any(map(is_alive, holders)):
                leases.clear_leftovers(self._area, self._context.run_id, self._context.attempt)
                return
            record = replace(
                self._find_record(devices),
                phase=PHASES[type(state)],
                members=holders,
                supervisor=identify_self(),
            )
            self._held = PublishedLease(leases.adopt_lease(self._area, record, holders), self._context)
            self._keep_warm()
        except HoldfastError as error:
            self._context.recorder.log(f"the lease could not be taken over: {error}")

    def _was_imposed(self) -> bool:
        """Whether a scheduler gave this attempt its cards; whoever takes it over may run elsewhere."""
        manifest = self._context.recorder.read_manifest()
        if "allocation" in manifest:
            return manifest["allocation"] is not None
        # Of an older version; or it has no job yet, and what begins it anew decides.
        return imposed_allocation(self._context.environ) is not None

    def _keep_warm(self) -> None:
        """Load and initialise now what the end needs: then the next run waits for this card."""
        if self._context.recorder.read_manifest().get("gpu_source") != InventorySource.NVML.value:
            return
        try:
            self.probe().warm(FIRST_READING_S, listen=True)
        except ProbeFailed as error:
            self._context.recorder.log(f"the GPU probe does not come up: {error}")

    def _find_record(self, devices: tuple[LeasedDevice, ...]) -> LeaseRecord:
        """Our record as an earlier supervisor left it, so that "since" stays what it was; a new one if it is gone."""
        assert self._area is not None
        found = find_own_record(self._context, self._area, devices)
        if found is not None:
            return found
        simulated = bool(self._context.recorder.read_manifest().get("simulated"))
        return replace(self._record(devices), simulated=simulated)

    # --- the end ---------------------------------------------------------------------------------------------------

    def read_again(self) -> Inventory | None:
        """A fresh reading of the leased cards for the exit record; None when no card is leased."""
        if self._held is None:
            return None

        self._inventory = read_inventory(RECHECK_S, probe=self.probe())
        return self._inventory

    def release(self) -> None:
        """Give everything back; harmless when there is nothing."""
        self._abandon_reading()
        self._end_wait()
        if self._held is not None:
            # A card that nobody accounts for helps nobody.
            if not usage.record_use(self._held.area, self._held.record):
                self._context.recorder.log("the use of the cards could not be written to the ledger in the lease area")
            self._held.release()
            self._held = None
            self._context.recorder.event("lease_released")
        if self._probe is not None:
            self._probe.close()
            self._probe = None
