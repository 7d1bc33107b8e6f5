"""Several runs on one card: who gets in when many come at once, who waits, what they are told."""

from __future__ import annotations

import contextlib
import json
import os
import select
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.plan import sharing_by_memory
from holdfast.host import clock
from holdfast.host.lease import leases, sharers
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.line import Waiter, wait_s
from holdfast.host.lease.survey import survey_leases
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.gpu import Card, CardRules, GpuProcess, GpuRequest, HolderKind, Inventory, InventorySource
from holdfast.model.job import GpuOptions
from holdfast.model.lease import BusyReason, Witness
from holdfast.model.record import replace
from holdfast.model.run import Outcome, RequestKind
from tests.agent.driving import Drive, Driven, job
from tests.host.lease_support import CARDS, Child, Line, record, take
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.process

GB, GIB = 1000**3, 1024**3
TEN = 10 * GB
SHARED = CARDS[0]


@pytest.fixture
def area(tmp_path: Path, isolated_environment: dict[str, str]) -> LeaseArea:
    return open_area(hand_written=str(tmp_path / "gpu_locks"))


def box(*seen: GpuProcess) -> Inventory:
    """One card of 80 GB that runs share."""
    used = sum(process.used_bytes or 0 for process in seen)
    card = Card(0, SHARED.card_uuid, "Test card", None, 80 * GB, used, 80 * GB - used, 0, processes=seen)
    return Inventory(InventorySource.SIMULATED, (card,))


def look(
    area: LeaseArea, number: int, inventory: Inventory, memory: int | None = TEN
) -> sharing_by_memory.SharingSurvey:
    run = record(number)
    return sharing_by_memory.survey_sharing(
        area, inventory, sharing_by_memory.SharingRequest(run.run_id, 1, memory), CardRules(share=True)
    )


def sharing(area: LeaseArea, number: int) -> Child:
    """A process that stands in line for 10 GB of the card; says when it has them, and gives them back when told."""

    def work(line: Line) -> None:
        run = record(number, SHARED, share=True, memory_bytes=TEN)
        waiter = Waiter(area, run, (SHARED,), 1)
        outcome: object = None
        try:
            line.send("waiting")
            line.receive()
            while not isinstance(outcome, leases.HeldLease):
                if waiter.ready():
                    shared = look(area, number, box())
                    if shared.rooms[SHARED.uuid].fits:
                        outcome = waiter.acquire(run, lambda: look(area, number, box()).busy((SHARED,)))
                    else:
                        waiter.rest(shared.busy((SHARED,)), shared.recheck_s((SHARED,)))
                if not isinstance(outcome, leases.HeldLease):
                    select.select([waiter], [], [], wait_s(waiter, clock.monotonic_s() + 60))
        finally:
            waiter.close()
        line.send("held")
        line.receive()
        outcome.release()
        line.send("released")
        line.receive()

    return Child(work)


def count_held(children: list[Child], wanted: int) -> list[Child]:
    """Those who have it, once `wanted` have said so; nobody else may."""
    held: list[Child] = []
    while len(held) < wanted:
        ready, _, _ = select.select([child.line.reader for child in children if child not in held], [], [], LIMIT_S)
        assert ready, f"only {len(held)} of {wanted} got in"
        for child in children:
            if child.line.reader in ready:
                assert child.receive() == "held"
                held.append(child)
    return held


HAS_NOT = "two runs are on one card only where both have --share, best with --gpu-memory:"
FIRST = record(1).run_id


@pytest.mark.parametrize(
    ("sharing", "asked", "words"),
    [
        ((False,), GpuOptions(memory_bytes=GIB), f"{HAS_NOT} run {FIRST} has not, and neither has this one"),
        ((False,), GpuOptions(share=True), f"{HAS_NOT} run {FIRST} has not"),
        ((False, False), GpuOptions(share=True), f"{HAS_NOT} the 2 runs that are there have not"),
        (
            (True,),
            GpuOptions(memory_bytes=GIB),
            f"run {FIRST} shares its card: --share has this one ask for room beside it",
        ),
        ((False,), GpuOptions(), ""),
        ((True,), GpuOptions(share=True, memory_bytes=TEN), ""),
    ],
)
def test_who_lacks_share_is_told_to_who_is_refused(
    area: LeaseArea, sharing: tuple[bool, ...], asked: GpuOptions, words: str
) -> None:
    with contextlib.ExitStack() as stack:
        for number, share in enumerate(sharing):
            stack.callback(take(area, record(number + 1, CARDS[number], share=share)).release)
        busy = survey_leases(area, CARDS[: len(sharing)]).busy
        holders = tuple(item for several in busy.values() for item in several)
        assert sharing_by_memory.describe_sharing(area, holders, asked) == words
        reserved = (BusyReason(SHARED.uuid, Witness.RESERVATION, "kept for anna"),)
        assert sharing_by_memory.describe_sharing(area, reserved, asked) == ""


