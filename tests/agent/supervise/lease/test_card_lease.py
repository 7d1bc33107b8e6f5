"""Leases of one run: a reading of the cards that never comes back, a record that cannot be renewed."""

from __future__ import annotations

import os
import select
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.agent.supervise.lease import card_lease, publish
from holdfast.agent.supervise.lease.card_lease import CardLease
from holdfast.agent.supervise.lease.devices import list_devices
from holdfast.agent.supervise.lease.publish import PublishedLease
from holdfast.agent.supervise.loop import Loop
from holdfast.core.rules.rules import Rules
from holdfast.core.run.events import LeaseBlocked, LeaseFailed, LeaseGranted
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.lease.area import open_area
from holdfast.host.lease.lock_files import lock_name
from holdfast.host.lease.records import read_records
from holdfast.host.process.offload import reap_left
from holdfast.host.process.processes import identify_self, user_name
from holdfast.model import wire
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, JobSpec
from holdfast.model.record import replace
from holdfast.model.run import Starting
from tests.agent.driving import timeouts
from tests.agent.loops import Turned
from tests.host.lease_support import CARDS, Child, Line, hold, record, take
from tests.host.small_disk import fill, mount_small_disk
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent.supervise.context import SupervisorContext

pytestmark = pytest.mark.process

ALICE, STRANGER = 61_001, 61_666


@pytest.mark.slow
@pytest.mark.requirement("RAIL-15")
def test_RAIL_15_cards_that_never_answer_refuse_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "pid"

    def hang(*_: object) -> object:
        note.write_text(str(os.getpid()), encoding="ascii")
        signal.pause()
        return None

    monkeypatch.setattr(card_lease, "read_and_sample", hang)
    monkeypatch.setattr(card_lease, "FIRST_READING_S", 0.3)
    monkeypatch.setattr(card_lease, "READING_MARGIN_S", 0.2)
    emitted, loop = list[object](), Turned()
    context = SimpleNamespace(spec=JobSpec("t", ("x",), "/"), rules=Rules(), environ={}, loop=loop, emit=emitted.append)
    lease = CardLease(cast("SupervisorContext", context), lambda: None)
    lease.begin()
    wait_until(lambda: note.exists() and note.read_text(encoding="ascii") != "", what="the child to hang")
    assert loop.ready
    assert loop.helpers == {int(note.read_text(encoding="ascii"))}

    def turn() -> bool:
        loop.timers.run_due()
        return bool(emitted)

    wait_until(turn, what="the limit")
    (event,) = emitted
    assert isinstance(event, LeaseFailed)
    assert (event.refusal.code, event.refusal.exit_code) == ("gpu_unreadable", 78)
    assert "no answer within 0.5 s" in event.refusal.message
    assert not loop.ready
    assert not lease.is_deciding

    def is_gone() -> bool:
        reap_left()  # as whoever starts the next child does
        return not os.path.exists(f"/proc/{note.read_text(encoding='ascii')}")

    wait_until(is_gone, what="the child's end")


@pytest.mark.requirement("LEASE-04")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_record_that_cannot_be_renewed_is_told_of_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "REPUBLISH_S", 0.01)
    events, told, loop = list[str](), list[str](), Turned()
    recorder = SimpleNamespace(event=lambda name, **_: events.append(name))
    spec = JobSpec("t", ("x",), "/", timeouts=timeouts(run=60.0))
    context = SimpleNamespace(
        recorder=recorder, loop=loop, notify=lambda name, **_: told.append(name), spec=spec, rules=Rules()
    )
    lease = CardLease(cast("SupervisorContext", context), lambda: None)
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        area = open_area(str(disk / "area"), environ={}, hand_written=str(tmp_path / "none"))
        held = take(area, record(1, CARDS[0]))
        monkeypatch.setattr(lease, "_held", PublishedLease(held, cast("SupervisorContext", context)))
        full = fill(disk)
        lease.note_cgroup("/sys/fs/cgroup/first")
        lease.note_cgroup("/sys/fs/cgroup/second")
        loop.timers.run_due()
        assert (events, told) == (["lease_record_stale"], ["lease_record_stale"])
        assert read_records(area)[0][0].record.cgroup is None
        full.unlink()
        # What could not be written yet is in what is written next.
        lease.note_limits()
        assert read_records(area)[0][0].record.cgroup == "/sys/fs/cgroup/second"
        assert read_records(area)[0][0].record.until is not None
        assert events == ["lease_record_stale", "lease_record_renewed"]
        full = fill(disk)
        lease.note_cgroup("/sys/fs/cgroup/third")
        full.unlink()

        def turn() -> bool:
            loop.timers.run_due()
            return len(events) > 3

        wait_until(turn, what="the record to be renewed")
        assert events == ["lease_record_stale", "lease_record_renewed"] * 2
        assert read_records(area)[0][0].record.cgroup == "/sys/fs/cgroup/third"
        held.release()


