"""Looking at all leases without disturbing one."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from holdfast.host.lease import lock_files, records
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.line import Waiter
from holdfast.host.lease.survey import survey_leases
from holdfast.host.process import processes
from holdfast.model.lease import Witness
from holdfast.model.record import replace
from tests.host.lease_support import CARDS, Child, Line, hold, record, slice_of, take

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def area(tmp_path: Path, isolated_environment: dict[str, str]) -> LeaseArea:
    return open_area(hand_written=str(tmp_path / "gpu_locks"))


@pytest.mark.requirement("LEASE-04", "LEASE-05")
def test_LEASE_04_every_card_with_its_holder_record_and_line(area: LeaseArea) -> None:
    before = os.listdir(area.directories[0])
    empty = survey_leases(area, CARDS[:2])
    assert empty.busy == {CARDS[0].uuid: (), CARDS[1].uuid: ()}
    assert os.listdir(area.directories[0]) == before
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
        waiter = Waiter(area, record(2, CARDS[0]), (CARDS[0],), 1)
        found = survey_leases(area, CARDS[:2])
        (busy,) = found.busy[CARDS[0].uuid]
        assert (busy.witness, busy.run_id, busy.pids) == (Witness.LOCK, record(1).run_id, (holder.pid,))
        assert found.busy[CARDS[1].uuid] == ()
        (lease,) = found.leases
        assert lease.judgement.standing is records.RecordStatus.LIVE
        assert [seen.ticket.run_id for seen in found.waiting] == [record(2).run_id]
        waiter.close()
        holder.kill()
    (lease,) = survey_leases(area, CARDS[:1]).leases
    assert lease.judgement.standing is records.RecordStatus.VOID
    assert survey_leases(area, CARDS[:1]).busy[CARDS[0].uuid] == ()


def test_without_an_area_nothing_is_leased(tmp_path: Path) -> None:
    area = open_area(str(tmp_path / "none"), environ={}, create=False, hand_written=str(tmp_path / "gpu_locks"))
    assert survey_leases(area, CARDS[:1]).busy == {CARDS[0].uuid: ()}


def test_looking_never_makes_a_try_fail(area: LeaseArea) -> None:
    def work(line: Line) -> None:
        line.send("looking")
        for _ in range(100):
            survey_leases(area, CARDS[:2])
        line.send("looked")

    with Child(work) as looker:
        looker.receive()
        while not select.select([looker.line.reader], [], [], 0)[0]:
            files = lock_files.LockFiles()
            # The bare lock, without the patience that would cover a collision.
            assert files.try_lock(f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}", exclusive=True)
            files.close()
        assert looker.receive() == "looked"


def test_a_lock_without_a_record_is_shown_with_its_process(area: LeaseArea) -> None:
    def work(line: Line) -> None:
        files = lock_files.LockFiles()
        line.send(files.try_lock(f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}", exclusive=True))
        line.receive(600)

    with Child(work) as stranger:
        stranger.receive()
        (busy,) = survey_leases(area, CARDS[:1]).busy[CARDS[0].uuid]
        assert (busy.witness, busy.pids, busy.run_id) == (Witness.LOCK, (stranger.pid,), None)


@pytest.mark.requirement("LEASE-19")
def test_LEASE_19_a_slice_shows_on_its_card_and_not_on_its_neighbour(area: LeaseArea) -> None:
    one, two = slice_of(CARDS[0], 1), slice_of(CARDS[0], 2)
    held = take(area, record(1, one))
    found = survey_leases(area, (CARDS[0], one, two)).busy
    assert [busy.run_id for busy in found[CARDS[0].uuid]] == [held.record.run_id]
    assert [busy.run_id for busy in found[one.uuid]] == [held.record.run_id]
    assert found[two.uuid] == ()
    held.release()


@pytest.mark.requirement("LEASE-03")
def test_LEASE_03_a_draining_card_is_shown_as_draining(area: LeaseArea) -> None:
    ours = processes.identify_self()
    gone = replace(ours, start_ticks=ours.start_ticks + 1)
    records.write_record(area, record(1, CARDS[0], supervisor=gone, members=(ours,)))
    (busy,) = survey_leases(area, CARDS[:1]).busy[CARDS[0].uuid]
    assert (busy.witness, busy.draining, busy.pids) == (Witness.RECORD, True, (os.getpid(),))


def test_hand_written_locks_and_warnings_are_shown(area: LeaseArea, tmp_path: Path) -> None:
    (tmp_path / "gpu_locks").mkdir()
    (tmp_path / "gpu_locks" / "gpu_1.lock").write_text("anna\n")
    with open(f"{area.directories[0]}/lease-20261120-104501-bad-0000.1.json", "w") as file:
        file.write("{")
    found = survey_leases(area, CARDS[:2])
    assert found.busy[CARDS[1].uuid][0].witness is Witness.FOREIGN_LOCK
    assert any("bad-0000" in warning for warning in found.warnings)
