"""Several people on one box: shares, borrowing, limits and reservations, as real accounts in real processes."""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.core.rules.rules import Rules
from holdfast.host import clock
from holdfast.host.lease import leases, reservations, tickets
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.line import Waiter, wait_s
from holdfast.host.lease.share_policy import LOOK_AGAIN_S, SharePolicy
from holdfast.host.lease.survey import survey_leases
from holdfast.host.lease.usage import ledger_stem, record_use
from holdfast.model import wire
from holdfast.model.errors import NotPermitted, ResourceBusy, StorageError, UsageError
from holdfast.model.lease import BusyReason, Ticket, Witness
from holdfast.model.record import replace
from tests.host.lease_support import CARDS, NOBODY, Child, Line, record
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.model.lease import LeasedDevice

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other accounts")

ANNA, BOB, CARL = 60_001, 60_002, 60_003
SOFT = Rules(cards_per_user=1, sources=("/etc/r.toml",))
FREE = Rules()
HARD = Rules(max_cards_per_user=1, sources=("/etc/r.toml",))
TWO = CARDS[:2]


@pytest.fixture
def area() -> Iterator[LeaseArea]:
    """As on a real box: open to all, and not under /tmp."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    path.chmod(0o755)
    yield open_area(str(path / "area"), environ={}, hand_written=str(path / "gpu_locks"))
    shutil.rmtree(path)


def acquire(area: LeaseArea, number: int, *devices: LeasedDevice, policy: SharePolicy, **changes: Any) -> Any:
    """A lease or the reasons why not, for an account that does not wait."""
    return leases.acquire_lease(area, record(number, *devices, until=policy.until, **changes), policy=policy)


def person(
    area: LeaseArea,
    number: int,
    uid: int,
    rules: Rules,
    *devices: LeasedDevice,
    count: int = 1,
    hold_s: float | None = None,
) -> Child:
    """Another account's run: waits for `count` of `devices`, says which it has, gives back when told."""

    def work(line: Line) -> None:
        policy = SharePolicy(rules, hold_s=hold_s)
        waiter = Waiter(area, record(number, *devices), devices, count, policy)
        end_s = clock.monotonic_s() + LIMIT_S
        waiter.ready()
        line.send("waiting")
        outcome: Any = ()
        while not isinstance(outcome, leases.HeldLease) and clock.monotonic_s() < end_s:
            if waiter.ready():
                outcome = waiter.acquire(record(number, *waiter.free[:count], until=policy.until))
                continue
            select.select([waiter], [], [], wait_s(waiter, end_s))
        waiter.close()
        assert isinstance(outcome, leases.HeldLease)
        line.send([device.index for device in outcome.record.devices])
        line.receive(600)
        record_use(area, outcome.record)
        outcome.release()
        line.send("released")
        line.receive(600)

    return Child(work, uid=uid)


@needs_root
@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_the_line_is_told_in_its_order_whatever_tickets_say(area: LeaseArea) -> None:
    """How old a ticket is whose file is younger than it says is measured anew with each look, so it tells nobody."""

    def stand(order: int, uid: int) -> Child:
        def work(line: Line) -> None:
            user, uuids = str(uid), tuple(device.uuid for device in TWO)
            ticket = tickets.OwnTicket(area, Ticket(order, record(3).run_id, user, uuids, 1), TWO)
            line.send("waiting")
            line.receive(600)
            ticket.close()

        return Child(work, uid=uid)

    with person(area, 1, ANNA, SOFT, CARDS[0]) as holder:
        assert [holder.receive(), holder.receive()] == ["waiting", [0]]
        with contextlib.ExitStack() as stack:
            for order, uid in ((1, ANNA), (2, CARL)):  # one after the other: what counts is when a ticket was written
                assert stack.enter_context(stand(order, uid)).receive() == "waiting"
            arrived = survey_leases(area, ()).waiting
            assert [seen.uid for seen in arrived] == [ANNA, CARL]
            assert [seen.uid for seen in SharePolicy(SOFT).order_line(area, arrived)] == [CARL, ANNA]


