"""Waiting in line: order, waking, and the waiters that die."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import select
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.core.rules.rules import Rules
from holdfast.host import clock
from holdfast.host.files.inotify import Inotify
from holdfast.host.lease import holders, leases, lock_files, tickets
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.line import BLIND_POLL_S, LAST_RETRY_S, SLOW_POLL_S, Waiter, wait_s
from holdfast.host.lease.lock_files import LockFiles
from holdfast.host.lease.share_policy import SharePolicy
from holdfast.model.errors import StorageError
from holdfast.model.lease import BusyReason, LeasedDevice, Ticket, Witness
from tests.host.lease_support import CARDS, DEADLINE_S, Child, Line, hold, record, refused, take
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def area(tmp_path: Path, isolated_environment: dict[str, str]) -> LeaseArea:
    return open_area(hand_written=str(tmp_path / "gpu_locks"))


@contextlib.contextmanager
def waiting(area: LeaseArea, number: int, *candidates: LeasedDevice, count: int = 1) -> Iterator[Waiter]:
    waiter = Waiter(area, record(number, *candidates), candidates, count)
    try:
        yield waiter
    finally:
        waiter.close()


def poll_until_ready(waiter: Waiter, deadline_s: float) -> bool:
    """The loop that a supervisor has."""
    while not waiter.ready():
        if clock.monotonic_s() >= deadline_s:
            return False
        select.select([waiter] if waiter.fileno() >= 0 else [], [], [], wait_s(waiter, deadline_s))
    return True


def wait_and_hold(area: LeaseArea, number: int, *candidates: LeasedDevice, count: int = 1) -> Child:
    """A process that waits, takes what is free, and gives back when told."""

    def work(line: Line) -> None:
        with waiting(area, number, *candidates, count=count) as waiter:
            line.send("waiting")
            while poll_until_ready(waiter, clock.monotonic_s() + LIMIT_S):
                outcome = waiter.acquire(record(number, *waiter.free[:count]))
                if isinstance(outcome, leases.HeldLease):
                    break
            wakeups = waiter.wakeups
        assert isinstance(outcome, leases.HeldLease)
        line.send({"held": [device.uuid for device in outcome.record.devices], "wakeups": wakeups})
        line.receive(600)
        outcome.release()
        line.send("released")
        line.receive(600)

    return Child(work)


@contextlib.contextmanager
def in_line(area: LeaseArea, number: int, *candidates: LeasedDevice) -> Iterator[Child]:
    """A waiting process that has its place already."""
    with wait_and_hold(area, number, *candidates) as child:
        assert child.receive() == "waiting"
        yield child


@contextlib.contextmanager
def holding(area: LeaseArea, number: int, *devices: LeasedDevice) -> Iterator[Child]:
    """A process that has its lease already."""
    with hold(area, number, *devices) as child:
        assert child.receive() == "held"
        yield child


def test_a_free_card_is_ready_at_once(area: LeaseArea) -> None:
    with waiting(area, 1, CARDS[0], CARDS[1]) as waiter:
        assert waiter.ready()
        assert waiter.free == (CARDS[0], CARDS[1])
        held = waiter.acquire(record(1, CARDS[1]))
        assert isinstance(held, leases.HeldLease)
    held.release()
    assert not [name for name in os.listdir(area.directories[0]) if name.startswith(("ticket", "lease", "."))]


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_who_stands_behind_somebody_looks_again_for_a_while_after_an_event(area: LeaseArea) -> None:
    """Who left may close its ticket before the lock is gone, or be seen alive a while longer: no event follows."""
    with waiting(area, 1, CARDS[0]), waiting(area, 2, CARDS[0]) as behind:
        behind._told_at_s = clock.monotonic_s()
        assert not behind.ready()
        assert behind.next_retry_s is not None
        assert behind.next_retry_s <= LAST_RETRY_S
        behind._told_at_s -= LAST_RETRY_S
        assert not behind.ready()
        assert behind.next_retry_s is None


@pytest.mark.requirement("RAIL-15", "LEASE-14")
def test_whoever_opens_a_lock_file_again_and_again_makes_nobody_look_without_end(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: a stranger who opened and closed lock files kept the supervisor of each run in line busy."""
    monkeypatch.setattr("holdfast.host.lease.line.MOST_LOOKS", 3.0)
    monkeypatch.setattr("holdfast.host.lease.line.LOOKS_PER_S", 0.0)
    path = f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}"
    held = take(area, record(0, CARDS[0]))
    with waiting(area, 1, CARDS[0]) as waiter:
        assert not waiter.ready()
        for _ in range(4):
            os.close(os.open(path, os.O_RDONLY))
            assert select.select([waiter], [], [], DEADLINE_S)[0]
            assert not waiter.ready()
        os.close(os.open(path, os.O_RDONLY))
        assert not select.select([waiter], [], [], 0)[0]
        assert waiter.next_retry_s == BLIND_POLL_S
        held.release()
        assert poll_until_ready(waiter, clock.monotonic_s() + DEADLINE_S)


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_waiters_start_in_order_of_arrival_and_each_release_wakes_one(area: LeaseArea) -> None:
    held = take(area, record(0, CARDS[0]))
    with contextlib.ExitStack() as stack:
        line = [stack.enter_context(in_line(area, number, CARDS[0])) for number in range(1, 6)]
        held.release()
        for place, waiter in enumerate(line):
            got = waiter.receive()
            assert got["held"] == [CARDS[0].uuid]
            # Woken when the one before had the card, and when it let go; the first was there already. A close and
            # the removal of a ticket may come as two events each, never one for every waiter in the line.
            assert got["wakeups"] <= 6, f"place {place}"
            waiter.send()
            assert waiter.receive() == "released"


