"""What a hostile account puts beside, into and around the lease area to end, hide or slow what others do."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.core.rules.rules import Rules
from holdfast.host import clock
from holdfast.host.files import fallback
from holdfast.host.files.files import read_beginning
from holdfast.host.lease import area as lease_area
from holdfast.host.lease import (
    force_release,
    holders,
    leases,
    lock_files,
    records,
    reservations,
    sharers,
    tickets,
    usage,
)
from holdfast.host.lease.area import LeaseArea
from holdfast.host.lease.line import SLOW_POLL_S, Waiter
from holdfast.host.lease.survey import survey_leases
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import NotPermitted
from holdfast.model.identity import ProcessId
from holdfast.model.record import replace
from tests.host.lease_support import CARDS, Child, Line, record, refused, take
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other accounts"),
]

ALICE, MALLORY = 61_001, 61_666
LOCK, GATE = lock_files.lock_name(CARDS[0].uuid), lock_files.gate_name(CARDS[0].uuid)
DEAD = ProcessId(999_999, 1, clock.boot_id())
ENDLESS = "2026-11-22T08:00:00.5e400Z"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in which everybody may make something, with root's lease area in it."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    path.chmod(0o1777)
    (path / "area").mkdir()
    (path / "area").chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def area(place: Path) -> LeaseArea:
    return lease_area.open_area(str(place / "area"), environ={}, hand_written=str(place / "gpu_locks"))


def as_account(uid: int, work: Callable[[], Any]) -> Any:
    """What `work` answers, done by a process of that account."""
    with Child(lambda line: line.send({"said": work()}), uid=uid) as child:
        return child.receive()["said"]


def as_mallory(work: Callable[[], object]) -> None:
    as_account(MALLORY, lambda: bool(work()))


def forge(area: LeaseArea, number: int, uid: int = MALLORY, **changes: Any) -> str:
    """A record of an account's own, whose run is gone unless `changes` say otherwise."""
    value = wire.encode(record(number, *CARDS, **{"uid": uid, "user": "m", "supervisor": DEAD, **changes}))
    path = f"{area.directories[0]}/lease-{number:05d}-{uid}.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"schema": 1, "pid_namespace": "", **value}, file)
    os.chown(path, uid, uid)
    return path


def make_second(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)


def open_both(place: Path) -> LeaseArea:
    candidates = (str(place / "area"), str(place / "second"))
    return lease_area.open_area(environ={}, candidates=candidates, hand_written=str(place / "gpu_locks"))


def test_a_closed_directory_beside_that_of_the_administrator_stops_nobody(place: Path) -> None:
    as_mallory(lambda: make_second(place / "second", 0o700))
    area = as_account(ALICE, lambda: wire.encode(open_both(place)))
    assert area["directories"] == [str(place / "area")]
    assert f"second of {MALLORY} exists, and" in area["warnings"][0]


@pytest.mark.parametrize(
    "act", [lambda path: os.rename(path, f"{path}.gone"), lambda path: os.chmod(path, 0)], ids=["removed", "closed"]
)
def test_who_closes_a_second_directory_ends_no_wait(place: Path, act: Callable[[str], None]) -> None:
    second = place / "second"
    as_mallory(lambda: make_second(second, 0o1777))

    def wait(line: Line) -> None:
        area = open_both(place)
        waiter = Waiter(area, record(1), CARDS[:1], 1)
        line.send(len(area.directories))
        line.receive()
        assert waiter.ready()
        outcome = waiter.acquire(record(1, CARDS[0]))
        assert isinstance(outcome, leases.HeldLease), outcome
        line.send(outcome.area.directories)

    with Child(wait, uid=ALICE) as child:
        assert child.receive() == 2
        as_mallory(lambda: act(str(second)))
        child.send()
        assert child.receive() == [str(place / "area")]