@needs_root
@pytest.mark.requirement("LEASE-14", "ETIQ-09")
def test_a_share_goes_before_borrowing_and_a_card_that_nobody_wants_is_borrowed(area: LeaseArea) -> None:
    with (
        person(area, 1, ANNA, SOFT, CARDS[0]) as anna,
        person(area, 2, BOB, SOFT, CARDS[1]) as bob,
    ):
        assert [anna.receive(), anna.receive()] == ["waiting", [0]]
        assert [bob.receive(), bob.receive()] == ["waiting", [1]]
        # Anna has her share and came first; Carl has nothing and comes later.
        with contextlib.ExitStack() as stack:
            more = stack.enter_context(person(area, 3, ANNA, SOFT, *TWO))
            assert more.receive() == "waiting"
            carl = stack.enter_context(person(area, 4, CARL, SOFT, *TWO))
            assert carl.receive() == "waiting"
            arrived = survey_leases(area, ()).waiting
            assert [seen.ticket.run_id for seen in arrived] == [record(3).run_id, record(4).run_id]
            assert SharePolicy(SOFT).order_line(area, arrived) == (arrived[1], arrived[0])
            assert SharePolicy(FREE).order_line(area, arrived) == arrived
            bob.send()
            assert bob.receive() == "released"
            assert carl.receive() == [1]
            # Now nobody within a share waits: Anna borrows a second card.
            carl.send()
            assert carl.receive() == "released"
            assert more.receive() == [1]
            more.send()
            assert more.receive() == "released"


@pytest.mark.slow
@needs_root
@pytest.mark.requirement("LEASE-14")
def test_whoever_has_waited_long_enough_goes_first_whatever_is_borrowed(area: LeaseArea) -> None:
    impatient = replace(SOFT, starve_after_s=0.0)
    with person(area, 1, ANNA, impatient, CARDS[0]) as anna, person(area, 2, BOB, impatient, CARDS[1]) as bob:
        assert [anna.receive(), anna.receive()] == ["waiting", [0]]
        assert [bob.receive(), bob.receive()] == ["waiting", [1]]
        with contextlib.ExitStack() as stack:
            more = stack.enter_context(person(area, 3, ANNA, impatient, *TWO))
            assert more.receive() == "waiting"
            carl = stack.enter_context(person(area, 4, CARL, impatient, *TWO))
            assert carl.receive() == "waiting"
            bob.send()
            assert more.receive() == [1]
            more.send()
            assert carl.receive() == [1]


@needs_root
@pytest.mark.requirement("ETIQ-09")
def test_a_hard_limit_holds_one_account_and_nobody_else(area: LeaseArea) -> None:
    with person(area, 1, ANNA, HARD, *TWO) as anna:
        assert [anna.receive(), anna.receive()] == ["waiting", [0]]
        with person(area, 2, ANNA, HARD, *TWO) as more:
            assert more.receive() == "waiting"

            def look(line: Line) -> None:
                outcome = acquire(area, 3, CARDS[1], policy=SharePolicy(HARD))
                line.send([item.holder for item in outcome] if isinstance(outcome, tuple) else "held")

            with Child(look, uid=ANNA) as refused:
                (words,) = refused.receive()
                for part in ("holds 1 card", record(1).run_id, "max_cards_per_user", "/etc/r.toml"):
                    assert part in words
            # Anna's second request came first, and Bob gets the free card: it cannot have it.
            with person(area, 4, BOB, HARD, *TWO) as bob:
                assert [bob.receive(), bob.receive()] == ["waiting", [1]]
                # What Anna gives back herself wakes her other request.
                anna.send()
                assert more.receive() == [0]


def test_two_requests_of_one_account_at_once_do_not_pass_its_limit(area: LeaseArea) -> None:
    policy = SharePolicy(HARD)
    first = acquire(area, 1, CARDS[0], policy=policy)
    assert isinstance(first, leases.HeldLease)
    (busy,) = acquire(area, 2, CARDS[1], policy=policy)
    assert busy.witness is Witness.RULE
    gates = policy.list_gates(area)
    ((gate, exclusive),) = gates
    assert os.path.basename(gate).startswith(f"account-{os.geteuid()}.")
    assert exclusive
    assert os.stat(gate).st_mode & 0o777 == 0o600
    first.release()
    again = acquire(area, 2, CARDS[1], policy=policy)
    assert isinstance(again, leases.HeldLease)
    again.release()


@needs_root
@pytest.mark.requirement("ETIQ-09")
def test_hours_that_are_used_up_put_a_request_behind_others_or_refuse_it(area: LeaseArea) -> None:
    begin = clock.epoch_s() - 60

    def work(line: Line) -> None:
        used = record(9, *TWO, since=clock.format_utc(begin))
        assert record_use(area, used)
        outcome = acquire(area, 1, CARDS[0], policy=SharePolicy(Rules(hours_per_week_max=0.01)))
        line.send(outcome[0].holder)
        line.receive(600)

    with Child(work, uid=ANNA) as anna:
        words = anna.receive()
    assert "GPU-hours this week" in words
    assert "hours_per_week_max" in words
    soft = Rules(hours_per_week=0.01)
    with person(area, 5, BOB, soft, CARDS[0]) as bob:
        assert [bob.receive(), bob.receive()] == ["waiting", [0]]
        with person(area, 2, ANNA, soft, CARDS[0]) as first, person(area, 3, CARL, soft, CARDS[0]) as second:
            assert first.receive() == "waiting"
            assert second.receive() == "waiting"
            bob.send()
            assert second.receive() == [0]
            second.send()
            assert first.receive() == [0]