@pytest.mark.requirement("QUEUE-11")
def test_of_sixteen_who_come_at_once_only_as_many_get_in_as_fit_and_each_leaving_lets_one_in(area: LeaseArea) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(sharing(area, number)) for number in range(16)]
        assert [child.receive() for child in children] == ["waiting"] * 16
        for child in children:
            child.send()
        first = count_held(children, 7)
        assert not look(area, 99, box()).rooms[SHARED.uuid].fits
        records = sharers.read_sharing(area, frozenset({SHARED.card_uuid}))
        assert sum(lease.record.memory_bytes or 0 for lease in records) == 70 * GB
        others = [child for child in children if child not in first]
        first[0].send()
        assert first[0].receive() == "released"
        second = count_held(others, 1)
        # A dead holder's record lies there, and does not count.
        first[1].kill()
        third = count_held([child for child in others if child not in second], 1)
        assert len({*first[2:], *second, *third}) == 7
        waiting = [child for child in others if child not in {*second, *third}]
        assert not select.select([child.line.reader for child in waiting], [], [], 0)[0]


def starting(area: LeaseArea, number: int) -> Child:
    """A process that sees the card empty and then, when told, tries once for 10 GB of it."""

    def work(line: Line) -> None:
        line.send(look(area, number, box()).rooms[SHARED.uuid].fits)
        line.receive()
        run = record(number, SHARED, share=True, memory_bytes=TEN)
        outcome = leases.acquire_lease(area, run, admit=lambda: look(area, number, box()).busy((SHARED,)))
        line.send("held" if isinstance(outcome, leases.HeldLease) else [reason.holder for reason in outcome])
        line.receive()

    return Child(work)


@pytest.mark.requirement("QUEUE-11")
def test_sixteen_who_all_saw_an_empty_card_do_not_all_get_in(area: LeaseArea) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(starting(area, number)) for number in range(16)]
        assert [child.receive() for child in children] == [True] * 16
        for child in children:
            child.send()
        answers = [child.receive() for child in children]
        assert answers.count("held") == 7
        assert all("free" in words for answer in answers if answer != "held" for words in answer), answers


def test_under_the_gate_the_records_decide_not_what_was_seen_before(area: LeaseArea) -> None:
    """Both looked when the card was empty; the second to come finds no room any more."""
    before = look(area, 2, box(), 50 * GB)
    assert before.rooms[SHARED.uuid].fits
    first = take(area, record(1, SHARED, share=True, memory_bytes=50 * GB))
    run = record(2, SHARED, share=True, memory_bytes=50 * GB)
    outcome = leases.acquire_lease(area, run, admit=lambda: look(area, 2, box(), 50 * GB).busy((SHARED,)))
    assert isinstance(outcome, tuple)
    (busy,) = outcome
    assert record(1).run_id in busy.holder
    assert "reserved" in busy.holder
    first.release()
    outcome = leases.acquire_lease(area, run, admit=lambda: look(area, 2, box(), 50 * GB).busy((SHARED,)))
    assert isinstance(outcome, leases.HeldLease)
    outcome.release()


@pytest.mark.requirement("LEASE-18")
def test_a_whole_card_is_not_shared_whatever_it_has_free(area: LeaseArea) -> None:
    alone = take(area, record(1, SHARED))
    run = record(2, SHARED, share=True, memory_bytes=1)
    (busy,) = leases.acquire_lease(area, run, admit=lambda: look(area, 2, box(), 1).busy((SHARED,)))  # type: ignore[misc]
    assert busy.run_id == record(1).run_id
    alone.release()


