"""What another account of the box may do in the lease area, and what it must not bring about. Mallory is hostile."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.core.rules.rules import Rules
from holdfast.host import clock
from holdfast.host.files import public_files
from holdfast.host.lease import leases, lock_files, records, tickets
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.force_release import break_lease, remove_void_records
from holdfast.host.lease.line import Waiter
from holdfast.host.lease.share_policy import SharePolicy
from holdfast.host.lease.survey import survey_leases
from holdfast.host.process import processes, table
from holdfast.host.process.table import read_inner_pids
from holdfast.model import wire
from holdfast.model.errors import NotPermitted, UsageError
from holdfast.model.identity import ProcessId
from holdfast.model.lease import Ticket
from holdfast.model.record import replace
from tests.host.lease_support import CARDS, Child, Line, hold, record, refused, slice_of, take
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other accounts"),
]

ALICE, BOB, MALLORY = 61_001, 61_002, 61_666
DEAD = ProcessId(999_999, 1, clock.boot_id())


@pytest.fixture
def area() -> Iterator[LeaseArea]:
    """As on a real box: root's, open to all, and not under /tmp."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    path.chmod(0o755)
    yield open_area(str(path / "area"), environ={}, hand_written=str(path / "gpu_locks"))
    shutil.rmtree(path)


def as_account(uid: int, work: Callable[[], Any]) -> Any:
    """What `work` answers, done by a process of that account."""

    def say(line: Line) -> None:
        line.send({"said": work()})

    with Child(say, uid=uid) as child:
        return child.receive()["said"]


