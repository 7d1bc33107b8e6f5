"""A connection whose other end does not answer is told; an event loop's own wake-up pair is no connection."""

from __future__ import annotations

import asyncio
import ctypes
import os
import selectors
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.evidence import Reading
from holdfast.diagnosis.live.gather import other_end
from holdfast.diagnosis.live.gather.box import look_at_box
from holdfast.diagnosis.live.gather.descriptors import find_waited_on
from holdfast.diagnosis.live.gather.look import take_snapshot
from holdfast.diagnosis.live.gather.snapshot import OpenFile, ProcessFacts, ThreadFacts
from holdfast.model.record import replace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("DIAG-13")]

RECV = 45
AT_FDCWD = 0xFFFFFF9C
ROW = (
    "   0: 0100007F:A1B2 {peer}:01BB 01 {unsent}:00000000 01:00000014 {again} "
    "0 0 4711 2 0000000000000000 20 4 30 10 -1\n"
)


def waiting(descriptor: int, *targets: str) -> ProcessFacts:
    """A process whose only thread is in recvfrom(2) of a descriptor; `targets` are its descriptors from 3 on."""
    thread = ThreadFacts(7, "python", "S", 0, 0, 1, "sk_wait_data", RECV, (descriptor, 0, 0, 0, 0, 0))
    files = tuple(OpenFile(number, target) for number, target in enumerate(targets, 3))
    return ProcessFacts(7, 1, 1, "python", "S", (thread,), files=Reading(files))


def make_proc(root: Path, row: str = "", unix: str = "") -> str:
    net = root / "7" / "net"
    net.mkdir(parents=True)
    (net / "tcp").write_text("  sl  local_address rem_address\n" + row)
    (net / "unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n" + unix)
    return str(root)


def test_a_peer_that_acknowledges_nothing_is_said(tmp_path: Path) -> None:
    process = waiting(3, "socket:[4711]")
    proc = make_proc(tmp_path / "a", ROW.format(peer="0900000A", unsent="00000400", again="00000005"))
    on = find_waited_on(process, process.main, proc=proc)
    assert on is not None
    assert (on.peer, "1024 bytes" in on.silence, "5 times" in on.silence) == ("10.0.0.9:443", True, True)
    calm = make_proc(tmp_path / "b", ROW.format(peer="0900000A", unsent="00000000", again="00000000"))
    found = find_waited_on(process, process.main, proc=calm)
    assert found is not None
    assert (found.peer, found.silence) == ("10.0.0.9:443", "")


def test_the_wake_up_pair_of_an_event_loop_is_no_connection() -> None:
    loop = asyncio.new_event_loop()
    try:
        (facts,) = take_snapshot((os.getpid(),)).processes
        selector = loop._selector  # type: ignore[attr-defined]
        assert isinstance(selector, selectors.EpollSelector)
        thread = ThreadFacts(1, "python", "S", 0, 0, 1, "ep_poll", 232, (selector.fileno(), 0, 0, 0, 0, 0))
        assert find_waited_on(facts, thread) is None
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            loop._selector.register(server, selectors.EVENT_READ)  # type: ignore[attr-defined]
            (facts,) = take_snapshot((os.getpid(),)).processes
            on = find_waited_on(facts, thread)
            assert on is not None
            assert len(on.targets) == 1
            loop._selector.unregister(server)  # type: ignore[attr-defined]
    finally:
        loop.close()


def test_a_pipe_is_of_the_process_alone_only_while_nobody_else_can_write_to_it() -> None:
    reader, writer = os.pipe()
    try:
        (facts,) = take_snapshot((os.getpid(),)).processes
        thread = ThreadFacts(1, "python", "S", 0, 0, 1, "anon_pipe_read", 0, (reader, 0, 0, 0, 0, 0))
        on = find_waited_on(facts, thread)
        assert on is not None
        assert on.other_end is not None
        assert f"(pid {os.getpid()})" in on.other_end.text
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[writer]) as child:
            shared = find_waited_on(facts, thread)
            child.communicate()
        assert shared is not None
        assert shared.other_end is None
    finally:
        os.close(reader)
        os.close(writer)