def test_what_descends_from_a_lessee_is_the_lessees_and_nothing_else_is(area: LeaseArea) -> None:
    held = take(area, record(1, SHARED, share=True, memory_bytes=TEN))
    with sharing(area, 9) as child:
        assert child.receive() == "waiting"
        (lease,) = sharers.read_sharing(area, frozenset({SHARED.card_uuid}))
        assert sharers.find_owners([lease], [child.pid, os.getpid(), 1]) == {
            child.pid: held.record.run_id,
            os.getpid(): held.record.run_id,
        }
        other = replace(processes.identify_self(), start_ticks=1)
        reused = replace(lease, record=replace(held.record, supervisor=other))
        assert sharers.find_owners([reused], [os.getpid()]) == {}, "another process with the same pid"
        elsewhere = replace(lease, here=False)
        assert sharers.find_owners([elsewhere], [child.pid]) == {}, "pids of another namespace mean nothing here"

        mine = GpuProcess(child.pid, HolderKind.UNMANAGED, 4 * GB)
        room = look(area, 2, box(mine)).rooms[SHARED.uuid]
        assert room.free_bytes == pytest.approx(69.5 * GB, abs=GB), "what it uses is part of what it reserved"
        strange = GpuProcess(1, HolderKind.UNMANAGED, 4 * GB)
        room = look(area, 2, box(strange)).rooms[SHARED.uuid]
        assert room.free_bytes == pytest.approx(65.5 * GB, abs=GB), "a stranger's comes on top"
    held.release()
    assert sharers.read_sharing(area, frozenset({SHARED.card_uuid})) == ()


# --- whole runs -----------------------------------------------------------------------------------------------------


def share(memory: int | None, **more: Any) -> dict[str, Any]:
    gpu = GpuOptions(idle_window_s=0.0, share=True, memory_bytes=memory, verify=False, **more)
    return {"gpus": GpuRequest(count=1), "gpu": gpu}


def blocked_words(run: Driven) -> str:
    return json.dumps([event["data"] for event in run.events("blocked")])


@pytest.mark.slow
def test_a_run_waits_for_room_and_is_woken_when_a_sharer_leaves(drive: Drive) -> None:
    card = {"HOLDFAST_SIMULATED_GPUS": "1x24GiB"}
    runs = []
    for _ in range(2):
        runs.append(drive(*job("stay"), environ=card, **share(10 * GIB)))
        # One that does not wait is refused while another has taken the lock and not said yet for what.
        runs[-1].ready()
    shell = ("sh", "-c", 'echo "$HOLDFAST_GPU_MEMORY_SHARE"')
    third = drive(*shell, environ=card, **share(6 * GIB, wait_s=600.0))
    wait_until(lambda: third.events("blocked"))
    words = blocked_words(third)
    assert runs[0].run_id in words
    assert "10 GiB reserved by run" in words
    assert "6 GiB asked, 3.5 GiB free" in words
    impatient = drive(*shell, environ=card, **share(6 * GIB)).ended()
    assert impatient.exit_code == 75, impatient
    runs[0].ask(RequestKind.STOP_NOW)
    runs[0].ended()
    assert third.ended().outcome is Outcome.SUCCEEDED
    assert third.output().strip() == b"0.25", "torch is told what was reserved"
    runs[1].ask(RequestKind.STOP_NOW)
    runs[1].ended()


def test_what_no_card_has_is_refused_at_once_also_by_who_would_wait(drive: Drive) -> None:
    run = drive(*job("stay"), environ={"HOLDFAST_SIMULATED_GPUS": "2x80GiB"}, **share(200 * GIB, wait_s=600.0))
    end = run.ended()
    assert end.exit_code == 78
    assert end.refusal is not None
    assert "200 GiB of each card are asked for (gpu.memory)" in end.refusal.message


@pytest.mark.slow
def test_use_above_the_reservation_is_counted_and_told_and_not_ended(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    environ = fake_nvml.environment()
    greedy = drive(*job("stay"), environ=environ, health_every_s=0.2, **share(10 * GIB))
    state = greedy.ready()
    fake_nvml.run_on(0, (state.job.process.pid, 60 * GIB))
    wait_until(lambda: greedy.events("memory_over_reservation"))
    assert greedy.events("memory_over_reservation")[0]["data"]["reserved_bytes"] == 10 * GIB
    end = drive(*job("stay"), environ=environ, **share(25 * GIB)).ended()
    assert end.exit_code == 75, end
    assert "uses 60 GiB" in end.evidence
    second = drive(*job("exit_with", 0), environ=environ, **share(10 * GIB))
    assert second.ended().outcome is Outcome.SUCCEEDED, "there is room for this one"
    assert greedy.read(wire.MANIFEST)["share"] is True
    assert greedy.kind() == "running"
    greedy.ask(RequestKind.STOP_NOW)
    greedy.ended()


@pytest.mark.slow
def test_a_stranger_on_a_shared_card_keeps_everybody_else_off(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.run_on(0, (1, 5 * GIB))
    end = drive(*job("stay"), environ=fake_nvml.environment(), **share(10 * GIB)).ended()
    assert end.exit_code == 75, end
    assert "pid 1 with 5 GiB" in end.evidence