def test_hours_of_simulated_cards_are_no_hours_of_real_ones(area: LeaseArea) -> None:
    record_use(area, record(9, simulated=True, since=clock.format_utc(clock.epoch_s() - 60)))
    rules = Rules(hours_per_week_max=0.001)
    assert SharePolicy(rules).find_bars(area, record(1), 1) == ()
    assert SharePolicy(rules, simulated=True).find_bars(area, record(1), 1) != ()


def test_in_quiet_times_nothing_is_taken_not_even_by_who_waits(area: LeaseArea) -> None:
    policy = SharePolicy(Rules(quiet_times=((0, 1440),), sources=("/etc/r.toml",)))
    (busy,) = acquire(area, 1, CARDS[0], policy=policy)
    assert "quiet_times" in busy.holder
    waiter = Waiter(area, record(1), (CARDS[0],), 1, policy)
    assert not waiter.ready()
    assert waiter.blocked_by() == (busy,)
    assert waiter.next_retry_s == LOOK_AGAIN_S
    waiter.close()


# --- reservations -----------------------------------------------------------------------------------------------------


def keep(
    area: LeaseArea, *cards: LeasedDevice, begin_s: float = 0.0, length_s: float = 3600.0, rules: Rules = FREE
) -> Any:
    """Reserve exactly these cards, from `begin_s` seconds ahead."""
    begin = clock.epoch_s() + begin_s

    def choose(taken: dict[str, str]) -> tuple[str, ...]:
        for card in cards:
            if card.card_uuid in taken:
                raise ResourceBusy(taken[card.card_uuid])
        return tuple(card.card_uuid for card in cards)

    return reservations.reserve(area, rules, span=(begin, begin + length_s), choose=choose, reason="a paper")


def keep_as(area: LeaseArea, uid: int, *cards: LeasedDevice, **changes: Any) -> Any:
    """The same as another account, which then is gone."""

    def work(line: Line) -> None:
        try:
            line.send(keep(area, *cards, **changes).id)
        except (ResourceBusy, UsageError) as error:
            line.send([str(error)])

    with Child(work, uid=uid) as child:
        return child.receive()


@pytest.mark.requirement("ETIQ-09")
def test_of_two_that_reserve_at_once_one_sees_the_other_whoever_replaces_the_gate(area: LeaseArea) -> None:
    """Whoever may write there can put another file in place of the one that we have locked."""
    gate, span = f"{area.directories[0]}/{reservations.GATE}", (clock.epoch_s() + 60, clock.epoch_s() + 120)

    def choose(_taken: dict[str, str]) -> tuple[str, ...]:
        Path(f"{gate}.new").touch()
        os.rename(f"{gate}.new", gate)
        return (CARDS[0].card_uuid,)

    with pytest.raises(StorageError, match="was replaced while it was locked"):
        reservations.reserve(area, FREE, span=span, choose=choose)
    assert reservations.list_reservations(area, FREE) == ((), ())


@needs_root
@pytest.mark.requirement("ETIQ-09")
def test_a_reservation_keeps_others_off_and_its_owner_on(area: LeaseArea) -> None:
    name = keep_as(area, ANNA, CARDS[0])
    (busy,) = acquire(area, 1, CARDS[0], policy=SharePolicy(Rules()))
    assert busy.witness is Witness.RESERVATION
    for part in ("reserved by", name, "a paper"):
        assert part in busy.holder
    other = acquire(area, 2, CARDS[1], policy=SharePolicy(Rules()))
    assert isinstance(other, leases.HeldLease)
    other.release()
    # Somebody who waits for the card does not stand before whom it is kept for.
    with person(area, 3, BOB, Rules(), CARDS[0]) as bob, person(area, 4, ANNA, Rules(), CARDS[0]) as anna:
        assert bob.receive() == "waiting"
        assert [anna.receive(), anna.receive()] == ["waiting", [0]]