def plant(kind: str, path: str) -> None:
    """Put something at `path` that is no file of holdfast's."""
    if kind == "directory":
        os.mkdir(path)
    elif kind == "link":
        os.symlink("/nonexistent/target", path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        with open(path, "w", encoding="ascii"):
            pass
        if kind == "second name":
            os.link(path, f"{path}.2")
        elif kind == "closed":
            os.chmod(path, 0)


def write_foreign(area: LeaseArea, name: str, **content: object) -> None:
    """A file of whoever we are, as a stranger writes it: with any name and any content."""
    with open(f"{area.directories[0]}/{name}", "w", encoding="utf-8") as file:
        json.dump(content, file)


def forge(area: LeaseArea, number: int, name: str = "", **changes: Any) -> None:
    """A record that Mallory writes in her own name, for any run; unless `changes` say otherwise, of the dead."""
    values = {"uid": MALLORY, "user": "mallory", "supervisor": DEAD, **changes}
    value = wire.encode(record(number, *CARDS, **values))
    write_foreign(area, name or f"lease-{number}.json", schema=1, pid_namespace="", **value)


# --- names that were there before -----------------------------------------------------------------------------------


@pytest.mark.requirement("LEASE-03", "LEASE-06")
@pytest.mark.parametrize("kind", ["file", "directory", "link", "fifo"])
def test_nobody_keeps_the_record_of_another_from_being_renewed(area: LeaseArea, kind: str) -> None:
    """All that is known of Alice's lease once its first record is out: run, attempt, supervisor."""
    directory = area.directories[0]

    def alice(line: Line) -> None:
        held = take(area, record(1, CARDS[0]))
        line.send(os.getpid())
        line.receive(600)
        job = os.fork()
        if job == 0:
            os.closerange(3, 4096)
            os.execv("/bin/sleep", ["sleep", "600"])
        member = processes.identify(job)
        assert member is not None
        held.update(replace(held.record, members=(member,)))
        line.send(job)
        line.receive(600)

    def mallory() -> None:
        run_id = record(1).run_id
        for name in (f"lease-{run_id}.1.json", f".lease-{run_id}.1.json.{supervisor}.tmp"):
            plant(kind, f"{directory}/{name}")

    with Child(alice, uid=ALICE) as child:
        supervisor = child.receive()
        as_account(MALLORY, mallory)
        child.send()
        job = child.receive()
        child.kill()
        try:
            # The lock went with the supervisor: only the record tells of the job.
            assert as_account(BOB, lambda: refused(area, record(2, CARDS[0]))[0].pids) == [job]
        finally:
            os.kill(job, 9)


@pytest.mark.requirement("LEASE-14")
@pytest.mark.parametrize("kind", ["file", "directory", "link", "fifo"])
def test_nobody_ends_the_wait_of_another_by_the_name_of_its_record(area: LeaseArea, kind: str) -> None:
    directory = area.directories[0]
    with hold(area, 1, CARDS[0], uid=BOB) as bob:
        assert bob.receive() == "held"

        def alice(line: Line) -> None:
            wanted = record(2, CARDS[0])
            waiter = Waiter(area, wanted, CARDS[:1], 1)
            line.send(waiter.ready())
            line.receive(600)
            wait_until(waiter.ready)
            held = waiter.acquire(wanted)
            line.send(isinstance(held, leases.HeldLease))

        with Child(alice, uid=ALICE) as child:
            assert child.receive() is False
            as_account(MALLORY, lambda: plant(kind, f"{directory}/lease-{record(2).run_id}.1.json"))
            bob.send()
            assert bob.receive() == "released"
            child.send()
            assert child.receive() is True


@pytest.mark.requirement("LEASE-16")
@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_nobody_keeps_another_from_writing_down_what_it_broke(area: LeaseArea, kind: str) -> None:
    as_account(MALLORY, lambda: plant(kind, f"{area.directories[0]}/audit-{ALICE}.jsonl"))

    def alice() -> object:
        held = take(area, record(1, CARDS[0]))
        break_lease(area, held.record.run_id, force=True, reason="test")
        (audit,) = public_files.find_own(
            [(area.directories[0], name) for name in os.listdir(area.directories[0])], "audit-", ".jsonl", ALICE
        )
        with open(audit, encoding="utf-8") as file:
            return json.load(file)["reason"]

    assert as_account(ALICE, alice) == "test"


@pytest.mark.requirement("ETIQ-09")
@pytest.mark.parametrize("kind", ["file", "directory", "link", "closed", "fifo"])
def test_nobody_else_holds_or_takes_the_gate_of_an_account(area: LeaseArea, kind: str) -> None:
    def work(line: Line) -> None:
        files, opened = lock_files.LockFiles(), []
        for name in (f"account-{ALICE}.gate", f"account-{ALICE}.{'0' * 16}.gate"):
            plant(kind, f"{area.directories[0]}/{name}")
            if kind == "file":
                opened.append(files.try_lock(f"{area.directories[0]}/{name}", exclusive=True))
        line.send(opened)
        line.receive(600)

    def alice() -> list[bool]:
        policy = SharePolicy(Rules(max_cards_per_user=1))
        first = leases.acquire_lease(area, record(1, CARDS[0]), policy=policy)
        second = leases.acquire_lease(area, record(2, CARDS[1]), policy=policy)
        return [isinstance(first, leases.HeldLease), isinstance(second, leases.HeldLease)]

    with Child(work, uid=MALLORY) as mallory:
        mallory.receive()
        assert as_account(ALICE, alice) == [True, False]


# --- lock files and gates -------------------------------------------------------------------------------------------

OBSTACLES = ["closed", "link", "directory", "fifo", "second name"]


@pytest.mark.requirement("LEASE-06")
@pytest.mark.parametrize("kind", OBSTACLES)
def test_a_card_whose_lock_file_cannot_be_used_is_busy_and_the_others_are_not(area: LeaseArea, kind: str) -> None:
    path = f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}"
    as_account(MALLORY, lambda: plant(kind, path))

    def alice() -> list[Any]:
        (busy,) = refused(area, record(1, CARDS[0]))
        take(area, record(2, CARDS[1])).release()
        survey = survey_leases(area, CARDS[:2])
        return [
            busy.device,
            busy.holder,
            [reason.holder for reason in survey.busy[CARDS[0].uuid]],
            survey.busy[CARDS[1].uuid],
        ]

    device, holder, surveyed, other = as_account(ALICE, alice)
    assert device == CARDS[0].uuid
    assert path in holder
    assert holder.startswith(f"{MALLORY} ({path} ")
    assert surveyed == [holder]
    assert other == []