@pytest.mark.slow
@pytest.mark.requirement("LEASE-04")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to write a file of another account")
def test_a_lease_is_taken_over_with_our_record_not_with_that_of_who_wrote_our_run_id(
    tmp_path: Path, isolated_environment: dict[str, str]
) -> None:
    area, ours = open_area(), record(1, CARDS[0], command="ours")
    held = take(area, ours)
    stranger = replace(ours, uid=STRANGER, user="mallory", command="theirs", devices=(CARDS[0], CARDS[3]))
    planted = f"{isolated_environment['HOLDFAST_LEASE_DIR']}/lease-0.json"
    with open(planted, "wb") as file:
        file.write(wire.to_bytes(stranger, pid_namespace=""))
    os.chown(planted, STRANGER, STRANGER)
    logged = list[str]()
    recorder = SimpleNamespace(log=logged.append, read_manifest=dict, event=lambda _: None)
    spec = JobSpec("t", ("x",), "/", gpus=GpuRequest(1))
    context = SimpleNamespace(
        spec=spec, rules=Rules(), environ=isolated_environment, recorder=recorder, run_id=ours.run_id, attempt=1,
        loop=Turned(), container_init=None,
    )  # fmt: skip
    lease = CardLease(cast("SupervisorContext", context), lambda: None)
    lease.resume(Starting("", (CARDS[0],), keeper=identify_self()))
    assert logged == []
    records = {seen.record.uid: seen.record for seen in read_records(area)[0]}
    assert (records[os.geteuid()].command, records[os.geteuid()].devices) == ("ours", (CARDS[0],))
    assert lease.leased_cards == {CARDS[0].card_uuid}
    assert records[STRANGER].command == "theirs"
    lease.release()
    held.release()


