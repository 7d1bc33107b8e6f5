"""What a stranger may put where leases lie stops nobody: names, paths that lead into pipes, names of other people."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host import lease_area, lease_breaking, lease_records, processes, tickets
from holdfast.model.lease import Ticket
from tests.host.lease_support import CARDS, record

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.host.lease_area import Area

pytestmark = pytest.mark.process


def test_names_with_digits_that_are_no_numbers_do_not_stop_a_sweep(
    isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    by_hand = tmp_path / "gpu_locks"
    by_hand.mkdir()
    directory = isolated_environment["HOLDFAST_LEASE_DIR"]
    planted = [
        f"{directory}/.lease-x.json.\u00b2.tmp",
        f"{directory}/ticket-\u00b2-x.json",
        f"{by_hand}/gpu_\u00b2.lock",
    ]
    for path in planted:
        with open(path, "w", encoding="ascii"):
            pass
    area = lease_area.open_area(hand_written=str(by_hand))
    assert lease_breaking.sweep(area) == ()
    assert all(map(os.path.exists, planted))


@pytest.fixture
def area(isolated_environment: dict[str, str]) -> Area:
    assert isolated_environment["HOLDFAST_LEASE_DIR"]
    return lease_area.open_area()


@pytest.mark.parametrize("kind", ["pipe", "text", "link", "large", "endless"])
@pytest.mark.requirement("LEASE-03")
def test_a_cgroup_of_a_record_that_is_none_holds_nobody_up(
    area: Area, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The path is the record's own word, and everybody who looks at the card follows it."""
    procs = tmp_path / "cgroup.procs"
    if kind == "pipe":
        os.mkfifo(procs)
        writer = os.open(procs, os.O_RDWR)
    elif kind == "text":
        procs.write_text("no pid\n")
    elif kind == "link":
        procs.symlink_to("/dev/zero")
    elif kind == "large":
        procs.write_text("1\n" * 100)
        monkeypatch.setattr(lease_records, "MAX_BYTES", 100)
    else:
        monkeypatch.setattr(lease_records, "MOST_CGROUPS", 3)
        procs.write_text("")
        for name in "abc":
            (tmp_path / name).mkdir()
            (tmp_path / name / "cgroup.procs").write_text("")
    ours = processes.identify_self()
    dead = dataclasses.replace(ours, start_ticks=ours.start_ticks + 1)
    seen = lease_records.SeenRecord("x", record(1, CARDS[0], supervisor=dead, cgroup=str(tmp_path)), "")
    assert lease_records.judge(seen).standing is lease_records.Standing.UNSEEN
    if kind == "pipe":
        os.close(writer)


@pytest.mark.requirement("ETIQ-04")
def test_a_record_and_a_ticket_are_shown_under_the_name_of_whoever_wrote_them(area: Area) -> None:
    lease_records.write_record(area, record(1, CARDS[0], user="root's best friend"))
    ((seen,), wrong) = lease_records.read_records(area)
    own = tickets.OwnTicket(area, Ticket(1, "run", "somebody else", (CARDS[0].uuid,), 1), CARDS[:1])
    found = tickets.read_living(f"{area.directories[0]}/{tickets.ticket_name(own.ticket)}")
    own.close()
    assert (seen.record.user, wrong) == (processes.user_name(os.geteuid()), ())
    assert found is not None
    assert found.ticket.user == processes.user_name(os.geteuid())


def test_an_account_that_the_box_does_not_know_is_called_what_it_says_and_its_number() -> None:
    assert processes.name_owner(60_001, "anna") == "anna (uid 60001)"
    assert processes.name_owner(60_001, "") == processes.name_owner(60_001, "60001") == "60001"
    assert processes.name_owner(0, "anna") == "root"


@pytest.mark.parametrize(
    ("field", "value"), [("since_boot_ns", 10**400), ("memory_bytes", 10**400), ("run_dir", "/a\0b")]
)
def test_a_record_with_values_that_no_run_has_is_named_and_stops_nobody(area: Area, field: str, value: object) -> None:
    (path,) = lease_records.write_record(area, record(1, CARDS[0], share=True))
    with open(path, encoding="utf-8") as file:
        said = json.load(file)
    lease_records.publish(path, json.dumps({**said, field: value}).encode())
    found, (wrong,) = lease_records.read_records(area)
    assert found == ()
    assert "not trusted" in wrong


@pytest.mark.parametrize("change", [{"count": 0}, {"count": 10**30}, {"order": 1 << 64}, {"hold_s": -1.0}])
def test_a_ticket_of_somebody_who_cannot_be_waiting_does_not_count(area: Area, change: dict[str, int]) -> None:
    ticket = dataclasses.replace(Ticket(1, "run", "me", (CARDS[0].uuid,), 1), **change)  # type: ignore[arg-type]
    own = tickets.OwnTicket(area, ticket, CARDS[:1])
    try:
        assert tickets.find_ahead(area, frozenset((CARDS[0].card_uuid,)), None) is None
    finally:
        own.close()