@pytest.mark.requirement("LEASE-06")
@pytest.mark.parametrize("kind", OBSTACLES)
def test_a_card_whose_gate_cannot_be_used_is_busy_for_those_who_share(area: LeaseArea, kind: str) -> None:
    path = f"{area.directories[0]}/{lock_files.gate_name(CARDS[0].uuid)}"
    part = slice_of(CARDS[0], 1)
    as_account(MALLORY, lambda: plant(kind, path))

    def alice() -> list[Any]:
        busy = [reason.holder for reason in refused(area, record(1, CARDS[0], CARDS[1], share=True))]
        busy += [reason.holder for reason in refused(area, record(2, part))]
        take(area, record(3, CARDS[0])).release()
        take(area, record(3, CARDS[1], share=True)).release()
        survey = survey_leases(area, (CARDS[0], part))
        return [busy, survey.warnings, [reason.holder for reason in survey.busy[part.uuid]], survey.busy[CARDS[0].uuid]]

    busy, warnings, parts, whole = as_account(ALICE, alice)
    assert all(path in holder and holder.startswith(f"{MALLORY} ({path} ") for holder in busy)
    assert len(busy) == 2
    assert any("cannot be shared" in text and path in text for text in warnings)
    assert (parts, whole) == (busy[:1], [])


@pytest.mark.requirement("LEASE-14")
@pytest.mark.parametrize("name", [lock_files.lock_name(CARDS[0].uuid), lock_files.gate_name(CARDS[0].uuid)])
def test_who_waits_for_a_card_that_is_obstructed_goes_on_waiting(area: LeaseArea, name: str) -> None:
    path = f"{area.directories[0]}/{name}"
    as_account(MALLORY, lambda: plant("link", path))

    def alice(line: Line) -> None:
        wanted = record(1, CARDS[0], share=True)
        waiter = Waiter(area, wanted, CARDS[:1], 1)

        def has_it() -> bool:
            return waiter.ready() and isinstance(waiter.acquire(wanted), leases.HeldLease)

        line.send([has_it(), [reason.holder for reason in waiter.blocked_by()]])
        assert waiter.next_retry_s is not None
        line.receive(600)
        wait_until(has_it)
        line.send(True)

    with Child(alice, uid=ALICE) as child:
        ready, (holder,) = child.receive()
        assert not ready
        assert path in holder
        assert holder.startswith(f"{MALLORY} ({path} ")
        os.unlink(path)
        child.send()
        assert child.receive() is True


@pytest.mark.requirement("LEASE-05")
def test_who_holds_a_gate_is_named(area: LeaseArea) -> None:
    path = f"{area.directories[0]}/{lock_files.gate_name(CARDS[0].uuid)}"
    part = slice_of(CARDS[0], 1)

    def hold_gate(line: Line) -> None:
        line.send(lock_files.LockFiles().try_lock(path, exclusive=True) and os.getpid())
        line.receive(600)

    def alice() -> list[Any]:
        busy = [reason.holder for reason in refused(area, record(1, CARDS[0], share=True))]
        wanted = record(2, CARDS[0], share=True)
        waiter = Waiter(area, wanted, CARDS[:1], 1)

        def is_named() -> bool:
            assert waiter.ready()
            assert isinstance(waiter.acquire(wanted), tuple)
            return path in waiter.blocked_by()[0].holder

        wait_until(is_named)
        assert waiter.next_retry_s == 0.5
        busy += [reason.holder for reason in waiter.blocked_by()]
        waiter.close()
        survey = survey_leases(area, (CARDS[0], part))
        return [busy, [reason.holder for reason in survey.busy[part.uuid]], survey.warnings]

    with Child(hold_gate, uid=MALLORY) as mallory:
        pid = mallory.receive()
        busy, surveyed, warnings = as_account(ALICE, alice)
    for holder in (*busy, *surveyed):
        assert path in holder
        assert f"{MALLORY}, pid {pid}" in holder
    assert (len(busy), len(surveyed)) == (2, 1)
    assert any("cannot be shared" in text and f"pid {pid}" in text for text in warnings)