@pytest.mark.parametrize(
    "act", [lambda path: os.rename(path, f"{path}.gone"), lambda path: os.chmod(path, 0)], ids=["removed", "closed"]
)
@pytest.mark.parametrize("at", ["find_ahead", "plan_locks", "write_record"])
def test_who_closes_a_second_directory_while_a_lease_is_taken_stops_nobody(
    place: Path, act: Callable[[str], None], at: str
) -> None:
    second = place / "second"
    as_mallory(lambda: make_second(second, 0o1777))

    def new(line: Line) -> None:
        module = {"find_ahead": tickets, "plan_locks": leases, "write_record": records}[at]
        original = getattr(module, at)

        def wait_for_mallory(*values: Any, **named: Any) -> Any:
            setattr(module, at, original)
            line.send("now")
            line.receive()
            return original(*values, **named)

        setattr(module, at, wait_for_mallory)
        line.send(take(open_both(place), record(1, CARDS[0])).area.directories)

    with Child(new, uid=ALICE) as alice:
        assert alice.receive() == "now"
        as_mallory(lambda: act(str(second)))
        alice.send()
        assert alice.receive() == [str(place / "area")]


@pytest.mark.parametrize(
    "act", [lambda path: os.rename(path, f"{path}.gone"), lambda path: os.chmod(path, 0)], ids=["removed", "closed"]
)
def test_who_closes_a_second_directory_keeps_no_record_from_being_renewed(
    place: Path, act: Callable[[str], None]
) -> None:
    second = place / "second"
    as_mallory(lambda: make_second(second, 0o1777))

    def renew(line: Line) -> None:
        held = take(open_both(place), record(1, CARDS[0]))
        line.send(len(held.area.directories))
        line.receive()
        held.update(replace(held.record, command="renewed"))
        first = [seen.record.command for seen in records.read_records(held.area)[0]]
        held.release()
        line.send([first, [name for name in os.listdir(place / "area") if name.startswith("lease-")]])

    with Child(renew, uid=ALICE) as alice:
        assert alice.receive() == 2
        as_mallory(lambda: act(str(second)))
        alice.send()
        assert alice.receive() == [["renewed"], []]


@pytest.mark.requirement("LEASE-14")
@pytest.mark.parametrize(
    "act", [lambda path: os.rename(path, f"{path}.gone"), lambda path: os.chmod(path, 0)], ids=["removed", "closed"]
)
@pytest.mark.parametrize("at", ["OwnTicket", "find_ahead", "plan_locks"])
def test_who_closes_a_second_directory_while_somebody_looks_ends_no_wait(
    place: Path, act: Callable[[str], None], at: str
) -> None:
    second = place / "second"
    as_mallory(lambda: make_second(second, 0o1777))

    def wait(line: Line) -> None:
        module = lock_files if at == "plan_locks" else tickets
        original = getattr(module, at)

        def wait_for_mallory(*values: Any, **named: Any) -> Any:
            setattr(module, at, original)
            line.send("now")
            line.receive()
            return original(*values, **named)

        setattr(module, at, wait_for_mallory)
        waiter = Waiter(open_both(place), record(1), CARDS[:1], 1)
        waiter.ready()
        assert waiter.ready()
        outcome = waiter.acquire(record(1, CARDS[0]))
        assert isinstance(outcome, leases.HeldLease), outcome
        line.send(outcome.area.directories)

    with Child(wait, uid=ALICE) as alice:
        assert alice.receive() == "now"
        as_mallory(lambda: act(str(second)))
        alice.send()
        assert alice.receive() == [str(place / "area")]