def test_a_worker_that_inherited_both_ends_of_its_pipe_takes_no_walk_over_the_box(tmp_path: Path) -> None:
    ends: Reading[tuple[OpenFile, ...]] = Reading((OpenFile(3, "pipe:[1]"), OpenFile(4, "pipe:[1]")))
    reads = ThreadFacts(7, "python", "S", 0, 0, 1, "anon_pipe_read", 0, (3, 0, 0, 0, 0, 0))
    worker, parent = (ProcessFacts(pid, 1, 1, "python", "S", (reads,), files=ends) for pid in (7, 9))
    for pid in (7, 8, 9):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
    for pid in (7, 9):
        (tmp_path / str(pid) / "fd" / "4").symlink_to("pipe:[1]")
    looked: list[str] = []

    def note(path: str) -> list[str]:
        looked.append(path)
        return os.listdir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(other_end, "_list", note)
        on = find_waited_on(worker, reads, (parent, worker), proc=str(tmp_path))
    assert on is not None
    assert on.other_end is None
    assert looked == [f"{tmp_path}/7/fd", f"{tmp_path}/9/fd"]


def test_a_process_of_the_job_that_has_the_other_end_of_a_pipe_is_named_with_what_it_does(tmp_path: Path) -> None:
    reads = ThreadFacts(8, "python", "S", 0, 0, 1, "anon_pipe_read", 0, (3, 0, 0, 0, 0, 0))
    locked = ThreadFacts(9, "loader", "S", 0, 0, 1, "futex_do_wait", 202, (0, 0, 0, 0, 0, 0))
    waits = ThreadFacts(7, "python", "S", 0, 0, 1, "do_wait", 61, (0, 0, 0, 0, 0, 0))
    has: Reading[tuple[OpenFile, ...]] = Reading((OpenFile(3, "pipe:[1]"),))
    parent = ProcessFacts(7, 1, 1, "python", "S", (waits,), files=has)
    worker = ProcessFacts(8, 7, 1, "python", "S", (reads,), files=has)
    loader = ProcessFacts(9, 7, 1, "loader", "S", (locked,), files=has)
    for pid in (7, 8, 9):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)

    def find() -> str:
        on = find_waited_on(worker, reads, (parent, worker, loader), proc=str(tmp_path))
        assert on is not None
        return "" if on.other_end is None else on.other_end.look

    assert find() == ""
    (tmp_path / "9" / "fd" / "3").symlink_to("pipe:[1]")
    assert find() == "look at pid 9 (loader): it has the writing end of pipe:[1] and waits for a lock (futex)"
    # A shell waits for its child and has that end, too (`exec > >(tee log)`): that is no deadlock.
    (tmp_path / "7" / "fd" / "3").symlink_to("pipe:[1]")
    assert find() == "look at pid 9 (loader): it has the writing end of pipe:[1] and waits for a lock (futex)"
    (tmp_path / "9" / "fd" / "3").unlink()
    assert find().startswith("have pid 7 (python) write to pipe:[1], or close that end, before it waits for its child")
    parent = replace(parent, threads=(replace(waits, arguments=(10, 0, 0, 0, 0, 0)),))
    assert find().startswith("look at pid 7 (python): it has the writing end of pipe:[1] and waits for")
    parent = replace(parent, threads=(waits, replace(locked, tid=71)))
    assert find().startswith("look at pid 7 (python): it has the writing end of pipe:[1] and waits for")


LOCKS = """\
1: FLOCK  ADVISORY  WRITE 9 08:01:77 0 EOF
1: -> FLOCK  ADVISORY  WRITE 8 08:01:77 0 EOF
2: FLOCK  ADVISORY  WRITE 8 08:01:78 0 EOF
"""


