"""Breaking leases, and clearing away what the dead left."""

from __future__ import annotations

import json
import os
import resource
from typing import TYPE_CHECKING

import pytest

from holdfast.host.lease import records
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.force_release import break_lease, remove_void_records
from holdfast.host.lease.line import Waiter
from holdfast.model.errors import NoSuchRun, NotPermitted, StorageError
from tests.host.lease_support import CARDS, NOBODY, Child, Line, hold, record, refused, take

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def area(tmp_path: Path, isolated_environment: dict[str, str]) -> LeaseArea:
    return open_area(hand_written=str(tmp_path / "gpu_locks"))


def list_audits(area: LeaseArea) -> list[str]:
    """The audit files in the area; another account may have put one there, too."""
    directory = area.directories[0]
    return [f"{directory}/{name}" for name in sorted(os.listdir(directory)) if name.startswith("audit-")]


def audit(area: LeaseArea) -> list[dict[str, object]]:
    (path,) = list_audits(area)
    with open(path) as file:
        return [json.loads(line) for line in file]


@pytest.mark.requirement("LEASE-16")
def test_LEASE_16_a_lease_whose_run_is_gone_may_be_broken_without_force(area: LeaseArea) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
    broken = break_lease(area, record(1).run_id)
    (path,) = broken.removed
    assert os.path.basename(path).startswith(f"lease-{record(1).run_id}.1.")
    assert broken.still_running == ()
    (line,) = audit(area)
    assert (line["run_id"], line["gone"], line["uid"]) == (record(1).run_id, True, os.geteuid())
    with pytest.raises(NoSuchRun):
        break_lease(area, record(1).run_id)


@pytest.mark.requirement("LEASE-16")
def test_LEASE_16_a_living_lease_needs_force_and_a_reason_and_nothing_is_killed(area: LeaseArea) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
        for options in ({}, {"force": True}, {"reason": "x"}, {"force": True, "reason": "  "}):
            with pytest.raises(NotPermitted, match="still holds") as caught:
                break_lease(area, record(1).run_id, **options)
            assert "--reason" in caught.value.hint
        assert list_audits(area) == []
        broken = break_lease(area, record(1).run_id, force=True, reason="stuck in the driver")
        assert broken.still_running == (holder.pid,)
        (line,) = audit(area)
        assert (line["reason"], line["gone"]) == ("stuck in the driver", False)
        held = take(area, record(2, CARDS[0]))
        # The lessee goes on, and its own release does no harm to the next.
        holder.send()
        assert holder.receive() == "released"
        assert refused(area, record(3, CARDS[0]))[0].run_id == held.record.run_id
        held.release()


@pytest.mark.requirement("LEASE-16")
def test_LEASE_16_breaking_one_of_two_sharing_leases_leaves_the_other(area: LeaseArea) -> None:
    with hold(area, 1, CARDS[0], share=True) as first, hold(area, 2, CARDS[0], share=True) as second:
        assert (first.receive(), second.receive()) == ("held", "held")
        broken = break_lease(area, record(1).run_id, force=True, reason="test")
        assert len(broken.kept) == 1
        assert refused(area, record(3, CARDS[0]))[0].run_id == record(2).run_id


@pytest.mark.requirement("LEASE-16")
def test_LEASE_16_nothing_is_broken_when_it_cannot_be_written_down(area: LeaseArea) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"

        def work(line: Line) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            with pytest.raises(StorageError, match="nothing was done"):
                break_lease(area, record(1).run_id, force=True, reason="test")
            line.send("refused")

        with Child(work) as child:
            assert child.receive() == "refused"
        assert records.read_records(area)[0]


@pytest.mark.requirement("LEASE-16")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another account")
def test_LEASE_16_another_account_cannot_break_it(public_path: Path) -> None:
    area = open_area(str(public_path / "area"), environ={})
    held = take(area, record(1, CARDS[0]))

    def work(line: Line) -> None:
        try:
            break_lease(area, record(1).run_id, force=True, reason="I want it")
        except NotPermitted as error:
            line.send([str(error), sorted(os.listdir(area.directories[0]))])

    with Child(work, uid=NOBODY) as nobody:
        message, there = nobody.receive()
    assert "belongs to root" in message
    assert not any(name.startswith("audit") for name in there)
    held.require_current()
    held.release()


def test_sweep_removes_what_the_dead_left_and_nothing_else(area: LeaseArea) -> None:
    directory = area.directories[0]
    with hold(area, 1, CARDS[0]) as dead:
        assert dead.receive() == "held"

    def wait(line: Line) -> None:
        Waiter(area, record(2, CARDS[1]), (CARDS[1],), 1)
        line.send("waiting")
        line.receive(600)

    with Child(wait) as waiter:
        assert waiter.receive() == "waiting"
    old, young = f"{directory}/.0123456789abcdef.tmp", f"{directory}/.123456789abcdef0.tmp"
    before_us = f"{directory}/.lease-x.json.{os.getpid()}.tmp"
    for path in (old, young, before_us):
        with open(path, "w"):
            pass
    for path in (old, before_us):
        os.utime(path, (0, 0))
    held = take(area, record(3, CARDS[2]))
    with Child(wait) as waiter:
        assert waiter.receive() == "waiting"
        before = set(os.listdir(directory))
        removed = {os.path.basename(path) for path in remove_void_records(area)}
        assert before - set(os.listdir(directory)) == removed
        (ticket,) = [name for name in removed if name.startswith("ticket-")]
        (lease,) = [name for name in removed if name.startswith(f"lease-{record(1).run_id}.1.")]
        assert removed == {lease, os.path.basename(old), os.path.basename(before_us), ticket}
        assert remove_void_records(area) == ()
    held.release()