@needs_root
def test_a_run_that_ends_before_a_reservation_gets_the_card_and_one_that_may_not_does_not(area: LeaseArea) -> None:
    keep_as(area, ANNA, CARDS[0], begin_s=1000.0)
    (busy,) = acquire(area, 1, CARDS[0], policy=SharePolicy(Rules()))
    assert "state a timeout that ends before" in busy.holder
    # A request without an end waits for the card, and keeps nobody from it who will be gone in time.
    with person(area, 2, BOB, Rules(), CARDS[0]) as bob:
        assert bob.receive() == "waiting"
        short = acquire(area, 3, CARDS[0], policy=SharePolicy(Rules(), hold_s=600.0))
        assert isinstance(short, leases.HeldLease)
        short.release()


@pytest.mark.slow
@needs_root
def test_a_reservation_ends_by_itself_and_by_its_owner(area: LeaseArea) -> None:
    path = f"{area.directories[0]}/reservation-"
    name = keep_as(area, ANNA, CARDS[0])

    def end(line: Line) -> None:
        try:
            reservations.remove(area, name)
            line.send("ended")
        except NotPermitted as error:
            line.send(str(error))

    with Child(end, uid=BOB) as bob:
        assert "is a reservation of" in bob.receive()
    with Child(end, uid=ANNA) as anna:
        assert anna.receive() == "ended"
    assert not os.path.exists(f"{path}{name}.json")
    # One whose time has passed is nothing any more, though its file lies there.
    keep_as(area, ANNA, CARDS[0], begin_s=-7200.0, length_s=7200.5)
    waiter = Waiter(area, record(1), (CARDS[0],), 1, SharePolicy(Rules()))
    end_s = clock.monotonic_s() + LIMIT_S
    while not waiter.ready() and clock.monotonic_s() < end_s:
        select.select([waiter], [], [], 0.05)
    assert waiter.free == (CARDS[0],)
    waiter.close()
    reservations.sweep(area)


@pytest.mark.slow
@needs_root
def test_a_card_that_somebody_may_hold_then_is_not_reserved(area: LeaseArea) -> None:
    held = acquire(area, 1, CARDS[0], policy=SharePolicy(Rules(), hold_s=600.0))
    endless = acquire(area, 2, CARDS[1], policy=SharePolicy(Rules()))
    (words,) = keep_as(area, ANNA, CARDS[0], begin_s=60.0)
    assert record(1).run_id in words
    assert "at the latest" in words
    assert "nothing says until when" in keep_as(area, ANNA, CARDS[1], begin_s=5000.0)[0]
    assert isinstance(keep_as(area, ANNA, CARDS[0], begin_s=700.0), str)
    # One's own lease is no hindrance; somebody else's reservation is.
    assert "reserved by" in keep_as(area, BOB, CARDS[0], begin_s=800.0)[0]
    assert keep(area, CARDS[1]).cards == (CARDS[1].card_uuid,)
    held.release()
    endless.release()


def test_a_reservation_beyond_the_rules_is_refused(area: LeaseArea) -> None:
    with pytest.raises(UsageError, match="reserve_max"):
        keep(area, CARDS[0], length_s=7200.0, rules=Rules(reserve_max_s=3600.0))
    with pytest.raises(UsageError, match="reserve_cards_max"):
        keep(area, *TWO, rules=Rules(reserve_cards_max=1))
    assert reservations.list_reservations(area, Rules()) == ((), ())


def plant(area: LeaseArea, how: str) -> str:
    """What somebody might put there to keep others off card 0; answers a word of the warning."""
    directory = area.directories[0]
    made = keep(area, CARDS[0])
    path = f"{directory}/reservation-{made.id}.json"
    if how == "forged":
        os.chown(path, NOBODY, NOBODY)
        return "not trusted"
    os.rename(path, f"{directory}/elsewhere")
    if how == "link":
        os.symlink(f"{directory}/elsewhere", path)
    elif how == "second name":
        os.link(f"{directory}/elsewhere", path)
    elif how == "fifo":
        os.mkfifo(path)
    else:
        Path(path).write_bytes(b"{" if how == "torn" else b'{"begin_s": 1e999}')
        return "reservation-"
    return "not a plain file"


@needs_root
@pytest.mark.parametrize("how", ["forged", "link", "second name", "fifo", "torn", "nonsense"])
def test_a_planted_reservation_keeps_nobody_off_and_is_named(area: LeaseArea, how: str) -> None:
    word = plant(area, how)
    valid, wrong = reservations.list_reservations(area, Rules())
    assert valid == ()
    assert any(word in text for text in wrong)

    def take(line: Line) -> None:
        outcome = acquire(area, 1, CARDS[0], policy=SharePolicy(Rules()))
        line.send(isinstance(outcome, leases.HeldLease))
        if isinstance(outcome, leases.HeldLease):
            outcome.release()

    with Child(take, uid=ANNA) as anna:
        assert anna.receive() is True


