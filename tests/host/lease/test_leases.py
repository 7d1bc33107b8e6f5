"""Taking and losing leases with real processes, real locks and real signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.host.lease import holders, leases, lock_files, records
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.process import processes
from holdfast.model.errors import StorageError
from holdfast.model.lease import LeasePhase, Witness
from holdfast.model.record import replace
from tests.host.lease_support import CARDS, Child, Line, hold, record, refused, slice_of, take
from tests.other_kernels import has_pidfds
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.model.identity import ProcessId
    from holdfast.model.lease import LeasedDevice, LeaseRecord

pytestmark = pytest.mark.process


@pytest.fixture
def area(tmp_path: Path, isolated_environment: dict[str, str]) -> LeaseArea:
    return open_area(hand_written=str(tmp_path / "gpu_locks"))


def names(area: LeaseArea, prefix: str) -> list[str]:
    return sorted(name for name in os.listdir(area.directories[0]) if name.startswith(prefix))


@contextlib.contextmanager
def sleeper(*, inherit: tuple[int, ...] = (), marker: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program that knows nothing of holdfast, with or without inherited lock descriptors."""
    environment = {**os.environ, **({"HOLDFAST_RUN_ID": marker, "HOLDFAST_ATTEMPT": "1"} if marker else {})}
    with subprocess.Popen(["sleep", "600"], pass_fds=inherit, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def dead_supervisor() -> ProcessId:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = processes.identify(process.pid)
    assert found is not None
    return found


@pytest.mark.requirement("LEASE-05")
def test_LEASE_05_a_refusal_names_who_since_when_and_what(area: LeaseArea) -> None:
    held = take(area, record(1, CARDS[0]))
    (busy,) = refused(area, record(2, CARDS[0]))
    assert busy.device == CARDS[0].uuid
    assert busy.witness is Witness.LOCK
    assert busy.run_id == held.record.run_id
    assert held.record.run_id in busy.holder
    assert held.record.user in busy.holder
    assert str(os.getpid()) in busy.holder
    assert (busy.since, busy.command, busy.draining) == (held.record.since, "python train.py", False)
    held.release()
    take(area, record(2, CARDS[0])).release()


@pytest.mark.requirement("LEASE-04")
def test_LEASE_04_the_record_is_complete_public_and_follows_the_phase(area: LeaseArea) -> None:
    written = record(1, CARDS[0], CARDS[1], phase=LeasePhase.PREFLIGHT, config="job.yaml", run_dir="/runs/x")
    held = take(area, written)
    (name,) = names(area, "lease-")
    path = f"{area.directories[0]}/{name}"
    assert re.fullmatch(f"lease-{written.run_id}[.]1[.][0-9a-f]{{16}}[.]json", name)
    assert os.stat(path).st_mode & 0o777 == 0o644
    with open(path) as file:
        stored = json.load(file)
    assert stored["schema"] == 1
    assert stored["since"].endswith("Z")
    assert stored["supervisor"]["boot_id"]
    assert [device["card_uuid"] for device in stored["devices"]] == [CARDS[0].uuid, CARDS[1].uuid]
    for phase in (LeasePhase.RUN, LeasePhase.POSTFLIGHT):
        held.update(replace(held.record, phase=phase))
        (seen,), wrong = records.read_records(area)
        assert seen.record == replace(written, phase=phase)
        assert wrong == ()
    held.release()
    assert names(area, "lease-") == []


@pytest.mark.requirement("POST-01", "B-08")
def test_POST_01_release_leaves_only_lock_files_and_may_be_repeated(area: LeaseArea) -> None:
    held = take(area, record(1, CARDS[0]))
    held.release()
    held.release()
    assert os.listdir(area.directories[0]) == [lock_files.lock_name(CARDS[0].uuid)]
    assert held.fds == ()


@pytest.mark.requirement("LEASE-01")
def test_LEASE_01_all_or_nothing(area: LeaseArea) -> None:
    second = take(area, record(1, CARDS[1]))
    (busy,) = refused(area, record(2, CARDS[0], CARDS[1], CARDS[2]))
    assert busy.device == CARDS[1].uuid
    take(area, record(3, CARDS[0], CARDS[2])).release()
    second.release()


def compete(area: LeaseArea, number: int, rounds: int, *devices: LeasedDevice, share: bool = False) -> Child:
    """A process that tries in each round when told; says whether it won and gives back when told."""

    def work(line: Line) -> None:
        for _ in range(rounds):
            line.receive(LONG_S)
            outcome = leases.acquire_lease(area, record(number, *devices, share=share))
            line.send("won" if isinstance(outcome, leases.HeldLease) else [reason.run_id for reason in outcome])
            line.receive(LONG_S)
            if isinstance(outcome, leases.HeldLease):
                outcome.release()
            line.send("done")

    return Child(work)


@pytest.mark.gotcha("GEN7")
@pytest.mark.requirement("LEASE-01", "B-02")
def test_LEASE_01_of_48_starters_at_once_exactly_one_wins_in_every_round(area: LeaseArea) -> None:
    rounds = 8
    with contextlib.ExitStack() as stack:
        starters = [stack.enter_context(compete(area, number, rounds, CARDS[0])) for number in range(48)]
        for _ in range(rounds):
            for starter in starters:
                starter.send()
            answers = [starter.receive() for starter in starters]
            assert answers.count("won") == 1
            for starter in starters:
                starter.send()
            assert [starter.receive() for starter in starters] == ["done"] * 48


@pytest.mark.requirement("LEASE-01")
def test_LEASE_01_opposite_orders_neither_deadlock_nor_half_take(area: LeaseArea) -> None:
    def work(order: tuple[int, int], number: int) -> Child:
        def loop(line: Line) -> None:
            wins = 0
            for _ in range(150):
                outcome = leases.acquire_lease(area, record(number, *(CARDS[index] for index in order)))
                if isinstance(outcome, leases.HeldLease):
                    witnesses = [f"{area.directories[0]}/witness-{index}" for index in sorted(order)]
                    for path in witnesses:
                        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                    for path in witnesses:
                        os.unlink(path)
                    outcome.release()
                    wins += 1
            line.send(wins)

        return Child(loop)

    with work((0, 1), 1) as one, work((1, 0), 2) as two, work((0, 1), 3) as three:
        assert all(child.receive() > 0 for child in (one, two, three))


@pytest.mark.requirement("LEASE-02", "POST-01", "B-08")
def test_LEASE_02_a_killed_holder_frees_the_card_and_its_record_is_void(area: LeaseArea) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
        assert refused(area, record(2, CARDS[0]))[0].pids == (holder.pid,)
        holder.kill()
        held = take(area, record(2, CARDS[0]))
        (name,) = names(area, "lease-")
        assert name.startswith(f"lease-{held.record.run_id}.1.")
        held.release()


@pytest.mark.requirement("LEASE-02")
def test_LEASE_02_a_record_without_a_boot_id_is_never_void(area: LeaseArea) -> None:
    """A sandbox may share the area and tell no boot id: its processes never show here, so nothing says they ended."""
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
        (seen,) = records.read_records(area)[0]
        holder.kill()
    assert records.judge_record(seen).standing is records.RecordStatus.VOID
    unknown = replace(seen, record=replace(seen.record, supervisor=replace(seen.record.supervisor, boot_id="")))
    assert records.judge_record(unknown).standing is records.RecordStatus.UNSEEN


def test_LEASE_02_after_a_restart_of_the_box_a_record_is_void(area: LeaseArea) -> None:
    ours = processes.identify_self()
    before = replace(ours, boot_id="00000000-0000-4000-8000-000000000000")
    records.write_record(area, record(1, CARDS[0], supervisor=before, members=(before,)))
    (seen,), _ = records.read_records(area)
    judgement = records.judge_record(seen)
    assert judgement.standing is records.RecordStatus.VOID
    assert "restarted" in judgement.why
    take(area, record(2, CARDS[0])).release()


@pytest.mark.requirement("LEASE-03", "B-69")
def test_LEASE_03_an_inherited_descriptor_keeps_the_card_after_the_supervisor_is_killed(area: LeaseArea) -> None:
    def work(line: Line) -> None:
        held = take(area, record(1, CARDS[0]))
        child = subprocess.Popen(["sleep", "600"], pass_fds=held.fds, start_new_session=True)
        line.send(child.pid)
        line.receive(600)

    with Child(work) as supervisor:
        survivor = supervisor.receive()
        supervisor.kill()
        try:
            (busy,) = refused(area, record(2, CARDS[0]))
            assert busy.witness is Witness.LOCK
            assert busy.pids == (survivor,)
            assert str(survivor) in busy.holder
            assert busy.run_id == record(1).run_id
            assert busy.draining
        finally:
            os.kill(survivor, 9)
        wait_until(lambda: is_granted(area, record(2, CARDS[0])), what="the survivor's end frees the card")


def is_granted(area: LeaseArea, wanted: LeaseRecord) -> bool:
    outcome = leases.acquire_lease(area, wanted)
    if isinstance(outcome, leases.HeldLease):
        outcome.release()
        return True
    return False


@pytest.mark.requirement("LEASE-03")
def test_LEASE_03_a_member_that_closed_its_descriptors_keeps_the_card_by_the_record(area: LeaseArea) -> None:
    with sleeper() as job:
        member = processes.identify(job.pid)
        assert member is not None
        records.write_record(area, record(1, CARDS[0], supervisor=dead_supervisor(), members=(member,)))
        (busy,) = refused(area, record(2, CARDS[0]))
        assert (busy.witness, busy.pids, busy.draining) == (Witness.RECORD, (job.pid,), True)
    take(area, record(2, CARDS[0])).release()


@pytest.mark.requirement("LEASE-03")
def test_LEASE_03_the_marker_in_an_environment_keeps_the_card(area: LeaseArea) -> None:
    old = record(1, CARDS[0], supervisor=dead_supervisor())
    records.write_record(area, old)
    with sleeper(marker=old.run_id) as job:
        (busy,) = refused(area, record(2, CARDS[0]))
        assert busy.pids == (job.pid,)
    take(area, record(2, CARDS[0])).release()


@pytest.mark.requirement("LEASE-03", "B-69")
def test_B_69_a_reused_pid_does_not_keep_a_record_alive(area: LeaseArea) -> None:
    ours = processes.identify_self()
    other = replace(ours, start_ticks=ours.start_ticks + 1)
    records.write_record(area, record(1, CARDS[0], supervisor=other, members=(other,)))
    take(area, record(2, CARDS[0])).release()


@pytest.mark.requirement("LEASE-03")
def test_LEASE_03_a_populated_cgroup_keeps_the_card_and_an_unreadable_one_is_not_empty(
    area: LeaseArea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "cgroup"
    monkeypatch.setattr(records, "list_cgroup_mounts", lambda: (str(tmp_path),))
    (group / "inner").mkdir(parents=True)
    (group / "cgroup.procs").write_text("")
    (group / "inner" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    records.write_record(area, record(1, CARDS[0], supervisor=dead_supervisor(), cgroup=str(group)))
    assert refused(area, record(2, CARDS[0]))[0].pids == (os.getpid(),)
    (group / "inner" / "cgroup.procs").write_text("0\n")
    (busy,) = refused(area, record(2, CARDS[0]))
    assert (busy.pids, busy.draining) == ((), True)
    (group / "inner" / "cgroup.procs").write_text("")
    take(area, record(2, CARDS[0])).release()


@pytest.mark.parametrize("pid", [0, 4242], ids=["unseen", "seen"])
def test_a_gate_is_given_up_early_only_where_the_same_process_is_seen_to_hold_it(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    """In a PID namespace the kernel lists no lock of those outside: they may come and go one after the other."""
    asked = list[str]()

    def list_pids(path: str) -> frozenset[int]:
        asked.append(path)
        return frozenset({pid} - {0})

    monkeypatch.setattr(leases, "_list_pids", list_pids)
    monkeypatch.setattr(leases, "LAST_PAUSE_S", 0.0)
    gate, files = f"{area.directories[0]}/{lock_files.gate_name(CARDS[0].uuid)}", lock_files.LockFiles()
    assert files.try_lock(gate, exclusive=True)
    refused(area, record(2, CARDS[0], share=True))
    files.close()
    early, all_tries = 2, leases.GATE_TRIES // leases.SAME_HOLDER_TRIES - 1
    assert asked == [gate] * (early if pid else all_tries)


@pytest.mark.requirement("LEASE-06")
def test_LEASE_06_a_removed_lock_file_does_not_grant_the_card_again(area: LeaseArea) -> None:
    held = take(area, record(1, CARDS[0]))
    os.unlink(f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}")
    with pytest.raises(lock_files.LockObstructed):
        held.require_current()
    (busy,) = refused(area, record(2, CARDS[0]))
    assert (busy.witness, busy.run_id) == (Witness.RECORD, held.record.run_id)
    held.release()


@pytest.mark.requirement("LEASE-06")
def test_LEASE_06_a_planted_symlink_is_refused_and_nothing_is_left_locked(area: LeaseArea, tmp_path: Path) -> None:
    os.symlink(tmp_path / "target", f"{area.directories[0]}/{lock_files.lock_name(CARDS[1].uuid)}")
    kept = lock_files.LockFiles()
    for files in (None, kept):
        busy = leases.acquire_lease(area, record(1, CARDS[0], CARDS[1]), files=files)
        assert isinstance(busy, tuple)
        assert [(reason.device, "symbolic link" in reason.holder) for reason in busy] == [(CARDS[1].uuid, True)]
    take(area, record(1, CARDS[0])).release()
    kept.close()


def test_a_lock_of_a_program_that_is_not_holdfast_is_named_by_its_process(area: LeaseArea) -> None:
    def work(line: Line) -> None:
        files = lock_files.LockFiles()
        line.send(files.try_lock(f"{area.directories[0]}/{lock_files.lock_name(CARDS[0].uuid)}", exclusive=True))
        line.receive(600)

    with Child(work) as stranger:
        assert stranger.receive() is True
        (busy,) = refused(area, record(1, CARDS[0]))
        assert busy.pids == (stranger.pid,)
        assert busy.run_id is None
        assert processes.user_name(os.geteuid()) in busy.holder


@pytest.mark.requirement("LEASE-18")
def test_LEASE_18_ones_own_second_run_is_refused_unless_both_share(area: LeaseArea) -> None:
    held = take(area, record(1, CARDS[0]))
    assert refused(area, record(2, CARDS[0], share=True))[0].run_id == held.record.run_id
    held.release()
    one = take(area, record(1, CARDS[0], share=True))
    two = take(area, record(2, CARDS[0], share=True))
    assert {busy.run_id for busy in refused(area, record(3, CARDS[0]))} == {one.record.run_id, two.record.run_id}
    one.release()
    assert refused(area, record(3, CARDS[0]))[0].run_id == two.record.run_id
    two.release()
    take(area, record(3, CARDS[0])).release()


@pytest.mark.requirement("LEASE-19")
def test_LEASE_19_slices_are_leased_apart_and_exclude_their_card(area: LeaseArea) -> None:
    one, two = slice_of(CARDS[0], 1), slice_of(CARDS[0], 2)
    first, second = take(area, record(1, one)), take(area, record(2, two))
    assert refused(area, record(3, one))[0].device == one.uuid
    assert {busy.run_id for busy in refused(area, record(3, CARDS[0]))} == {record(1).run_id, record(2).run_id}
    # Sharing the whole card with somebody on a slice was never agreed to.
    assert refused(area, record(3, CARDS[0], share=True))
    first.release()
    second.release()
    whole = take(area, record(3, CARDS[0]))
    assert refused(area, record(1, one))[0].run_id == whole.record.run_id
    whole.release()
    shared = take(area, record(3, CARDS[0], share=True))
    assert refused(area, record(1, one, share=True))[0].run_id == shared.record.run_id
    shared.release()
    both = take(area, record(4, one, two))
    assert len(both.fds) == 3
    both.release()


@pytest.mark.requirement("LEASE-18", "LEASE-19")
def test_LEASE_19_slices_and_sharing_runs_that_start_together_still_exclude_each_other(area: LeaseArea) -> None:
    rounds = 25
    with contextlib.ExitStack() as stack:
        sharing = [stack.enter_context(compete(area, number, rounds, CARDS[0], share=True)) for number in range(8)]
        sliced = [
            stack.enter_context(compete(area, 100 + number, rounds, slice_of(CARDS[0], number))) for number in range(8)
        ]
        everybody = [starter for pair in zip(sharing, sliced, strict=True) for starter in pair]
        for _ in range(rounds):
            for starter in everybody:
                starter.send()
            won = {starter.pid for starter in everybody if starter.receive() == "won"}
            assert won
            assert won.isdisjoint(s.pid for s in sharing) or won.isdisjoint(s.pid for s in sliced)
            for starter in everybody:
                starter.send()
            assert [starter.receive() for starter in everybody] == ["done"] * len(everybody)


@pytest.mark.requirement("B-02")
def test_a_directory_that_appears_is_locked_too(tmp_path: Path) -> None:
    candidates = []
    for name in ("var", "run"):
        (tmp_path / name).mkdir()
        candidates.append(str(tmp_path / name / "holdfast"))
    os.mkdir(candidates[1])
    os.chmod(candidates[1], 0o1777)
    stale = open_area(environ={}, candidates=tuple(candidates), hand_written=str(tmp_path / "none"))
    os.mkdir(candidates[0])
    os.chmod(candidates[0], 0o1777)
    held = take(stale, record(1, CARDS[0]))
    assert held.area.directories == tuple(candidates)
    assert all(names(LeaseArea((path,), (path,), "test"), "lease-") for path in candidates)
    (busy,) = refused(LeaseArea(tuple(candidates[:1]), tuple(candidates[:1]), "test"), record(2, CARDS[0]))
    assert busy.run_id == held.record.run_id
    held.release()


def test_a_vanished_area_is_an_error_for_people(area: LeaseArea) -> None:
    os.rmdir(area.directories[0])
    with pytest.raises(StorageError, match="cannot be read") as caught:
        leases.acquire_lease(area, record(1))
    assert caught.value.hint


def test_a_request_for_nothing_or_nonsense_is_a_bug_of_the_caller(area: LeaseArea) -> None:
    with pytest.raises(ValueError, match="at least one"):
        leases.acquire_lease(area, replace(record(1), devices=()))
    with pytest.raises(ValueError, match="UUID"):
        leases.acquire_lease(area, record(1, replace(CARDS[0], card_uuid="../../etc/passwd")))


def test_an_unreadable_record_file_does_not_stop_others(area: LeaseArea) -> None:
    path = f"{area.directories[0]}/lease-20261120-104501-bad-0000.1.json"
    for content in (b"{", b"[]", b'{"schema": 1}', CARDS[0].uuid.encode(), b'{"devices": "' + b"x" * 100):
        with open(path, "wb") as file:
            file.write(content)
        take(area, record(1, CARDS[0])).release()
        assert path in records.read_records(area)[1][0]


def adopt_after_kill(area: LeaseArea, *, inherit: bool) -> leases.HeldLease:
    """The supervisor takes a lease, starts a keeper and is killed; somebody else takes over."""

    def work(line: Line) -> None:
        held = take(area, record(1, CARDS[0], CARDS[1]))
        keeper = subprocess.Popen(["sleep", "600"], pass_fds=held.fds if inherit else (), start_new_session=True)
        identity = processes.identify(keeper.pid)
        assert identity is not None
        held.update(replace(held.record, members=(identity,)))
        line.send(keeper.pid)
        line.receive(600)

    with Child(work) as supervisor:
        keeper = supervisor.receive()
        supervisor.kill()
    (seen,), _ = records.read_records(area)
    held = leases.adopt_lease(area, replace(seen.record, supervisor=processes.identify_self()), seen.record.members)
    assert len(held.fds) == 2
    assert refused(area, record(2, CARDS[1]))[0].pids == (os.getpid(),)
    os.kill(keeper, 9)
    wait_until(lambda: processes.read_stat(keeper) is None or not processes.is_alive(seen.record.members[0]))
    # The keeper's copies are gone; ours hold the cards.
    assert refused(area, record(2, CARDS[0]))[0].run_id == held.record.run_id
    return held


@pytest.mark.requirement("LEASE-03")
def test_LEASE_03_a_descriptor_that_became_another_file_meanwhile_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, other = tmp_path / "gpu.lock", tmp_path / "other"
    lock.touch()
    inode = holders.read_inode(str(lock))
    before = os.listdir("/proc/self/fd")
    with other.open("w") as file:
        monkeypatch.setattr(holders, "find_locked_descriptors", lambda *_: {inode: file.fileno()})
        assert holders.copy_descriptors([str(lock)], [processes.identify_self()]) == {}
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.requirement("LEASE-03")
@pytest.mark.parametrize("inherit", [True, False], ids=["copied from the keeper", "taken anew"])
def test_LEASE_03_a_new_supervisor_takes_the_lease_over(area: LeaseArea, inherit: bool) -> None:
    if inherit and not has_pidfds():
        pytest.skip("no pidfd to copy a descriptor through")
    held = adopt_after_kill(area, inherit=inherit)
    held.release()
    take(area, record(2, CARDS[0], CARDS[1])).release()