def test_who_shares_outlasts_a_gate_that_one_after_the_other_holds(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{area.directories[0]}/{lock_files.gate_name(CARDS[0].uuid)}"
    looks: list[str] = []

    def hold_gate(line: Line) -> None:
        line.send(lock_files.LockFiles().try_lock(path, exclusive=True))
        line.receive(600)

    with Child(hold_gate, uid=MALLORY) as holder:
        assert holder.receive()

        def list_pids(path: str) -> frozenset[int]:
            looks.append(path)
            if len(looks) == 2:
                holder.kill()
            return frozenset({len(looks)})

        monkeypatch.setattr(leases, "_list_pids", list_pids)
        take(area, record(1, CARDS[0], share=True)).release()
    assert looks[:2] == [path, path]


@pytest.mark.requirement("RAIL-15")
@pytest.mark.parametrize("flaps", [False, True], ids=["held", "held again and again"])
def test_while_a_gate_is_held_the_records_are_read_a_few_times_and_not_for_each_try(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch, flaps: bool
) -> None:
    """Whoever holds a gate may have left hundreds of records, too: all of it was read two hundred times in a loop."""
    path = f"{area.directories[0]}/{lock_files.gate_name(CARDS[0].uuid)}"
    looks: list[LeaseArea] = []

    def look(area: LeaseArea, **about: Any) -> Any:
        looks.append(area)
        return read_records(area, **about)

    def hold_gate(line: Line) -> None:
        line.send(lock_files.LockFiles().try_lock(path, exclusive=True))
        line.receive(600)

    read_records = records.read_records
    monkeypatch.setattr(records, "read_records", look)
    if flaps:
        monkeypatch.setattr(leases, "_is_let_go", lambda *_: True)
    with Child(hold_gate, uid=MALLORY) as mallory:
        assert mallory.receive()
        (busy,) = refused(area, record(1, CARDS[0], share=True))
        assert f"{MALLORY}, pid {mallory.pid}" in busy.holder
    assert 2 <= len(looks) <= (leases.MOST_LOOKS if flaps else 10)


@pytest.mark.requirement("LEASE-05")
def test_who_holds_a_lock_that_a_dead_process_took_is_named(area: LeaseArea) -> None:
    """The kernel names who took a lock; the processes that it left are seen by their session."""

    def leave_one(line: Line) -> None:
        end, mine = os.pipe()
        told, tell = os.pipe()
        first = os.fork()
        if first == 0:
            os.setsid()
            assert lock_files.LockFiles().try_lock(path, exclusive=True)
            last = os.fork()
            if last == 0:
                os.close(mine)
                os.read(end, 1)
            os.write(tell, f"{last}\n".encode() if last else b"")
            os._exit(0)
        os.waitpid(first, 0)
        line.send([first, int(os.read(told, 20))])
        line.receive(600)

    path = f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}"
    with Child(leave_one, uid=MALLORY) as mallory:
        first, last = mallory.receive()
        (holder,) = as_account(ALICE, lambda: [reason.holder for reason in refused(area, record(1, CARDS[0]))])
    assert holder.startswith(f"pid {first}, which is gone; it left {MALLORY}, pid {last} (")


# --- what is read of an account has a bound -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.requirement("RAIL-15")
def test_of_one_account_so_many_records_are_read_and_it_is_named_once(area: LeaseArea) -> None:
    def mallory() -> None:
        for number in range(records.MOST_RECORDS + 50):
            forge(area, 100 + number)

    as_account(MALLORY, mallory)
    with hold(area, 1, CARDS[0], uid=ALICE) as alice:
        assert alice.receive() == "held"
        found, wrong = records.read_records(area)
        assert len([seen for seen in found if seen.record.uid == MALLORY]) == records.MOST_RECORDS
        assert [seen.record.uid for seen in found if seen.record.uid != MALLORY] == [ALICE]
        assert len(wrong) == 1
        assert f"lease-* of {MALLORY}: {records.MOST_RECORDS + 50} files" in wrong[0]