def find_lock_of(tmp_path: Path, locks: str, fdinfo: str) -> str:
    """What to look at for a thread of process 8 that waits for a lock which, by the kernel's list, 9 took."""
    (tmp_path / "locks").write_text(locks)
    (tmp_path / "9" / "fdinfo").mkdir(parents=True)
    (tmp_path / "9" / "fdinfo" / "3").write_text(fdinfo)
    waits = ThreadFacts(8, "python", "S", 0, 0, 1, "flock_lock_inode_wait", 73, (3, 2, 0, 0, 0, 0))
    files: Reading[tuple[OpenFile, ...]] = Reading((OpenFile(3, "/data/a.lock"),))
    process = ProcessFacts(8, 1, 1, "python", "S", (waits,), files=files)
    holder = ProcessFacts(9, 1, 1, "loader", "S", ())
    found = other_end.find_lock(process, waits, "/data/a.lock", (process, holder), str(tmp_path))
    return "" if found is None else found.look


def test_who_holds_a_lock_is_named_while_it_has_that_open_file(tmp_path: Path) -> None:
    has = f"pos: 0\nlock:\t{LOCKS.splitlines()[0]}\n"
    assert find_lock_of(tmp_path, LOCKS, has).startswith("look at pid 9 (loader), which holds the lock of /data/a.lock")


def test_who_took_a_lock_and_has_it_no_more_is_not_named(tmp_path: Path) -> None:
    """A child that inherited the open file holds it."""
    assert find_lock_of(tmp_path, LOCKS, "pos: 0\n") == ""


def test_of_a_process_that_waits_for_several_locks_none_is_named(tmp_path: Path) -> None:
    has = f"pos: 0\nlock:\t{LOCKS.splitlines()[0]}\n"
    assert find_lock_of(tmp_path, f"{LOCKS}2: -> FLOCK  ADVISORY  WRITE 8 08:01:79 0 EOF\n", has) == ""


def test_the_name_of_a_fifo_steers_no_terminal_and_begins_no_line() -> None:
    name = ctypes.create_string_buffer(b"/data/a\n\x1b[2Jdo  rm")
    thread = ThreadFacts(1, "python", "S", 0, 0, 1, "wait_for_partner", 257, (AT_FDCWD, ctypes.addressof(name), 0))
    (facts,) = take_snapshot((os.getpid(),)).processes
    on = find_waited_on(facts, thread)
    assert on is not None
    assert on.other_end is not None
    assert on.targets == ("/data/a\\x0a\\x1b[2Jdo  rm",)
    assert "/data/a\\x0a\\x1b[2Jdo  rm for writing" in on.other_end.look


def test_a_connection_to_a_dual_stack_server_of_the_job_is_the_jobs_own(tmp_path: Path) -> None:
    """Its accepted end stands in the table of IPv6; the process that has it is another one of the job."""
    process = waiting(3, "socket:[4711]")
    server = ProcessFacts(8, 1, 1, "server", "S", process.threads, files=Reading((OpenFile(4, "socket:[99]"),)))
    proc = make_proc(tmp_path, ROW.format(peer="0100007F", unsent="00000000", again="00000000"))
    six = "0000000000000000FFFF00000100007F"
    row = f"   0: {six}:01BB {six}:A1B2 01 00000000:00000000 00:00000000 00000000 0 0 {{}} 1\n"
    (tmp_path / "7" / "net" / "tcp6").write_text("  sl  local_address\n" + row.format(99))
    on = find_waited_on(process, process.main, (process, server), proc=proc)
    assert on is not None
    assert on.other_end is not None
    assert on.other_end.look.startswith("look at pid 8 (server): 127.0.0.1:443 is a process of the job itself (pid 8")
    alone = find_waited_on(process, process.main, (process,), proc=proc)
    assert alone is not None
    assert alone.other_end is None


def test_descriptors_and_disks_are_counted() -> None:
    (facts,) = take_snapshot((os.getpid(),)).processes
    assert facts.files_open
    assert facts.files_limit
    assert facts.files_open <= facts.files_limit
    assert all(busy >= 0 for busy in look_at_box().disk_busy_s.values())
