"""Several accounts and several namespaces on one box."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.lease import leases, lock_files, records
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.line import Waiter
from holdfast.host.lease.survey import survey_leases
from holdfast.host.process import libc, processes
from holdfast.host.process.table import own_pid_namespace
from holdfast.model.errors import StorageError
from holdfast.model.lease import Witness
from tests.host.lease_support import CARDS, NOBODY, Child, Line, hold, record, refused, take
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other accounts and to make namespaces"),
]


@pytest.fixture
def area() -> Iterator[LeaseArea]:
    """As on a real box: open to all, and not under /tmp."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    path.chmod(0o755)
    yield open_area(str(path / "area"), environ={}, hand_written=str(path / "gpu_locks"))
    shutil.rmtree(path)


@pytest.mark.requirement("LEASE-06", "B-09")
def test_LEASE_06_another_account_leases_another_card_and_cannot_touch_ours(area: LeaseArea) -> None:
    held = take(area, record(1, CARDS[0]))
    directory = area.directories[0]

    def work(line: Line) -> None:
        (busy,) = refused(area, record(2, CARDS[0]))
        line.send([busy.run_id, busy.holder])
        damaged = []
        for name in sorted(os.listdir(directory)):
            path = f"{directory}/{name}"
            for attack in (os.unlink, lambda path: os.rename(path, path + "x"), lambda path: os.truncate(path, 0)):
                try:
                    attack(path)
                except PermissionError:
                    continue
                damaged.append(name)
        line.send(damaged)
        mine = take(area, record(2, CARDS[1]))
        line.send("held")
        line.receive(600)
        mine.release()
        # The lock file was made by root.
        take(area, record(2, CARDS[2])).release()
        line.send("done")

    take(area, record(3, CARDS[2])).release()
    with Child(work, uid=NOBODY) as nobody:
        run_id, holder = nobody.receive()
        assert run_id == held.record.run_id
        assert "root" in holder
        assert nobody.receive() == []
        assert nobody.receive() == "held"
        (busy,) = refused(area, record(3, CARDS[1]))
        assert processes.user_name(NOBODY) in busy.holder
        nobody.send()
        assert nobody.receive() == "done"
    held.release()
    # And the other way: we lock the file that the other account made.
    take(area, record(3, CARDS[1])).release()


@pytest.mark.requirement("LEASE-06", "B-09")
def test_LEASE_06_a_record_forged_in_another_name_is_not_trusted(area: LeaseArea) -> None:
    def forge(line: Line) -> None:
        parent = processes.identify(os.getppid())
        assert parent is not None
        records.write_record(area, record(1, CARDS[0], uid=0, user="root", supervisor=parent))
        line.send("forged")

    with Child(forge, uid=NOBODY) as nobody:
        assert nobody.receive() == "forged"
    found, wrong = records.read_records(area)
    assert found == ()
    assert "not trusted" in wrong[0]
    take(area, record(2, CARDS[0])).release()
    assert any("not trusted" in warning for warning in survey_leases(area, CARDS[:1]).warnings)


@pytest.mark.requirement("LEASE-02")
def test_LEASE_02_a_void_record_that_we_may_not_remove_is_ignored(area: LeaseArea) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"

    def work(line: Line) -> None:
        take(area, record(2, CARDS[0])).release()
        line.send(sorted(os.listdir(area.directories[0])))

    with Child(work, uid=NOBODY) as nobody:
        assert any(name.startswith(f"lease-{record(1).run_id}.1.") for name in nobody.receive())


@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_the_line_is_one_for_all_accounts(area: LeaseArea) -> None:
    def work(line: Line) -> None:
        waiter = Waiter(area, record(1, CARDS[0]), (CARDS[0],), 1)
        line.send(waiter.ready())
        line.receive(600)

    with Child(work, uid=NOBODY) as nobody:
        assert nobody.receive() is True
        (busy,) = refused(area, record(2, CARDS[0]))
        assert busy.witness is Witness.QUEUE
        assert processes.user_name(NOBODY) in busy.holder


@pytest.mark.requirement("LEASE-06", "B-10")
def test_LEASE_06_a_private_tmp_hides_no_lease(area: LeaseArea) -> None:
    held = take(area, record(1, CARDS[0]))

    def work(line: Line) -> None:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("fresh", "/tmp", kind="tmpfs")
        (busy,) = refused(area, record(2, CARDS[0]))
        line.send([os.listdir("/tmp"), busy.run_id, survey_leases(area, CARDS[:1]).busy[CARDS[0].uuid][0].run_id])

    with Child(work) as private:
        assert private.receive() == [[], held.record.run_id, held.record.run_id]
    held.release()


