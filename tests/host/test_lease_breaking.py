"""Breaking leases, and clearing away what the dead left."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.host import lease_records
from holdfast.host.lease_area import Area, open_area
from holdfast.host.lease_breaking import audit_name, break_lease, sweep
from holdfast.host.lease_waiting import Waiter
from holdfast.model.errors import NoSuchRun, NotPermitted, StorageError
from tests.host.lease_support import CARDS, NOBODY, Child, Line, hold, record, refused, take

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def area(tmp_path: Path, isolated_environment: dict[str, str]) -> Area:
    return open_area(hand_written=str(tmp_path / "gpu_locks"))


def audit(area: Area) -> list[dict[str, object]]:
    with open(f"{area.directories[0]}/{audit_name(os.geteuid())}") as file:
        return [json.loads(line) for line in file]


@pytest.mark.requirement("LEASE-16")
def test_LEASE_16_a_lease_whose_run_is_gone_may_be_broken_without_force(area: Area) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
    broken = break_lease(area, record(1).run_id)
    assert [os.path.basename(path) for path in broken.removed] == [f"lease-{record(1).run_id}.1.json"]
    assert broken.still_running == ()
    (line,) = audit(area)
    assert (line["run_id"], line["gone"], line["uid"]) == (record(1).run_id, True, os.geteuid())
    with pytest.raises(NoSuchRun):
        break_lease(area, record(1).run_id)


@pytest.mark.requirement("LEASE-16")
def test_LEASE_16_a_living_lease_needs_force_and_a_reason_and_nothing_is_killed(area: Area) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
        for options in ({}, {"force": True}, {"reason": "x"}, {"force": True, "reason": "  "}):
            with pytest.raises(NotPermitted, match="still holds") as caught:
                break_lease(area, record(1).run_id, **options)
            assert "--reason" in caught.value.hint
        assert not os.path.exists(f"{area.directories[0]}/{audit_name(os.geteuid())}")
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
def test_LEASE_16_breaking_one_of_two_sharing_leases_leaves_the_other(area: Area) -> None:
    with hold(area, 1, CARDS[0], share=True) as first, hold(area, 2, CARDS[0], share=True) as second:
        assert (first.receive(), second.receive()) == ("held", "held")
        broken = break_lease(area, record(1).run_id, force=True, reason="test")
        assert len(broken.kept) == 1
        assert refused(area, record(3, CARDS[0]))[0].run_id == record(2).run_id


@pytest.mark.requirement("LEASE-16")
def test_LEASE_16_nothing_is_broken_when_it_cannot_be_written_down(area: Area, tmp_path: Path) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
        os.symlink(tmp_path / "elsewhere", f"{area.directories[0]}/{audit_name(os.geteuid())}")
        with pytest.raises(StorageError, match="was not broken"):
            break_lease(area, record(1).run_id, force=True, reason="test")
        assert not (tmp_path / "elsewhere").exists()
        assert lease_records.read_records(area)[0]


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
    assert held.is_current
    held.release()


def test_sweep_removes_what_the_dead_left_and_nothing_else(area: Area) -> None:
    directory = area.directories[0]
    with hold(area, 1, CARDS[0]) as dead:
        assert dead.receive() == "held"

    def wait(line: Line) -> None:
        Waiter(area, record(2, CARDS[1]), (CARDS[1],), 1)
        line.send("waiting")
        line.receive(600)

    with Child(wait) as waiter:
        assert waiter.receive() == "waiting"
    with subprocess.Popen(["true"]) as gone:
        pass
    old, young = f"{directory}/.ticket-x.json.{gone.pid}.tmp", f"{directory}/.lease-x.json.{gone.pid}.tmp"
    ours = f"{directory}/.lease-x.json.{os.getpid()}.tmp"
    for path in (old, young, ours):
        with open(path, "w"):
            pass
    for path in (old, ours):
        os.utime(path, (0, 0))
    held = take(area, record(3, CARDS[2]))
    with Child(wait) as waiter:
        assert waiter.receive() == "waiting"
        before = set(os.listdir(directory))
        removed = {os.path.basename(path) for path in sweep(area)}
        assert before - set(os.listdir(directory)) == removed
        (ticket,) = [name for name in removed if name.startswith("ticket-")]
        assert removed == {f"lease-{record(1).run_id}.1.json", os.path.basename(old), ticket}
        assert sweep(area) == ()
    held.release()