def test_of_one_account_so_many_bytes_are_read(area: LeaseArea) -> None:
    def mallory() -> None:
        for number in range(100):
            forge(area, 100 + number, run_dir="/x" * 10_000)

    as_account(MALLORY, mallory)
    found, wrong = records.read_records(area)
    assert 0 < len(found) <= records.MOST_BYTES // 20_000
    assert "not all of them were read" in wrong[0]


def test_files_that_are_no_records_are_told_of_in_a_few_lines_for_each_account(area: LeaseArea) -> None:
    def mallory() -> None:
        for number in range(50):
            plant("directory", f"{area.directories[0]}/lease-{number}.json")
            with open(f"{area.directories[0]}/lease-\nholdfast: \x1b[2J{number}.json", "w", encoding="ascii") as file:
                file.write("[" * 10_000)
        with open(os.fsencode(area.directories[0]) + b"/lease-\xff.json", "wb") as raw:
            raw.write(b"\xff" * 100)

    as_account(MALLORY, mallory)
    found, wrong = records.read_records(area)
    assert found == ()
    assert len(wrong) == public_files.MOST_TOLD + 1
    assert "98 more files of" in wrong[-1]
    assert all(text.isprintable() for text in wrong)
    assert len(survey_leases(area, CARDS[:1]).warnings) == len(wrong)