@pytest.mark.requirement("LEASE-14")
@pytest.mark.parametrize("planted", [True, False], ids=["planted", "closed"])
def test_where_no_directory_is_the_administrators_a_second_one_that_is_closed_ends_no_wait(
    place: Path, planted: bool
) -> None:
    second = place / "second"

    def open_them() -> LeaseArea:
        candidates = (str(place / "none"), str(place / "area"), str(second))
        return lease_area.open_area(environ={}, candidates=candidates, hand_written=str(place / "gpu_locks"))

    def wait(line: Line) -> None:
        waiter = Waiter(open_them(), record(1), CARDS[:1], 1)

        def has_it() -> bool:
            return waiter.ready() and isinstance(waiter.acquire(record(1, CARDS[0])), leases.HeldLease)

        line.send("in line")
        line.receive()
        line.send([has_it(), waiter.next_retry_s, [busy.holder for busy in waiter.blocked_by()]])
        with pytest.raises(NotPermitted) as caught:
            open_them()
        line.send(str(caught.value))
        line.receive()
        line.send(has_it())

    if not planted:
        as_mallory(lambda: make_second(second, 0o1777))
    with Child(wait, uid=ALICE) as alice:
        assert alice.receive() == "in line"
        as_mallory(lambda: make_second(second, 0o700) if planted else os.chmod(second, 0))
        alice.send()
        words = f"the lease directory {second} of {MALLORY} exists, and {ALICE} cannot write in it"
        assert alice.receive() == [False, SLOW_POLL_S, [f"nobody ({words})"]]
        assert alice.receive() == words
        as_mallory(lambda: os.rename(second, place / "gone"))
        alice.send()
        assert alice.receive() is True


@pytest.mark.parametrize(("name", "share"), [(LOCK, False), (GATE, True)], ids=["lock", "gate"])
def test_a_file_that_its_owner_keeps_from_being_opened_is_a_busy_card_and_its_owner_is_named(
    area: LeaseArea, name: str, share: bool
) -> None:
    path = f"{area.directories[0]}/{name}"

    def keep(line: Line) -> None:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        line.send("kept")
        line.receive(600)

    with Child(keep, uid=MALLORY) as mallory:
        assert mallory.receive() == "kept"
        if name == LOCK:
            (busy,) = survey_leases(area, CARDS[:1]).busy[CARDS[0].uuid]
            assert f"pid {mallory.pid}" in busy.holder
        (busy,) = refused(area, record(1, CARDS[0], share=share))
        assert busy.holder == f"{MALLORY} ({path} is kept from being opened, by F_SETLEASE)"
        take(area, record(2, CARDS[1], share=share)).release()