@pytest.mark.parametrize("hours", [-6, 6])
def test_a_reservation_that_claims_another_age_than_its_file_is_as_old_as_the_file(area: LeaseArea, hours: int) -> None:
    made = keep(area, CARDS[0])
    path = f"{area.directories[0]}/reservation-{made.id}.json"
    Path(path).write_bytes(wire.to_bytes(replace(made, made_s=made.made_s + hours * 3600)))
    os.utime(path, (0, 0))
    (seen,) = reservations.list_reservations(area, FREE)[0]
    assert abs(seen.made_s - os.stat(path).st_ctime) <= reservations.MISDATED_S


def test_of_one_account_only_so_many_reservations_are_read(area: LeaseArea) -> None:
    made = keep(area, CARDS[0])
    for number in range(reservations.MOST_OF_ONE + 1):
        Path(f"{area.directories[0]}/reservation-0{number}.json").write_bytes(wire.to_bytes(made))
    wrong = reservations.list_reservations(area, FREE)[1]
    assert any("not all of them were read" in text for text in wrong)


def test_without_shares_and_reservations_events_tell_everything(area: LeaseArea) -> None:
    ticket = Ticket(clock.boottime_ns(), "run", "anna", (CARDS[0].uuid,), 1)
    assert SharePolicy(FREE).look_again_s(area, ticket) is None
    assert SharePolicy(SOFT).look_again_s(area, ticket) == LOOK_AGAIN_S
    soon = SharePolicy(replace(SOFT, starve_after_s=3.0)).look_again_s(area, ticket)
    assert soon is not None
    assert soon <= 3.001
    keep(area, CARDS[0])
    assert SharePolicy(FREE).look_again_s(area, ticket) == LOOK_AGAIN_S


def test_a_busy_for_a_rule_names_no_card() -> None:
    assert BusyReason("rules of this box", Witness.RULE, "x").label == "rules of this box"


def test_the_ledger_is_named_by_account_and_month() -> None:
    assert ledger_stem(1001, 0.0) == "usage-1001.197001"


@needs_root
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_every_request_of_a_crowd_is_served_and_no_card_twice(area: LeaseArea, seed: int) -> None:
    """Three accounts with soft and hard limits, requests for one and two cards, some of them killed with a lease."""
    rules = Rules(cards_per_user=1, max_cards_per_user=2, starve_after_s=0.5)
    chance = random.Random(seed)
    shared = Path(area.directories[0]).parent / "witnesses"
    shared.mkdir()
    shared.chmod(0o777)
    with contextlib.ExitStack() as stack:
        crowd = []
        for number in range(1, 31):
            plan = chance.choice([1, 1, 2]), chance.uniform(0.0, 0.03), chance.random() < 0.15
            crowd.append((stack.enter_context(_one_of_many(area, number, rules, plan, str(shared))), plan[-1]))
        for child, killed in crowd:
            assert child.receive(120.0) == ("killed" if killed else "served")
    assert not list(shared.iterdir())


def _one_of_many(area: LeaseArea, number: int, rules: Rules, plan: tuple[int, float, bool], witnesses: str) -> Child:
    count, hold_s, killed = plan

    def work(line: Line) -> None:
        policy = SharePolicy(rules)
        waiter = Waiter(area, record(number, *TWO), TWO, count, policy)
        end_s = clock.monotonic_s() + 110
        outcome: Any = ()
        while not isinstance(outcome, leases.HeldLease) and clock.monotonic_s() < end_s:
            if waiter.ready():
                outcome = waiter.acquire(record(number, *waiter.free[:count]))
                continue
            select.select([waiter], [], [], wait_s(waiter, end_s))
        waiter.close()
        assert isinstance(outcome, leases.HeldLease)
        if killed:
            line.send("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        # A file for each card, which two holders at once could not both make, whatever the locks say.
        marks = [f"{witnesses}/{device.index}" for device in outcome.record.devices]
        for mark in marks:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        time.sleep(hold_s)
        for mark in marks:
            os.unlink(mark)
        outcome.release()
        line.send("served")
        line.receive(600)

    return Child(work, uid=(ANNA, BOB, CARL)[number % 3])


def test_an_account_makes_no_more_reservations_than_are_read(area: LeaseArea, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "MOST_OF_ONE", 2)
    for number in range(2):
        keep(area, CARDS[0], begin_s=number * 7200.0)
    with pytest.raises(UsageError, match="has 2 reservations"):
        keep(area, CARDS[0], begin_s=20_000.0)