def test_a_full_area_is_an_error_for_people_and_nothing_stays_locked(area: LeaseArea) -> None:
    def work(line: Line) -> None:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        # Room for the directory and one lock file, not for a record.
        libc.mount("full", area.directories[0], kind="tmpfs", options="nr_inodes=2,mode=1777")
        with pytest.raises(StorageError, match="cannot be published") as caught:
            take(area, record(1, CARDS[0]))
        files = lock_files.LockFiles()
        path = f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}"
        line.send([caught.value.hint, os.listdir(area.directories[0]), files.try_lock(path, exclusive=True)])

    with Child(work) as child:
        hint, left, free = child.receive()
    assert "Make room" in hint
    assert left == [lock_files.lock_name(CARDS[0].uuid)]
    assert free


@pytest.mark.requirement("LEASE-14")
def test_a_full_area_does_not_end_a_wait(area: LeaseArea) -> None:
    def work(line: Line) -> None:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        directory = area.directories[0]
        # Room for the directory, a ticket, a lock file, and one more.
        libc.mount("full", directory, kind="tmpfs", options="nr_inodes=4,mode=1777")
        wanted = record(1, CARDS[0])
        waiter = Waiter(area, wanted, (CARDS[0],), 1)
        assert waiter.ready()
        Path(f"{directory}/mallory's").touch()
        outcome = waiter.acquire(wanted)
        assert isinstance(outcome, tuple)
        (busy,) = outcome
        line.send([busy.holder, waiter.next_retry_s])
        os.unlink(f"{directory}/mallory's")
        line.send(waiter.ready() and isinstance(waiter.acquire(wanted), leases.HeldLease))

    with Child(work) as child:
        holder, next_retry_s = child.receive()
        assert "cannot be published" in holder
        assert next_retry_s == 0.5
        assert child.receive() is True


def in_pid_namespace(work_inside: object) -> Child:
    """A child whose own child is process 1 of a new PID namespace with a /proc of its own."""

    def work(line: Line) -> None:
        libc.unshare(libc.CLONE_NEWPID | libc.CLONE_NEWNS)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                libc.set_parent_death_signal(9)
                libc.mount("proc", "/proc", kind="proc")
                work_inside(line)  # type: ignore[operator]
                code = 0
            except EOFError:
                code = 0
            except BaseException as error:  # noqa: BLE001 - said to the test
                line.send({"error": repr(error)})
            finally:
                os._exit(code)
        os.waitpid(pid, 0)

    return Child(work)


@pytest.mark.requirement("LEASE-03", "LEASE-06")
def test_LEASE_03_a_lease_is_seen_from_inside_a_pid_namespace(area: LeaseArea) -> None:
    held = take(area, record(1, CARDS[0]))

    def inside(line: Line) -> None:
        (busy,) = refused(area, record(2, CARDS[0], supervisor=processes.identify_self()))
        found = survey_leases(area, CARDS[:1])
        line.send([busy.run_id, found.busy[CARDS[0].uuid][0].run_id, found.warnings])

    with in_pid_namespace(inside) as child:
        refused_by, surveyed, warnings = child.receive()
    assert refused_by == surveyed == held.record.run_id
    assert any("PID namespace" in warning for warning in warnings)
    held.release()


@pytest.mark.requirement("LEASE-03", "B-69")
def test_LEASE_03_processes_of_another_pid_namespace_are_neither_dead_nor_ours(area: LeaseArea) -> None:
    # Inside, pids are small and exist outside too: they must not be mistaken for those.
    def inside(line: Line) -> None:
        mine = record(1, CARDS[0], supervisor=processes.identify_self())
        paths = records.write_record(area, mine)
        line.send([mine.supervisor.pid, len(paths)])
        line.receive(600)

    with in_pid_namespace(inside) as child:
        assert child.receive() == [1, 1]
        (seen,), _ = records.read_records(area)
        assert seen.pid_namespace != own_pid_namespace()
        assert records.judge_record(seen).standing is records.RecordStatus.LIVE
        assert refused(area, record(2, CARDS[0]))[0].witness is Witness.RECORD

        def beside(line: Line) -> None:
            line.send(records.judge_record(seen).standing.value)

        # A third namespace sees neither: then it is not known to be gone.
        with in_pid_namespace(beside) as other:
            assert other.receive() == records.RecordStatus.UNSEEN.value
        child.send()
        with pytest.raises(EOFError):
            child.receive()
    # A process closes its files a moment before it counts as dead.
    wait_until(lambda: records.judge_record(seen).standing is records.RecordStatus.VOID)
    take(area, record(2, CARDS[0])).release()