def test_a_lock_file_that_is_replaced_again_and_again_is_a_busy_card(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{area.directories[0]}/{LOCK}"
    as_mallory(lambda: Path(path).touch())
    monkeypatch.setattr(lock_files.LockFiles, "_is_current", lambda _self, seen, _descriptor: seen != path)
    (busy,) = refused(area, record(1, CARDS[0]))
    assert busy.holder == f"{MALLORY} ({path} is replaced again and again)"


@pytest.mark.requirement("LEASE-03")
@pytest.mark.parametrize("share", [False, True], ids=["lock", "gate"])
def test_a_lock_file_that_is_replaced_while_a_lease_is_decided_gives_the_card_to_one(
    area: LeaseArea, share: bool
) -> None:
    """Mallory was there first, so the file is hers, and she may put another one in its place."""
    name = lock_files.gate_name(CARDS[0].card_uuid) if share else lock_files.lock_name(CARDS[0].card_uuid)
    path = f"{area.directories[0]}/{name}"

    def mallory() -> None:
        new = lock_files.open_lock_file(f"{path}.new")
        os.close(new)
        os.rename(f"{path}.new", path)

    def alice(line: Line) -> None:
        original = records.write_record

        def wait_for_bob(*values: Any) -> Any:
            line.send("locked")
            line.receive()
            return original(*values)

        leases.records.write_record = wait_for_bob  # type: ignore[attr-defined]
        outcome = leases.acquire_lease(area, record(1, CARDS[0], share=share))
        line.send([busy.holder for busy in outcome] if isinstance(outcome, tuple) else "held")

    as_mallory(mallory)
    with Child(alice, uid=ALICE) as child:
        assert child.receive() == "locked"
        as_mallory(mallory)
        held = take(area, record(2, CARDS[0], share=share))
        child.send()
        assert child.receive() == [f"{MALLORY} ({path} was replaced while it was locked)"]
        held.release()


def test_a_lease_is_taken_over_though_its_lock_file_was_closed(area: LeaseArea) -> None:
    path = f"{area.directories[0]}/{LOCK}"
    as_mallory(lambda: Path(path).touch())

    def adopt(line: Line) -> None:
        held = leases.acquire_lease(area, record(1, CARDS[0]))
        assert isinstance(held, leases.HeldLease)
        line.send("held")
        line.receive()
        line.send(leases.adopt_lease(area, record(1, CARDS[0], command="after"), ()).record.command)
        line.receive()

    with Child(adopt, uid=ALICE) as alice:
        assert alice.receive() == "held"
        as_mallory(lambda: os.chmod(path, 0))
        alice.send()
        assert alice.receive() == "after"
        assert [seen.record.command for seen in records.read_records(area)[0]] == ["after"]


def test_a_list_of_locks_that_somebody_made_long_is_not_read_whole_and_it_is_said_who_did(area: LeaseArea) -> None:
    """The kernel walks it from its beginning for every page: 400,000 locks kept `holdfast gpus` for minutes."""

    def flood(line: Line) -> None:
        for number in range(60):
            descriptor = os.open(f"{area.directories[0]}/flood-{number}", os.O_RDWR | os.O_CREAT, 0o644)
            for at in range(500):
                fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 2 * at)
        line.send("done")
        line.receive(600)

    with Child(flood, uid=MALLORY) as mallory:
        assert mallory.receive() == "done"
        assert len(read_beginning("/proc/locks", holders.MOST_BYTES)) < holders.MOST_BYTES + (1 << 17)
        warnings = survey_leases(area, CARDS[:1]).warnings
        assert any("/proc/locks is too long" in text and f"pid {mallory.pid}" in text for text in warnings)


@pytest.mark.parametrize("field", ["since", "until"])
def test_a_time_that_never_ends_is_no_time(area: LeaseArea, field: str) -> None:
    changes: dict[str, Any] = {field: ENDLESS}
    forge(area, 1, supervisor=processes.identify_self(), **changes)
    forge(area, 2, **changes)
    now_s = time.time()
    assert CARDS[0].card_uuid in as_account(ALICE, lambda: reservations.find_taken(area, (), (now_s, now_s + 60.0)))
    assert len(force_release.remove_void_records(area)) == 1


@pytest.mark.parametrize(
    "value",
    [{"id": "r\x1b]0;x\x07"}, {"id": "r\udcff"}, {"begin_s": 1e17, "end_s": 1e17 + 60.0, "made_s": 1e17}],
    ids=["escape", "surrogate", "late"],
)
def test_a_reservation_that_could_not_be_shown_does_not_count(area: LeaseArea, value: dict[str, Any]) -> None:
    now_s = time.time()
    content = {
        "id": "r0", "uid": MALLORY, "user": "m", "cards": [CARDS[0].card_uuid],
        "begin_s": now_s, "end_s": now_s + 60.0, "made_s": now_s, **value,
    }  # fmt: skip
    path = f"{area.directories[0]}/reservation-{content['id']}.json"
    with open(path, "w", encoding="ascii") as file:
        json.dump({"schema": 1, **content}, file)
    os.chown(path, MALLORY, MALLORY)
    found, (told,) = reservations.list_reservations(area, Rules())
    assert found == ()
    assert told.encode("utf-8").decode().isprintable()
    assert told.endswith("not trusted")


def test_the_owner_of_a_closed_directory_of_lock_files_is_named(area: LeaseArea) -> None:
    as_mallory(lambda: os.mkdir(area.hand_written, 0o700))
    (words,) = as_account(ALICE, lambda: [item.holder for item in refused(area, record(1, CARDS[0]))])
    assert f"{area.hand_written} belongs to {MALLORY}" in words


