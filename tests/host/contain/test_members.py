"""Every kind of runaway under every level: found, proven, ended; and nobody else touched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.host.contain.members import (
    Member,
    MembershipProof,
    RunTree,
    describe_blocked,
    empty_tree,
    find_members,
    list_descendants,
    signal_members,
)
from holdfast.host.process import libc
from holdfast.host.process.processes import identify, is_alive
from holdfast.model.identity import ProcessId
from holdfast.model.job import IsolationLevel
from tests.host.families import FAMILY, RUN_ID, become, children_of, raised
from tests.kernel_calls import set_dumpable
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

LEVELS = [IsolationLevel.PID_NAMESPACE, IsolationLevel.CGROUP_V2, IsolationLevel.CGROUP_V1, IsolationLevel.SUBREAPER]
KINDS = ["plain", "setsid", "double_fork", "ignore_term", "stopped", "escapee", "forgetful", "vfork", "lost_leader"]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="control groups of this machine belong to root")


@contextlib.contextmanager
def decoy(writer: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the family's very command line that is not of the run."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", FAMILY, str(writer), "plain"], pass_fds=[writer], start_new_session=True
    )
    try:
        yield process
    finally:
        for pid in (*children_of(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@root_only
@pytest.mark.requirement("PROC-02", "B-05", "B-72")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_PROC_02_each_kind_is_ended_on_each_level(level: IsolationLevel, kind: str, tmp_path: Path) -> None:
    with raised(level, [kind], str(tmp_path)) as family:
        assert find_members(family.tree)
        result = empty_tree(family.tree, deadline_s=LIMIT_S)
        assert result.empty, result
        assert family.is_gone()
        assert result.killed >= 2 or family.tree.group is not None


@root_only
@pytest.mark.requirement("PROC-02", "PROC-08")
@pytest.mark.parametrize("level", LEVELS)
def test_PROC_02_a_crowd_of_all_kinds_ends_and_a_decoy_survives(level: IsolationLevel, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with decoy(writer) as stranger, raised(level, [*KINDS, "crowd"], str(tmp_path)) as family:
        os.close(writer)
        assert len(os.read(reader, 1)) == 1
        found = find_members(family.tree)
        assert len(found) >= 200 + len(KINDS)
        assert stranger.pid not in {member.process.pid for member in found}
        result = empty_tree(family.tree, deadline_s=LIMIT_S)
        assert result.empty, result
        assert family.is_gone()
        assert stranger.poll() is None
    os.close(reader)


@root_only
@pytest.mark.parametrize(
    ("level", "proof"),
    [
        (IsolationLevel.CGROUP_V2, MembershipProof.CGROUP),
        (IsolationLevel.CGROUP_V1, MembershipProof.CGROUP),
        (IsolationLevel.PID_NAMESPACE, MembershipProof.DESCENT),
        (IsolationLevel.SUBREAPER, MembershipProof.DESCENT),
    ],
)
def test_each_level_gives_its_proof(level: IsolationLevel, proof: MembershipProof, tmp_path: Path) -> None:
    with raised(level, ["setsid", "forgetful"], str(tmp_path)) as family:
        members = find_members(family.tree)
        assert {member.proof for member in members} == {proof}
        assert len(members) == 3
        starts = [member.process.start_ticks for member in members]
        assert starts == sorted(starts)


@root_only
def test_a_process_that_entered_the_namespace_from_outside_is_proven_by_it(tmp_path: Path) -> None:
    with raised(IsolationLevel.PID_NAMESPACE, ["plain"], str(tmp_path)) as family:
        keeper = family.tree.keeper
        assert keeper is not None
        reader, writer = os.pipe()

        def visit() -> None:
            descriptor = os.open(f"/proc/{keeper.pid}/ns/pid", os.O_RDONLY)
            libc.setns(descriptor, libc.CLONE_NEWPID)
            if os.fork() == 0:
                os.write(writer, b".")
                signal.pause()
            os.wait()

        child = become(visit)
        os.read(reader, 1)
        (visitor,) = children_of(child)
        found = {member.process.pid: member.proof for member in find_members(family.tree)}
        assert found[visitor] is MembershipProof.NAMESPACE
        assert child not in found
        os.kill(keeper.pid, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
        assert family.is_gone()


def test_PROC_02_without_keeper_the_marker_finds_escapees(tmp_path: Path) -> None:
    # The last level: no group, no keeper, and the leader killed alone, as a group KILL in B-05 does.
    with raised(IsolationLevel.PROCESS_GROUP, ["setsid", "escapee", "stopped"], str(tmp_path)) as family:
        os.kill(family.child, signal.SIGKILL)
        os.waitid(os.P_PID, family.child, os.WEXITED | os.WNOWAIT)
        members = find_members(family.tree)
        assert {member.proof for member in members} == {MembershipProof.MARKER}
        assert len(members) == 3
        result = empty_tree(family.tree, deadline_s=LIMIT_S)
        assert result.empty
        assert result.killed == 3
        assert family.is_gone()


def test_another_attempt_and_another_run_are_not_ours(tmp_path: Path) -> None:
    with raised(IsolationLevel.PROCESS_GROUP, ["setsid"], str(tmp_path)):
        assert find_members(RunTree(RUN_ID, 2)) == []
        assert find_members(RunTree("20261120-104501-family-0000", 1)) == []
        assert len(find_members(RunTree(RUN_ID, 1))) == 2


@root_only
def test_the_marker_under_another_uid_proves_nothing() -> None:
    reader, writer = os.pipe()

    def pose() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        os.dup2(writer, 1)
        environ = {"HOLDFAST_RUN_ID": RUN_ID, "HOLDFAST_ATTEMPT": "1", "PATH": "/bin:/usr/bin"}
        os.execve("/bin/sh", ["sh", "-c", "echo; exec sleep 1000"], environ)

    child = become(pose)
    os.close(writer)
    assert os.read(reader, 1)
    wait_until(lambda: b"sleep" in _cmdline(child))
    assert find_members(RunTree(RUN_ID, 1)) == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)


def _cmdline(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def test_orphans_of_a_killed_keeper_are_found_below_the_adopter(tmp_path: Path) -> None:
    libc.set_child_subreaper(True)
    try:
        with raised(IsolationLevel.SUBREAPER, ["forgetful", "escapee"], str(tmp_path)) as family:
            os.kill(family.child, signal.SIGKILL)
            os.waitid(os.P_PID, family.child, os.WEXITED | os.WNOWAIT)
            keeper = family.tree.keeper
            bystander = subprocess.Popen(["sleep", "1000"])
            tree = RunTree(RUN_ID, 1, None, keeper, (), os.getpid(), frozenset({bystander.pid, family.child}))
            members = find_members(tree)
            assert len(members) == 3
            assert bystander.pid not in {member.process.pid for member in members}
            assert empty_tree(tree, deadline_s=LIMIT_S).empty
            assert bystander.poll() is None
            bystander.kill()
            bystander.wait()
            assert family.is_gone()
            for member in members:
                os.waitpid(member.process.pid, 0)
    finally:
        libc.set_child_subreaper(False)


@root_only
@pytest.mark.requirement("PROC-02")
@pytest.mark.parametrize("level", [IsolationLevel.CGROUP_V2, IsolationLevel.CGROUP_V1])
def test_a_runaway_chain_of_forks_is_ended_by_its_group(level: IsolationLevel, tmp_path: Path) -> None:
    with raised(level, ["bomb"], str(tmp_path)) as family:
        result = empty_tree(family.tree, deadline_s=LIMIT_S)
        assert result.empty, result
        assert family.is_gone()


@root_only
def test_a_runaway_chain_of_forks_ends_with_the_first_process_of_its_namespace(tmp_path: Path) -> None:
    with raised(IsolationLevel.PID_NAMESPACE, ["bomb"], str(tmp_path)) as family:
        result = empty_tree(family.tree, deadline_s=LIMIT_S, end_keeper=True)
        assert result.empty, result
        assert family.is_gone()


@pytest.mark.requirement("PROC-10")
def test_PROC_10_orphans_are_reaped_by_the_subreaper_and_none_is_left_a_zombie(tmp_path: Path) -> None:
    with raised(IsolationLevel.SUBREAPER, ["double_fork"] * 5, str(tmp_path)) as family:
        assert empty_tree(family.tree, deadline_s=LIMIT_S).empty
        assert family.is_gone()
        # A keeper leaves when it has no child left, dead or alive.
        ended = wait_until(lambda: os.waitid(os.P_PID, family.child, os.WEXITED | os.WNOWAIT | os.WNOHANG))
        assert ended is not None
        assert ended.si_status == 0


@pytest.mark.gotcha("U1")
@pytest.mark.requirement("PROC-08")
def test_PROC_08_a_signal_never_reaches_a_later_user_of_the_pid() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as later:
        assert later.stdin is not None
        assert later.stdout is not None
        now = identify(later.pid)
        assert now is not None
        earlier = ProcessId(now.pid, now.start_ticks - 1, now.boot_id)
        of_another_boot = ProcessId(now.pid, now.start_ticks, "0" * 36)
        stale = [Member(process, MembershipProof.DESCENT, "S", "cat") for process in (earlier, of_another_boot)]
        assert signal_members(stale, signal.SIGKILL) == ()
        # A process with a KILL on its way does not come back to answer.
        later.stdin.write(b"still here\n")
        later.stdin.flush()
        assert later.stdout.readline() == b"still here\n"


def test_a_gentle_signal_wakes_a_stopped_process_and_kill_ends_it(tmp_path: Path) -> None:
    with raised(IsolationLevel.SUBREAPER, ["stopped"], str(tmp_path)) as family:
        stopped = wait_until(lambda: [m for m in find_members(family.tree) if m.state == "T"])
        signal_members(stopped, signal.SIGTERM)
        wait_until(lambda: not is_alive(stopped[0].process), what="the stopped process acts on TERM")


@root_only
def test_a_refused_signal_is_named(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with raised(IsolationLevel.PROCESS_GROUP, ["plain"], str(tmp_path)) as family:
        members = find_members(family.tree)

        def try_as_nobody() -> None:
            os.setgid(65534)
            os.setuid(65534)
            refused = signal_members(members, signal.SIGKILL)
            os.write(writer, "\n".join(one.why for one in refused).encode())

        os.waitpid(become(try_as_nobody), 0)
        assert os.read(reader, 4096).decode().splitlines() == ["Operation not permitted"] * 2
        assert all(is_alive(member.process) for member in members)
    os.close(reader)
    os.close(writer)


@pytest.mark.requirement("PROC-16", "B-41")
@pytest.mark.parametrize(
    ("wchan", "words"),
    [("nfs_wait_bit_killable", "waits in nfs_wait_bit_killable"), ("0", "the kernel does not say where it waits")],
)
def test_PROC_16_uninterruptible_sleep_is_reported_honestly(wchan: str, words: str, tmp_path: Path) -> None:
    entry = tmp_path / "proc" / "4242"
    entry.mkdir(parents=True)
    (entry / "stat").write_text("4242 (trainer (x)) D 1 4242 4242 0 -1 0")
    (entry / "wchan").write_text(wchan)
    blocked = describe_blocked(4242, proc=str(tmp_path / "proc"))
    assert blocked is not None
    text = blocked.describe()
    assert "pid 4242 (trainer (x)) is in uninterruptible sleep (D)" in text
    assert words in text
    assert "not dead" in text
    assert describe_blocked(4243, proc=str(tmp_path / "proc")) is None


def test_a_vfork_parent_is_in_state_d_and_still_ends(tmp_path: Path) -> None:
    with raised(IsolationLevel.SUBREAPER, ["vfork"], str(tmp_path)) as family:
        waiting = wait_until(lambda: [m for m in find_members(family.tree) if m.state == "D"])
        blocked = describe_blocked(waiting[0].process.pid)
        assert blocked is not None
        assert "(D)" in blocked.describe()
        assert empty_tree(family.tree, deadline_s=LIMIT_S).empty
        assert family.is_gone()


def test_a_zombie_leader_with_a_living_thread_is_alive(tmp_path: Path) -> None:
    with raised(IsolationLevel.SUBREAPER, ["lost_leader"], str(tmp_path)) as family:
        zombies = wait_until(lambda: [m for m in find_members(family.tree) if m.state == "Z"])
        assert len(zombies) == 1
        assert empty_tree(family.tree, deadline_s=LIMIT_S).empty
        assert family.is_gone()


def test_the_descendants_of_a_living_process_are_told_and_of_a_dead_one_are_not() -> None:
    script = "sleep 60 & (setsid sleep 60 & wait) & echo; wait"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE) as parent:
        keeper = identify(parent.pid)
        assert keeper is not None
        wait_until(lambda: len(list_descendants(keeper) or ()) == 3, what="three below it")
        found, direct = list_descendants(keeper) or [], children_of(parent.pid)
        assert set(direct) < set(found)
        assert len(direct) == 2
        for pid in (parent.pid, *found):
            os.kill(pid, signal.SIGKILL)
        assert parent.wait() == -signal.SIGKILL
    assert list_descendants(keeper) is None


def test_we_and_our_ancestors_are_never_members(monkeypatch: pytest.MonkeyPatch) -> None:
    own, parent = identify(os.getpid()), identify(os.getppid())
    assert own is not None
    assert parent is not None
    found = find_members(RunTree(RUN_ID, 1, None, None, (parent, own)))
    assert {os.getpid(), os.getppid(), 1}.isdisjoint({member.process.pid for member in found})


@root_only
@pytest.mark.requirement("PROC-02")
@pytest.mark.parametrize("level", [IsolationLevel.PID_NAMESPACE, IsolationLevel.SUBREAPER])
def test_PROC_02_as_an_unprivileged_user(level: IsolationLevel, public_path: Path) -> None:
    public_path.chmod(0o777)
    kinds = ["setsid", "double_fork", "ignore_term", "stopped", "escapee", "vfork"]

    def as_nobody() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        set_dumpable()
        with raised(level, kinds, str(public_path), execute=False) as family:
            assert len(find_members(family.tree)) >= 1 + len(kinds)
            result = empty_tree(family.tree, deadline_s=LIMIT_S)
            assert result.empty, result
            assert result.killed >= 1 + len(kinds)
            assert family.is_gone()

    child = become(as_nobody)
    assert os.waitpid(child, 0)[1] == 0