@pytest.mark.requirement("LEASE-14", "LEASE-02")
def test_LEASE_14_a_killed_holder_wakes_the_waiter_without_polling(area: LeaseArea) -> None:
    with holding(area, 1, CARDS[0]) as holder, waiting(area, 2, CARDS[0]) as waiter:
        assert not waiter.ready()
        assert waiter.blocked_by()[0].run_id == record(1).run_id
        wait_until(lambda: not waiter.ready() and waiter.next_retry_s is None, what="it rests on events alone")
        os.kill(holder.pid, signal.SIGKILL)
        assert select.select([waiter], [], [], DEADLINE_S)[0]
        assert poll_until_ready(waiter, clock.monotonic_s() + DEADLINE_S)
        assert waiter.next_retry_s is None


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_a_killed_waiter_holds_nobody_up(area: LeaseArea) -> None:
    held = take(area, record(0, CARDS[0]))
    with in_line(area, 1, CARDS[0]) as first, waiting(area, 2, CARDS[0]) as second:
        assert not second.ready()
        assert second.blocked_by()[0].witness is Witness.QUEUE
        first.kill()
        assert select.select([second], [], [], DEADLINE_S)[0]
        assert not second.ready()
        assert second.blocked_by()[0].run_id == held.record.run_id
        held.release()
        assert poll_until_ready(second, clock.monotonic_s() + DEADLINE_S)


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_who_does_not_wait_does_not_overtake(area: LeaseArea) -> None:
    with waiting(area, 1, CARDS[0], CARDS[1]) as waiter:
        (busy,) = refused(area, record(2, CARDS[1]))
        assert busy.witness is Witness.QUEUE
        assert busy.run_id == record(1).run_id
        take(area, record(3, CARDS[2])).release()
        assert waiter.ready()
    take(area, record(2, CARDS[1])).release()


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_who_gets_in_line_while_another_locks_is_not_overtaken(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as line:
        try_lock = LockFiles.try_lock

        def lock_late(files: LockFiles, path: str, *, exclusive: bool) -> bool:
            monkeypatch.setattr(LockFiles, "try_lock", try_lock)
            line.enter_context(waiting(area, 1, CARDS[1]))
            return try_lock(files, path, exclusive=exclusive)

        monkeypatch.setattr(LockFiles, "try_lock", lock_late)
        (busy,) = refused(area, record(2, CARDS[1]))
        assert (busy.witness, busy.run_id) == (Witness.QUEUE, record(1).run_id)


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_requests_that_do_not_overlap_do_not_wait_for_each_other(area: LeaseArea) -> None:
    held = take(area, record(0, CARDS[0]))
    with (
        waiting(area, 1, CARDS[0]) as blocked,
        waiting(area, 2, CARDS[1]) as other,
        waiting(area, 3, *CARDS[:2]) as both,
    ):
        assert not blocked.ready()
        assert other.ready()
        assert not both.ready()
        assert both.blocked_by()[0].run_id == record(2).run_id
    held.release()


def test_looking_makes_no_events_for_others_nor_for_oneself(area: LeaseArea) -> None:
    held = take(area, record(0, CARDS[0]))
    with waiting(area, 1, CARDS[0]) as first, waiting(area, 2, CARDS[0]) as second, waiting(area, 3, CARDS[0]) as third:
        for _ in range(20):
            assert not first.ready()
            assert not second.ready()
            assert not third.ready()
        assert (first.wakeups, second.wakeups, third.wakeups) == (0, 0, 0)
        assert not select.select([first, second, third], [], [], 0)[0]
        # The front leaving is news for the next only.
        first.close()
        assert select.select([second, third], [], [], DEADLINE_S)[0] == [second]
        assert not second.ready()
        assert third.ready() is False
        assert third.wakeups == 0
    held.release()


def test_enough_cards_are_needed(area: LeaseArea) -> None:
    held = take(area, record(0, CARDS[1]))
    with waiting(area, 1, *CARDS[:3], count=3) as waiter:
        assert not waiter.ready()
        assert waiter.free == (CARDS[0], CARDS[2])
        assert {busy.device for busy in waiter.blocked_by()} == {CARDS[1].uuid}
        held.release()
        assert poll_until_ready(waiter, clock.monotonic_s() + DEADLINE_S)
        assert waiter.free == CARDS[:3]


@pytest.mark.slow
def test_a_hand_written_lock_is_looked_at_slowly(area: LeaseArea, tmp_path: Path) -> None:
    (tmp_path / "gpu_locks").mkdir()
    lock = tmp_path / "gpu_locks" / "gpu_0.lock"
    lock.write_text("anna\n")
    with waiting(area, 1, CARDS[0]) as waiter:
        assert not waiter.ready()
        wait_until(lambda: not waiter.ready() and waiter.next_retry_s == SLOW_POLL_S, what="it looks slowly")
        assert waiter.blocked_by()[0].witness is Witness.FOREIGN_LOCK
        lock.unlink()
        assert waiter.ready()


def test_a_card_that_says_no_is_tried_again_slowly_and_not_at_once(area: LeaseArea) -> None:
    with waiting(area, 1, CARDS[0]) as waiter:
        assert waiter.ready()
        held = waiter.acquire(record(1, CARDS[0]))
        assert isinstance(held, leases.HeldLease)
        held.release()
        waiter.refused(())
        waiter.refused(refusal := (BusyReason(CARDS[0].uuid, Witness.CARD, "anna, pid 7"),))
        assert waiter.next_retry_s == SLOW_POLL_S
        assert waiter.blocked_by() == refusal
        assert not select.select([waiter], [], [], 0)[0]
        assert waiter.ready()


def test_a_replaced_lock_file_is_watched_anew(area: LeaseArea) -> None:
    with holding(area, 1, CARDS[0]) as holder, waiting(area, 2, CARDS[0]) as waiter:
        assert not waiter.ready()
        os.unlink(f"{area.directories[0]}/gpu-{CARDS[0].card_uuid}.lock")
        assert select.select([waiter], [], [], DEADLINE_S)[0]
        # The record still says busy, and now nothing but looking tells when that ends.
        assert not waiter.ready()
        assert waiter.next_retry_s is not None
        holder.send()
        assert holder.receive() == "released"
        assert poll_until_ready(waiter, clock.monotonic_s() + DEADLINE_S)


def test_the_deadline_bounds_the_wait(area: LeaseArea) -> None:
    held = take(area, record(0, CARDS[0]))
    with waiting(area, 1, CARDS[0]) as waiter:
        assert not poll_until_ready(waiter, clock.monotonic_s())
        waiter.next_retry_s = None
        assert wait_s(waiter, clock.monotonic_s() - 5) == 0
        waiter.next_retry_s = 0.25
        assert wait_s(waiter, clock.monotonic_s() + 60) == 0.25
    held.release()


def test_a_ticket_is_readable_for_everybody_and_forged_ones_hold_nobody_up(area: LeaseArea) -> None:
    with waiting(area, 5, CARDS[0]):
        (name,) = [name for name in os.listdir(area.directories[0]) if name.startswith("ticket-")]
        path = f"{area.directories[0]}/{name}"
        assert os.stat(path).st_mode & 0o777 == 0o644
        (listed,) = tickets.list_earlier(area, None)
        found = tickets.read_living(listed)
        assert found is not None
        assert found.cards == (CARDS[0].card_uuid,)
    # Nobody holds its lock: void, whatever it says.
    with open(f"{area.directories[0]}/ticket-{0:020d}-x.json", "w") as file:
        file.write('{"cards": ["' + CARDS[0].card_uuid + '"], "order": 0, "run_id": "x", "user": "root"}')
    take(area, record(1, CARDS[0])).release()


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_without_inotify_it_polls(area: LeaseArea) -> None:
    """The account's inotify instances are used up."""
    with open("/proc/sys/fs/inotify/max_user_instances") as file:
        most = int(file.read())

    def work(line: Line) -> None:
        queues: list[Inotify] = []
        with contextlib.suppress(OSError):
            queues.extend(Inotify() for _ in range(most + 1))
        # The account is a throw-away one: nobody else's instances are used up.
        with waiting(area, 1, CARDS[0]) as waiter:
            line.send([waiter.fileno(), waiter.ready(), waiter.next_retry_s])
            line.receive()
            line.send(poll_until_ready(waiter, clock.monotonic_s() + DEADLINE_S))

    if os.geteuid() != 0 or most > 4096:
        pytest.skip("needs root for an account of its own, and a limit that can be reached")
    os.chmod(os.path.dirname(area.directories[0]), 0o755)
    held = take(area, record(0, CARDS[0]))
    open_paths(area.directories[0])
    with Child(work, uid=54322) as waiter:  # no other test has it: what ends there would make room
        descriptor, ready, retry_s = waiter.receive()
        assert (descriptor, ready) == (-1, False)
        assert retry_s is not None
        held.release()
        waiter.send()
        assert waiter.receive() is True


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_what_cannot_be_watched_is_looked_at_and_the_rest_is_watched_on(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account's watches are used up; a loop listens to the descriptor, so it is never closed in between."""
    closed, add = f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}", Inotify.add

    def add_some(events: Inotify, path: str, mask: int) -> int:
        if path == closed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return add(events, path, mask)

    monkeypatch.setattr(Inotify, "add", add_some)
    held, other = take(area, record(0, CARDS[0])), take(area, record(1, CARDS[1]))
    with waiting(area, 2, *CARDS[:2]) as waiter:
        descriptor = waiter.fileno()
        waiter._told_at_s -= 10.0
        assert not waiter.ready()
        assert (waiter.fileno(), waiter.next_retry_s) == (descriptor, BLIND_POLL_S)
        assert rest(waiter, 45.0) == BLIND_POLL_S
        held.release()
        assert not select.select([waiter], [], [], 0)[0]
        assert waiter.ready()
        assert waiter.free == (CARDS[0],)
        other.release()
        assert select.select([waiter], [], [], DEADLINE_S)[0]
        monkeypatch.setattr(Inotify, "add", add)
        assert waiter.ready()
        waiter._told_at_s -= 10.0
        assert rest(waiter, None) is None


def open_paths(path: str) -> None:
    """Let other accounts reach a directory under pytest's own."""
    while path not in ("/", "/tmp"):
        os.chmod(path, os.stat(path).st_mode | 0o011)
        path = os.path.dirname(path)


def queue_again_and_again(area: LeaseArea, number: int, rounds: int) -> Child:
    """A process that waits, holds and releases; some holds end by SIGKILL, a double grant as an error."""

    def work(line: Line) -> None:
        draw = random.Random(number)
        for turn in range(rounds):
            candidates = tuple(sorted(draw.sample(CARDS[:3], draw.choice([2, 3])), key=lambda card: card.index))
            count = draw.choice([1, 1, 2])
            with waiting(area, number * 100 + turn, *candidates, count=count) as waiter:
                held = None
                while not isinstance(held, leases.HeldLease):
                    assert poll_until_ready(waiter, clock.monotonic_s() + DEADLINE_S), waiter.blocked_by()
                    held = waiter.acquire(record(number * 100 + turn, *waiter.free[:count]))
            paths = [f"{area.directories[0]}/witness-{device.index}" for device in held.record.devices]
            witnesses = [os.open(path, os.O_CREAT | os.O_RDWR) for path in paths]
            for witness in witnesses:
                # A record lock: it ends with this process, as a lease does, and shares nothing else with it.
                fcntl.lockf(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if draw.random() < 0.05:
                os.kill(os.getpid(), signal.SIGKILL)
            for witness in witnesses:
                os.close(witness)
            held.release()
        line.send("done")

    return Child(work)


@pytest.mark.requirement("LEASE-01", "LEASE-02", "LEASE-14")
def test_LEASE_14_a_crowd_that_is_killed_at_random_never_stalls_nor_doubles(area: LeaseArea) -> None:
    draw = random.Random(7)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(queue_again_and_again(area, number, 8)) for number in range(16)]
        for child in draw.sample(crowd, 4):
            child.kill()
        done = 0
        for child in crowd:
            with contextlib.suppress(EOFError):
                done += child.receive() == "done"
        assert done > 0
    held = take(area, record(9999, *CARDS[:3]))
    held.release()


@pytest.mark.requirement("LEASE-14")
@pytest.mark.parametrize(
    ("rules", "numbers"), [(Rules(), (3, 2, 1)), (Rules(cards_per_user=1), (1, 2, 3))], ids=["arrival", "shares"]
)
def test_LEASE_14_a_wall_clock_that_is_set_back_leaves_the_line_in_its_order(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch, rules: Rules, numbers: tuple[int, ...]
) -> None:
    """With shares the run id decides among those whose files are of one tick of the kernel's clock."""
    cards, policy, epoch_s = frozenset((CARDS[0].card_uuid,)), SharePolicy(rules), clock.epoch_s

    def list_ahead(own: tickets.OwnTicket) -> list[str]:
        return [found.ticket.run_id for found in policy.list_ahead(area, cards, own.ticket)]

    with contextlib.ExitStack() as line:
        own = []
        for number in numbers:
            ticket = Ticket(clock.boottime_ns(), record(number).run_id, "me", (CARDS[0].uuid,), 1)
            own.append(line.enter_context(contextlib.closing(tickets.OwnTicket(area, ticket, CARDS[:1]))))
        before = [list_ahead(one) for one in own]
        assert [bool(ahead) for ahead in before] == [False, True, True]
        monkeypatch.setattr(clock, "epoch_s", lambda: epoch_s() - 3600.0)
        assert [list_ahead(one) for one in own] == before


def rest(waiter: Waiter, recheck_s: float | None) -> float | None:
    waiter.rest((), recheck_s)
    return waiter.next_retry_s


def test_who_waits_for_room_on_a_shared_card_sleeps_until_a_time_or_until_a_run_leaves(area: LeaseArea) -> None:
    sharer = take(area, record(1, CARDS[0], share=True))
    waiter = Waiter(area, record(2, CARDS[0], share=True), (CARDS[0],), 1)
    try:
        assert waiter.ready(), "its lock could be shared; whether there is room is the caller's to judge"
        assert (rest(waiter, 45.0) or 45.0) <= SLOW_POLL_S, "whoever let go a moment ago may not be quite gone"
        waiter._told_at_s -= 10.0
        assert [rest(waiter, 45.0), rest(waiter, None)] == [45.0, None]
        assert not select.select([waiter], [], [], 0)[0], "looking makes no event"
        sharer.release()
        assert select.select([waiter], [], [], DEADLINE_S)[0]
    finally:
        waiter.close()


def test_who_shares_and_says_a_new_time_with_each_look_makes_nobody_look_without_end(area: LeaseArea) -> None:
    with waiting(area, 1, CARDS[0]) as waiter:
        waiter._told_at_s -= 10.0
        assert rest(waiter, 1e-9) == BLIND_POLL_S


def test_LEASE_14_a_holder_whom_nobody_can_name_is_waited_for_without_end(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From inside a PID namespace, or where the kernel's list of locks is too long."""
    monkeypatch.setattr(holders, "read_kernel_locks", lambda _warnings=None: ())
    monkeypatch.setattr(leases, "acquire_lease", lambda *_, **__: leases._call_passing(CARDS[:1]))
    with waiting(area, 1, CARDS[0]) as waiter:
        for _ in range(1100):
            assert isinstance(waiter.acquire(record(1, CARDS[0])), tuple)
        assert waiter.next_retry_s == SLOW_POLL_S


def test_LEASE_14_a_lock_file_that_cannot_be_made_just_now_ends_no_wait(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, mode: int = 0o644) -> None:
        raise StorageError(f"{path} cannot be made: no space left ({mode:o})", hint="")

    with waiting(area, 1, CARDS[0]) as waiter:
        with monkeypatch.context() as full:
            full.setattr(lock_files, "_create_lock_file", refuse)
            assert not waiter.ready()
            assert waiter.next_retry_s == SLOW_POLL_S
            assert "no space left" in waiter.unusable[0].holder
        assert waiter.ready()