@pytest.mark.parametrize(
    ("changed_s", "shown"), [(10**17, "9999-12-31T23:59:59.999Z"), (-(10**17), "1000-01-01T00:00:00.000Z")]
)
def test_a_hand_written_lock_file_of_no_time_is_a_busy_card(area: LeaseArea, changed_s: int, shown: str) -> None:
    """A file system in memory takes any number of seconds, and no year is so late."""
    os.mkdir(area.hand_written, 0o755)
    path = f"{area.hand_written}/gpu_0.lock"
    Path(path).write_text("mine")
    os.utime(path, (changed_s, changed_s))
    (busy,) = refused(area, record(1, CARDS[0]))
    assert (busy.holder, busy.since) == (f"{path} of root: mine", shown)
    assert survey_leases(area, CARDS[:1]).busy[CARDS[0].uuid] == (busy,)
    take(area, record(2, CARDS[1])).release()


def test_sweeping_a_record_makes_no_lock_files(area: LeaseArea) -> None:
    """Root's would stay, any number of them, for cards that no box has."""
    path = forge(area, 1)
    assert force_release.remove_void_records(area) == (path,)
    assert not [name for name in os.listdir(area.directories[0]) if name.endswith(".lock")]


def test_lock_files_for_cards_that_no_box_has_are_not_opened(area: LeaseArea) -> None:
    os.mkdir(area.hand_written)
    for number in (7, 5000):
        Path(area.hand_written, f"gpu_{number}.lock").write_text("holdfast 20261120-104501-test-0001\n")
    assert force_release.remove_void_records(area) == (f"{area.hand_written}/gpu_7.lock",)


def test_a_line_of_a_ledger_with_a_million_cards_is_none(area: LeaseArea) -> None:
    path = Path(area.directories[0], f"{usage.ledger_stem(MALLORY, time.time())}.0.jsonl")
    now = clock.utc_now()
    line = {"run": "x", "attempt": 1, "uid": MALLORY, "from": now, "to": now, "gpu_seconds": 1, "cards": ["a"]}
    many = {**line, "run": "y", "cards": ["a"] * 100_000}
    path.write_text(f"{json.dumps(line)}\n{json.dumps(many)}\n")
    os.chown(path, MALLORY, MALLORY)
    found, wrong = usage.UsageLedgers().read(area, since_s=time.time() - 3600.0)
    assert ([use.run_id for use in found], wrong) == (["x"], ())


