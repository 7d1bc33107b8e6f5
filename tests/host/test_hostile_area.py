"""What a stranger may put where leases lie stops nobody: names, paths that lead into pipes, names of other people."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files.public_files import publish
from holdfast.host.lease import area as lease_area
from holdfast.host.lease import force_release, leases, records, tickets
from holdfast.host.process import processes
from holdfast.model.lease import Ticket
from holdfast.model.record import replace
from holdfast.model.run import SCHEMA
from tests.host.lease_support import CARDS, record

if TYPE_CHECKING:
    from holdfast.host.lease.area import LeaseArea

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
    assert force_release.remove_void_records(area) == ()
    assert all(map(os.path.exists, planted))


@pytest.fixture
def area(isolated_environment: dict[str, str]) -> LeaseArea:
    assert isolated_environment["HOLDFAST_LEASE_DIR"]
    return lease_area.open_area()


@pytest.mark.parametrize("kind", ["pipe", "text", "link", "large", "endless", "elsewhere", "climbing"])
@pytest.mark.requirement("LEASE-03")
def test_a_cgroup_of_a_record_that_is_none_holds_nobody_up(
    area: LeaseArea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The path is the record's own word, and everybody who looks at the card follows it, no further than a cgroup."""
    procs, path = tmp_path / "group" / "cgroup.procs", str(tmp_path / "group")
    procs.parent.mkdir()
    if kind not in ("elsewhere", "climbing"):
        monkeypatch.setattr(records, "list_cgroup_mounts", lambda: (str(tmp_path),))
    if kind == "climbing":
        monkeypatch.setattr(records, "list_cgroup_mounts", lambda: (str(tmp_path / "other"),))
        path = f"{tmp_path}/other/../group"
    if kind == "pipe":
        os.mkfifo(procs)
        writer = os.open(procs, os.O_RDWR)
    elif kind == "text":
        procs.write_text("no pid\n")
    elif kind == "link":
        procs.symlink_to("/dev/zero")
    elif kind == "large":
        procs.write_text("1\n" * 100)
        monkeypatch.setattr(records, "MOST_CGROUP_BYTES", 100)
    elif kind == "endless":
        monkeypatch.setattr(records, "MOST_CGROUPS", 3)
        procs.write_text("")
        for name in "abc":
            (procs.parent / name).mkdir()
            (procs.parent / name / "cgroup.procs").write_text("")
    else:
        # Empty by its word, if anybody read it.
        procs.write_text("")
    ours = processes.identify_self()
    dead = replace(ours, start_ticks=ours.start_ticks + 1)
    seen = records.FoundRecord("x", record(1, CARDS[0], supervisor=dead, cgroup=path), "")
    assert records.judge_record(seen).standing is records.RecordStatus.UNSEEN
    if kind == "pipe":
        os.close(writer)


def test_a_record_of_a_newer_holdfast_is_judged_like_any_other_and_named_where_it_cannot_be_read(
    area: LeaseArea,
) -> None:
    """Anybody could write a newer number: it makes no card busy that nobody holds."""
    ours = processes.identify_self()
    for supervisor, standing in (
        (ours, records.RecordStatus.LIVE),
        (replace(ours, start_ticks=ours.start_ticks + 1), records.RecordStatus.VOID),
    ):
        (path,) = records.write_record(area, record(1, CARDS[0], supervisor=supervisor))
        content = json.loads(Path(path).read_text())
        publish(path, json.dumps({**content, "schema": SCHEMA + 1, "new": 1}).encode())
        ((seen,), wrong) = records.read_records(area)
        assert (records.judge_record(seen).standing, wrong) == (standing, ())
        publish(path, json.dumps({**content, "schema": SCHEMA + 1, "devices": {}}).encode())
        (found, wrong) = records.read_records(area)
        assert (found, "was written by a newer holdfast" in wrong[0]) == ((), True)
        os.unlink(path)


@pytest.mark.requirement("ETIQ-04")
def test_a_record_and_a_ticket_are_shown_under_the_name_of_whoever_wrote_them(area: LeaseArea) -> None:
    records.write_record(area, record(1, CARDS[0], user="root's best friend"))
    ((seen,), wrong) = records.read_records(area)
    own = tickets.OwnTicket(area, Ticket(1, record(1).run_id, "somebody else", (CARDS[0].uuid,), 1), CARDS[:1])
    (listed,) = tickets.list_earlier(area, None)
    found = tickets.read_living(listed)
    own.close()
    assert (seen.record.user, wrong) == (processes.user_name(os.geteuid()), ())
    assert found is not None
    assert found.ticket.user == processes.user_name(os.geteuid())


def test_an_account_that_the_box_does_not_know_is_called_what_it_says_and_its_number() -> None:
    assert processes.name_owner(60_001, "anna") == "anna (uid 60001)"
    assert processes.name_owner(60_001, "") == processes.name_owner(60_001, "60001") == "60001"
    assert processes.name_owner(0, "anna") == "root"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("since_boot_ns", 10**400),
        ("memory_bytes", 10**400),
        ("memory_bytes", -1),
        ("running_since_s", float("nan")),
        ("running_since_s", 1e300),
        ("attempt", 0),
        ("attempt", -(10**30)),
        ("run_id", "x\nholdfast: card 3 is broken"),
        ("run_id", "../../etc/passwd"),
        ("devices", []),
        ("devices", [{"card_uuid": f"../{CARDS[0].uuid}", "index": 0, "name": "x"}]),
        ("devices", [{"card_uuid": CARDS[0].uuid, "index": 10**400, "name": "x"}]),
        ("members", [{"pid": 1, "start_ticks": 1, "boot_id": "x"}] * 65),
        ("supervisor", {"pid": -1, "start_ticks": 1, "boot_id": "x"}),
        ("supervisor", {"pid": 10**30, "start_ticks": 1, "boot_id": "x"}),
        ("command", "x" * 40_000),
        ("phase", "holiday"),
        ("uid", [0]),
        ("share", {}),
        ("user", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_record_with_values_that_no_run_has_is_named_and_stops_nobody(
    area: LeaseArea, field: str, value: object
) -> None:
    (path,) = records.write_record(area, record(1, CARDS[0], share=True))
    with open(path, encoding="utf-8") as file:
        said = json.load(file)
    publish(path, json.dumps({**said, field: value}).encode())
    found, (wrong,) = records.read_records(area)
    assert found == ()
    assert path in wrong
    assert len(wrong) < 500
    assert "\n" not in wrong
    held = leases.acquire_lease(area, record(2, CARDS[0]))
    assert isinstance(held, leases.HeldLease)
    held.release()


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"count": 10**30},
        {"order": 1 << 64},
        {"hold_s": -1.0},
        {"hold_s": float("nan")},
        {"run_id": "x\nholdfast: card 3 is broken"},
        {"candidates": ("GPU-" + "x" * 20_000,)},
    ],
    ids=str,
)
def test_a_ticket_of_somebody_who_cannot_be_waiting_does_not_count(area: LeaseArea, change: dict[str, int]) -> None:
    ticket = replace(Ticket(1, record(1).run_id, "me", (CARDS[0].uuid,), 1), **change)  # type: ignore[arg-type]
    own = tickets.OwnTicket(area, ticket, CARDS[:1])
    try:
        assert tickets.find_ahead(area, frozenset((CARDS[0].card_uuid,)), None) is None
    finally:
        own.close()