@pytest.mark.requirement("LEASE-17")
@pytest.mark.parametrize("given", [None, "slurm"], ids=["leased", "given by a scheduler"])
def test_LEASE_17_a_run_is_taken_over_by_what_it_recorded_not_by_where_its_successor_is(
    tmp_path: Path, isolated_environment: dict[str, str], given: str | None
) -> None:
    """A leased run that is adopted from a shell within a pod keeps its lease; one of Slurm gets none outside of it."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOLDFAST_SERVICE_ACCOUNT": str(tmp_path)}
    environ = {**isolated_environment, **(pod if given is None else {})}
    recorder = SimpleNamespace(log=pytest.fail, read_manifest=lambda: {"allocation": given}, event=lambda _: None)
    context = SimpleNamespace(
        spec=JobSpec("t", ("x",), "/", gpus=GpuRequest(1)), rules=Rules(), environ=environ, recorder=recorder,
        run_id=record(1).run_id, attempt=1, run_dir="", loop=Turned(), container_init=None,
    )  # fmt: skip
    lease = CardLease(cast("SupervisorContext", context), lambda: None)
    lease.resume(Starting("", (CARDS[0],), keeper=identify_self()))
    assert lease.leased_cards == ({CARDS[0].card_uuid} if given is None else set())
    lease.release()


@pytest.mark.requirement("LEASE-14")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other accounts")
def test_LEASE_14_a_lock_file_that_its_owner_closes_leaves_the_loop_at_rest_and_the_wait_goes_on(
    monkeypatch: pytest.MonkeyPatch, public_path: Path
) -> None:
    """The change of its mode is an event, and after it the file cannot be watched any more."""
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    environ = {"HOLDFAST_LEASE_DIR": str(public_path / "area")}
    inventory, area = read_inventory(), open_area(environ=environ)
    (card,) = list_devices(inventory)
    path = f"{area.directories[0]}/{lock_name(card.uuid)}"

    def wait(line: Line) -> None:
        loop, emitted, gone = Loop(lambda _: None), list[object](), set[int]()
        context = SimpleNamespace(
            spec=JobSpec("t", ("x",), "/", gpus=GpuRequest(1), gpu=GpuOptions(wait_s=600.0)), rules=Rules(),
            environ=environ, loop=loop, emit=emitted.append, run_id=record(2).run_id, attempt=1, run_dir="",
            recorder=SimpleNamespace(log=emitted.append, event=lambda *_, **__: None),
        )  # fmt: skip
        lease = CardLease(cast("SupervisorContext", context), lambda: None)
        lease._inventory = inventory
        before = set(loop._calls)
        lease._choose_first()
        line.send(len(loop._calls.keys() - before))
        while not lease.leased_cards:
            loop.run_once()
            gone.update(descriptor for descriptor, flags in loop._poller.poll(0) if flags & select.POLLNVAL)
            if not os.stat(path).st_mode & 0o777:
                line.send("closed")
        line.send([sorted(gone), loop._calls.keys() == before, [type(event).__name__ for event in emitted]])

    with hold(area, 1, card) as holder:
        assert holder.receive() == "held"
        os.chown(path, STRANGER, STRANGER)
        with Child(wait, uid=ALICE) as alice:
            assert alice.receive() == 1
            with Child(lambda _: os.chmod(path, 0), uid=STRANGER):
                assert alice.receive() == "closed"
            holder.send()
            while (said := alice.receive()) == "closed":
                pass
            assert said == [[], True, ["LeaseBlocked", "LeaseGranted"]]


@pytest.mark.requirement("LEASE-14")
@pytest.mark.parametrize("share", [False, True], ids=["whole", "shared"])
def test_LEASE_14_a_second_directory_that_is_removed_or_replaced_while_a_run_waits_is_told_and_ends_no_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: bool
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    inventory, first, second = read_inventory(), tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.mkdir()
        path.chmod(0o1777)
    places = (str(tmp_path / "none"), str(first), str(second))
    area = open_area(environ={}, candidates=places, hand_written=str(tmp_path / "gpu_locks"))
    emitted, loop = list[object](), Turned()
    context = SimpleNamespace(
        spec=JobSpec("t", ("x",), "/", gpus=GpuRequest(1), gpu=GpuOptions(wait_s=600.0, share=share)), rules=Rules(),
        environ={}, loop=loop, emit=emitted.append, run_id=record(2).run_id, attempt=1, run_dir="",
        recorder=SimpleNamespace(log=emitted.append, event=lambda *_, **__: None),
    )  # fmt: skip
    lease = CardLease(cast("SupervisorContext", context), lambda: None)
    monkeypatch.setattr(lease, "_inventory", inventory)
    monkeypatch.setattr(lease, "_area", area)
    held = take(area, record(1, *list_devices(inventory)))
    lease._wait()
    waiter = lease._waiter
    assert waiter is not None
    second.rename(tmp_path / "gone")
    second.symlink_to(tmp_path / "nowhere")
    lease._on_wake()
    (blocked,) = emitted
    assert isinstance(blocked, LeaseBlocked)
    assert f"{second} is a symbolic link, and {user_name(os.geteuid())} made it" in blocked.busy[0].holder
    held.release()
    second.unlink()
    lease._on_wake()
    assert [type(event) for event in emitted] == [LeaseBlocked, LeaseGranted]
    lease.release()
    waiter.close()