@pytest.fixture
def lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Mallory may use 1000 uids in user namespaces, as many boxes have it."""
    (tmp_path / "subuid").write_text(f"{MALLORY}:1000000:1000\nnobody-knows:5\nroot:x:y\n")
    monkeypatch.setattr(processes, "SUBUID", str(tmp_path / "subuid"))
    processes._read_lent_uids.cache_clear()
    yield
    processes._read_lent_uids.cache_clear()


@pytest.mark.usefixtures("lent")
def test_the_uids_that_an_account_was_lent_have_one_bound_together(area: LeaseArea) -> None:
    for number in range(records.MOST_RECORDS + 50):
        forge(area, number, uid=1_000_000 + number)
    forge(area, 60_000, uid=ALICE)
    found, (told,) = records.read_records(area)
    assert len(found) == records.MOST_RECORDS + 1
    assert ALICE in {seen.record.uid for seen in found}
    assert f"{records.MOST_RECORDS + 50} files" in told


@pytest.mark.usefixtures("lent")
def test_the_uids_that_an_account_was_lent_have_one_bound_of_processes_together(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_PROCESSES", 3)
    for number in range(5):
        forge(area, number, uid=1_000_000 + number)
    judge = records.Judge()
    standing = [judge.judge(seen).standing for seen in records.read_records(area)[0]]
    assert standing == [records.RecordStatus.VOID] * 3 + [records.RecordStatus.UNSEEN] * 2


def test_a_sharing_run_has_no_processes_of_other_accounts(area: LeaseArea) -> None:
    def sleep(line: Line) -> None:
        line.receive(600)

    with Child(sleep, uid=ALICE) as alice, Child(sleep, uid=MALLORY) as own:
        pids = [alice.pid, own.pid]
        wait_until(lambda: [os.stat(f"/proc/{pid}").st_uid for pid in pids] == [ALICE, MALLORY])
        forge(area, 1, share=True, supervisor=processes.identify_self(), members=tuple(map(processes.identify, pids)))
        found = sharers.read_sharing(area, frozenset({CARDS[0].card_uuid}))
        assert set(sharers.find_owners(found, pids)) == {own.pid}


@pytest.mark.slow
def test_a_planted_name_in_memory_costs_nobody_the_place_for_records(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_mallory(lambda: os.mkdir(place / f"holdfast-{ALICE}"))
    as_mallory(lambda: os.mkdir(place / f"holdfast-{ALICE}.0000000000000000"))
    monkeypatch.setattr(fallback, "ROOTS", (str(place),))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    (place / "state").mkdir(mode=0o700)
    os.chown(place / "state", ALICE, ALICE)
    first = as_account(ALICE, fallback.private_directory)
    assert first is not None
    assert (os.stat(first).st_uid, os.stat(first).st_mode & 0o777) == (ALICE, 0o700)
    assert as_account(ALICE, fallback.private_directory) == first


def test_a_command_without_end_is_read_to_a_bound() -> None:
    """Any process can name gigabytes of its memory as its arguments."""
    long = ["sleep", "600", *["0" * 100_000] * 8]
    pid = os.spawnv(os.P_NOWAIT, "/bin/sleep", long)
    try:
        wait_until(lambda: (processes.read_command(pid) or "").startswith("sleep 600"), what="the program runs")
        assert len(processes.read_command(pid) or "") <= 1 << 16
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_of_the_descriptors_of_another_account_so_many_are_looked_at(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].card_uuid)}"

    def hold_it(line: Line) -> None:
        for _ in range(100):
            os.open(path, os.O_RDONLY)
        fcntl.flock(lock_files.open_lock_file(path), fcntl.LOCK_EX)
        line.send("held")
        line.receive()

    os.close(lock_files.open_lock_file(path))
    with Child(hold_it, uid=MALLORY) as child:
        assert child.receive() == "held"
        assert holders.find_holders([path]) == (child.pid,)
        monkeypatch.setattr(holders, "MOST_DESCRIPTORS", 50)
        assert holders.find_holders([path]) == ()
        assert refused(area, record(1, CARDS[0]))[0].pids == (child.pid,), "the kernel names who took it"


def test_a_ledger_with_a_new_name_for_each_look_is_kept_once(area: LeaseArea) -> None:
    ledgers, stem = usage.UsageLedgers(), f"{area.directories[0]}/{usage.ledger_stem(MALLORY, time.time())}"
    Path(f"{stem}.0.jsonl").write_text("{}\n")
    for number in range(3):
        os.chown(f"{stem}.{number}.jsonl", MALLORY, MALLORY)
        ledgers.read(area, since_s=time.time() - 3600.0, uids=frozenset({MALLORY}))
        os.rename(f"{stem}.{number}.jsonl", f"{stem}.{number + 1}.jsonl")
    assert list(ledgers._read) == [f"{stem}.2.jsonl"]


def test_an_old_ledger_in_the_name_of_another_is_not_removed(area: LeaseArea) -> None:
    """Root clears up for Alice; what Mallory called a ledger of hers is Mallory's."""
    old = Path(area.directories[0], f"{usage.PREFIX}{ALICE}.202001.0.jsonl")
    old.write_text("")
    os.chown(old, MALLORY, MALLORY)
    assert usage.record_use(area, record(1, CARDS[0], uid=ALICE))
    assert old.exists()
