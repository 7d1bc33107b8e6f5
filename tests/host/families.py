"""Starting a family of hard-to-end processes under each level, the way a supervisor and its keeper do, and watching it
end."""

from __future__ import annotations

import contextlib
import ctypes
import encodings.ascii
import encodings.utf_8
import json
import os
import resource
import select
import signal
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.host.contain.create import create_group
from holdfast.host.contain.members import RunTree
from holdfast.host.contain.namespaces import enter_pid_namespace, finish_namespace
from holdfast.host.process import libc
from holdfast.host.process.processes import identify
from holdfast.model.job import IsolationLevel
from tests.host.payloads import family
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.host.contain.create import ControlGroup

# What the code under test imports at first use: a child that gave up root may not be able to read our interpreter.
LOADED = (ctypes, encodings.ascii, encodings.utf_8, json, resource, zlib)

FAMILY = os.path.realpath(family.__file__)
RUN_ID = f"20261120-104501-family-{os.getpid() & 0xFFFF:04x}"


@dataclass(slots=True)
class Raised:
    """A family in place: its tree, the descriptor that reports its end, and our own child above it."""

    tree: RunTree
    reader: int
    child: int

    def is_gone(self, timeout_s: float = LIMIT_S) -> bool:
        """Whether no process of the family holds its descriptor any more: the kernel's word, waited for."""
        poll = select.poll()
        poll.register(self.reader, select.POLLHUP)
        return bool(poll.poll(timeout_s * 1000))


def become(attempt: Callable[[], object]) -> int:
    """A child of ours that does `attempt` and leaves without a word to the test runner."""
    child = os.fork()
    if child:
        return child
    try:
        attempt()
    except BaseException as error:  # noqa: BLE001 - a forked child must not go on as a second test runner
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    os._exit(0)


def _reap_all() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


@contextlib.contextmanager
def raised(level: IsolationLevel, kinds: list[str], directory: str, *, execute: bool = True) -> Iterator[Raised]:
    """A family of `kinds` under one level; ends it by brute force if the test did not."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    v2, v1 = level is IsolationLevel.CGROUP_V2, level is IsolationLevel.CGROUP_V1
    group = make_group(level) if v1 or v2 else None

    def job() -> None:
        os.close(reader)
        os.setsid()
        os.chdir(directory)
        if group is not None:
            group.add()
        if not execute:
            family.raise_family(writer, kinds)
        environ = {"HOLDFAST_RUN_ID": RUN_ID, "HOLDFAST_ATTEMPT": "1"}
        os.execve(sys.executable, [sys.executable, "-I", "-S", FAMILY, str(writer), *kinds], environ)

    def keep() -> None:
        os.setsid()
        if level is IsolationLevel.PID_NAMESPACE:
            entered = enter_pid_namespace()

            def first() -> None:
                finish_namespace(entered)
                become(job)
                os.close(writer)
                _reap_all()

            become(first)
        else:
            if level is IsolationLevel.SUBREAPER:
                libc.set_child_subreaper()
            become(job)
        os.close(writer)
        _reap_all()

    child = become(job if level is IsolationLevel.PROCESS_GROUP else keep)
    os.close(writer)
    try:
        yield Raised(_wait_ready(level, reader, child, kinds, group), reader, child)
    finally:
        _end(child, group, reader)
        os.close(reader)


def make_group(level: IsolationLevel) -> ControlGroup:
    """A group with directories in one version only."""
    from holdfast.host.contain.tree import Hierarchies, find_cgroups

    places = find_cgroups()
    only = Hierarchies(places.unified, ()) if level is IsolationLevel.CGROUP_V2 else Hierarchies(None, places.v1)
    group = create_group(f"test-{os.getpid()}-{os.urandom(4).hex()}", hierarchies=only)
    assert group is not None, "this machine lets root make groups"
    return group


def _wait_ready(
    level: IsolationLevel, reader: int, child: int, kinds: list[str], group: ControlGroup | None
) -> RunTree:
    expected, got = family.count_members(kinds), b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while len(got) < expected:
        assert poll.poll(LIMIT_S * 1000), f"{len(got)} of {expected} members came"
        chunk = os.read(reader, 4096)
        assert chunk, "the family ended before it was complete"
        got += chunk
    job = identify(child)
    assert job is not None
    if level is IsolationLevel.PROCESS_GROUP:
        return RunTree(RUN_ID, 1, None, None, (job,))
    keeper = identify(children_of(child)[0]) if level is IsolationLevel.PID_NAMESPACE else job
    return RunTree(RUN_ID, 1, group, keeper)


def children_of(pid: int) -> list[int]:
    """The living children of a process's main thread."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def _end(child: int, group: ControlGroup | None, reader: int) -> None:
    if group is not None:
        group.kill()
    pipe = os.readlink(f"/proc/self/fd/{reader}")
    for _ in range(3):
        for pid in _holders(pipe):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    for pid in (*children_of(child), child):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.waitpid(child, 0)
    if group is not None:
        wait_until(group.remove, what="the group is empty")


def _holders(pipe: str) -> list[int]:
    """Every process but ourselves that has this pipe open: the family, whatever the code under test made of it."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if any(os.readlink(f"/proc/{name}/fd/{fd}") == pipe for fd in os.listdir(f"/proc/{name}/fd")):
                    found.append(int(name))
    return found