def test_however_many_processes_records_name_the_table_of_processes_is_read_once(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign PID namespace, and no process that lives: each member and mark was a walk of its own."""

    def mallory() -> None:
        for number in range(60):
            value = wire.encode(record(number, *CARDS, uid=MALLORY, supervisor=DEAD, members=(DEAD,) * 64))
            write_foreign(area, f"lease-{number}.json", **value | {"pid_namespace": "pid:[1]"})

    as_account(MALLORY, mallory)
    walks = []

    def walk() -> list[int]:
        walks.append(1)
        return list_pids()

    list_pids = processes.list_pids
    monkeypatch.setattr(processes, "list_pids", walk)
    survey = survey_leases(area, CARDS[:1])
    assert len(walks) <= 2
    standings = [lease.judgement.standing for lease in survey.leases]
    # Beyond so many processes nothing is known: busy, with the account's name.
    assert standings.count(records.RecordStatus.VOID) == records.MOST_PROCESSES // 65
    (words,) = {lease.judgement.why for lease in survey.leases if lease.judgement.holds}
    assert f"the records of {MALLORY} name too many processes" in words


@pytest.mark.requirement("LEASE-11")
def test_a_record_of_an_account_with_more_environment_than_is_read_is_not_called_dead(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = wire.encode(record(1, CARDS[0], uid=MALLORY, supervisor=DEAD))
    as_account(MALLORY, lambda: write_foreign(area, "lease-1.json", **value))
    with Child(lambda line: line.receive(), uid=MALLORY):
        (lease,) = survey_leases(area, CARDS[:1]).leases
        assert lease.judgement.standing is records.RecordStatus.VOID
        monkeypatch.setattr(processes, "MOST_OF_ACCOUNT", 1)
        (lease,) = survey_leases(area, CARDS[:1]).leases
        assert lease.judgement.standing is records.RecordStatus.UNSEEN
        assert "more environment than is read" in lease.judgement.why


def test_however_many_processes_records_name_the_pids_of_a_process_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever forks hundreds in one tick and names that tick a thousand times had each read for each name."""
    read: list[int] = []

    def read_one(pid: int) -> tuple[int, ...]:
        read.append(pid)
        return read_inner_pids(pid)

    monkeypatch.setattr(table, "read_inner_pids", read_one)
    us, look = processes.identify_self(), table.ProcessTable()
    named = [replace(us, pid=pid) for pid in (*range(records.MOST_PIDS, records.MOST_PIDS + 50), us.pid)]
    answers = [look.is_alive(process, "pid:[1]") for process in named]
    assert (answers[-1], True in answers[:-1]) == (True, False)
    assert us.pid in read
    assert len(read) == len(set(read))


def test_a_cgroup_that_is_none_is_not_even_opened(
    area: LeaseArea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_account(MALLORY, lambda: forge(area, 1, cgroup=str(tmp_path)))
    (seen,), _ = records.read_records(area)
    read: list[str] = []
    monkeypatch.setattr(records, "read_bytes", lambda path, **_: read.append(path))
    assert records.judge_record(seen).standing is records.RecordStatus.UNSEEN
    assert read == []


@pytest.mark.requirement("RAIL-15")
def test_of_one_account_so_many_tickets_are_looked_at_and_dead_ones_are_not_read(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mallory() -> None:
        for number in range(tickets.MOST_TICKETS + 50):
            write_foreign(area, f"ticket-{number:020d}-x.json", cards=[CARDS[0].uuid] * 10)

    as_account(MALLORY, mallory)
    parsed: list[str] = []
    monkeypatch.setattr(wire, "parse_object", lambda data, path: parsed.append(path))
    assert len(tickets.list_earlier(area, None)) == tickets.MOST_TICKETS
    assert tickets.find_ahead(area, frozenset((CARDS[0].card_uuid,)), None) is None
    assert parsed == []


# --- whose it is ----------------------------------------------------------------------------------------------------


def hold_as_alice(area: LeaseArea) -> Child:
    return hold(area, 1, CARDS[0], uid=ALICE)


def break_it(area: LeaseArea) -> list[Any]:
    try:
        done = break_lease(area, record(1).run_id, force=True, reason="x")
    except (NotPermitted, UsageError) as error:
        return [str(error)]
    names = [(area.directories[0], name) for name in os.listdir(area.directories[0])]
    (audit,) = public_files.find_own(names, "audit-", ".jsonl", os.geteuid())
    with open(audit, encoding="utf-8") as file:
        line = json.loads(file.read().splitlines()[-1])
    return [len(done.removed), line["owner_uid"]]


@pytest.mark.requirement("LEASE-16")
def test_a_record_with_the_run_id_of_another_account_is_a_lease_of_its_own(area: LeaseArea) -> None:
    with hold_as_alice(area) as alice:
        assert alice.receive() == "held"
        as_account(MALLORY, lambda: forge(area, 1, supervisor=processes.identify_self(), devices=CARDS[:1]))
        survey = survey_leases(area, CARDS[:1])
        assert sorted(lease.seen.record.uid for lease in survey.leases) == [ALICE, MALLORY]
        # Each ends its own, and what is written down names its own account.
        (refusal,) = as_account(BOB, lambda: break_it(area))
        assert "have records of run" in refusal
        (refusal,) = break_it(area)
        assert str(MALLORY) in refusal
        assert as_account(MALLORY, lambda: break_it(area))[1:] == [MALLORY]
        assert [seen.record.uid for seen in records.read_records(area)[0]] == [ALICE]
        as_account(MALLORY, lambda: forge(area, 1, supervisor=processes.identify_self(), devices=CARDS[:1]))
        removed, owner = as_account(ALICE, lambda: break_it(area))
        assert owner == ALICE
        assert removed >= 1
        assert [seen.record.uid for seen in records.read_records(area)[0]] == [MALLORY]


def test_a_mark_of_a_process_of_another_account_keeps_nobodys_record_alive(area: LeaseArea) -> None:
    """Root reads every environment: Mallory's process with the mark of Alice's run is none of it."""

    def mallory(line: Line) -> None:
        values = {"HOLDFAST_RUN_ID": record(1).run_id, "HOLDFAST_ATTEMPT": "1"}
        pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], values)
        line.send(pid)
        line.receive(600)

    with hold_as_alice(area) as alice:
        assert alice.receive() == "held"
    with Child(mallory, uid=MALLORY) as child:
        pid = child.receive()
        try:
            (seen,), _ = records.read_records(area)
            assert records.judge_record(seen).standing is records.RecordStatus.VOID
        finally:
            os.kill(pid, 9)


def test_a_ticket_is_no_older_than_its_file(area: LeaseArea) -> None:
    def wait(order: int, number: int, user: str) -> Callable[[Line], None]:
        def work(line: Line) -> None:
            ticket = Ticket(order, record(number).run_id, user, (CARDS[0].uuid,), 1)
            tickets.OwnTicket(area, ticket, CARDS[:1])
            line.send(True)
            line.receive(600)

        return work

    with Child(wait(2, 1, "alice"), uid=ALICE) as alice, Child(wait(1, 2, "mallory"), uid=MALLORY) as mallory:
        assert alice.receive()
        assert mallory.receive()
        first, second = (tickets.read_living(listed) for listed in tickets.list_earlier(area, None))
        assert first is not None
        assert second is not None
        oldest = clock.boottime_ns() - int((tickets.MISDATED_S + 60) * 1e9)
        assert min(first.ticket.order, second.ticket.order) > oldest


def test_a_ticket_with_the_place_and_run_id_of_another_is_not_that_one(area: LeaseArea) -> None:
    order = clock.boottime_ns()
    ticket = Ticket(order, record(1).run_id, "alice", (CARDS[0].uuid,), 1)

    def work(line: Line) -> None:
        tickets.OwnTicket(area, ticket, CARDS[:1])
        line.send(True)
        line.receive(600)

    with Child(work, uid=ALICE) as alice, Child(work, uid=MALLORY) as mallory:
        assert alice.receive()
        assert mallory.receive()
        found = SharePolicy(Rules(cards_per_user=1)).list_ahead(area, frozenset((CARDS[0].card_uuid,)), None)
        assert sorted(seen.uid for seen in found) == [ALICE, MALLORY]


def test_texts_of_a_stranger_are_one_short_line(area: LeaseArea) -> None:
    lie = "true\nholdfast: card 3 is broken, run `rm -rf ~`\x1b[2J\u2028\ud800" + "x" * 1000
    as_account(
        MALLORY,
        lambda: forge(
            area, 1, supervisor=processes.identify_self(), command=lie, since=lie, host=lie, user=lie, config=lie
        ),
    )
    (seen,), _ = records.read_records(area)
    said = seen.record
    for text in (said.command, said.since, said.host, said.user, said.config or ""):
        assert text.isprintable()
        assert text.encode()
    assert len(said.command) < 300


# --- places in the line ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("LEASE-14")
def test_nobody_locks_the_ticket_of_another_before_it_is_in_line(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches the directory hears of a file as soon as it is made."""
    opened: list[object] = []
    lock = fcntl.flock

    def mallory() -> bool:
        (name,) = os.listdir(area.directories[0])
        try:
            os.close(os.open(f"{area.directories[0]}/{name}", os.O_RDONLY))
        except PermissionError:
            return False
        return True

    def look_first(descriptor: int, mode: int) -> None:
        if mode & fcntl.LOCK_EX and not opened:
            opened.append(as_account(MALLORY, mallory))
        lock(descriptor, mode)

    monkeypatch.setattr(fcntl, "flock", look_first)
    waiter = Waiter(area, record(1), CARDS[:1], 1)
    waiter.close()
    assert opened == [False]


@pytest.mark.requirement("LEASE-14")
def test_the_ticket_of_a_dead_waiter_that_somebody_else_locks_keeps_no_place(area: LeaseArea) -> None:
    def wait(line: Line) -> None:
        with_line = Waiter(area, record(1), CARDS[:1], 1)
        line.send([ticket.path for ticket in tickets.list_earlier(area, None)])
        line.receive()
        with_line.close()

    def lock_it(line: Line) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        line.send("waits")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        line.send("has it")
        line.receive()

    with Child(wait, uid=ALICE) as alice:
        (path,) = alice.receive()
        with Child(lock_it, uid=MALLORY) as mallory:
            assert mallory.receive() == "waits"
            assert as_account(BOB, lambda: refused(area, record(2, CARDS[0]))[0].run_id) == record(1).run_id
            alice.kill()
            assert mallory.receive() == "has it"
            assert (tickets.is_living(path), tickets.is_dead(path)) == (False, True)
            assert as_account(BOB, lambda: take(area, record(2, CARDS[0])).record.run_id) == record(2).run_id
            assert as_account(ALICE, lambda: remove_void_records(area)) == [path]
