"""Use cgroup v2 as holdfast would and print what happened, as JSON: a memory hog is killed, a tree is emptied.

Works beside the cgroup it starts in (siblings of it), so it needs no right on its own directory.
"""

from __future__ import annotations

import json
import os
import select
import signal

LIMIT_BYTES = 8 * 2**20
TREE = 6


def own_parent() -> str:
    with open("/proc/self/cgroup") as file:
        path = file.read().strip().partition("::")[2]
    return "/sys/fs/cgroup" + os.path.dirname(path)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def read_events(path: str) -> dict[str, int]:
    with open(path) as file:
        return {key: int(value) for key, value in (line.split() for line in file)}


def count(place: str) -> int:
    with open(f"{place}/cgroup.procs") as file:
        return len(file.read().split())


def run_hog(parent: str) -> dict[str, int]:
    place = f"{parent}/hog"
    os.mkdir(place)
    write(f"{place}/memory.max", str(LIMIT_BYTES))
    pid = os.fork()
    if pid == 0:
        write(f"{place}/cgroup.procs", "0")
        held = bytearray(3 * LIMIT_BYTES)
        held[::4096] = b"x" * len(held[::4096])
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found = {"code": code, "oom_kill": read_events(f"{place}/memory.events")["oom_kill"]}
    os.rmdir(place)
    return found


def spawn_escapee(place: str) -> None:
    """A process in a session of its own, ignoring TERM, whose parent is gone: nothing but its cgroup holds it."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            write(f"{place}/cgroup.procs", "0")
            os.write(write_end, b"x")
            while True:
                signal.pause()
        os._exit(0)
    os.waitpid(pid, 0)
    os.read(read_end, 1)
    os.close(read_end)
    os.close(write_end)


def empty_tree(parent: str) -> dict[str, int]:
    place = f"{parent}/tree"
    os.mkdir(place)
    os.mkdir(f"{place}/deeper")
    for number in range(TREE):
        spawn_escapee(place if number % 2 else f"{place}/deeper")
    before = count(place) + count(f"{place}/deeper")
    with open(f"{place}/cgroup.events") as events:
        poller = select.poll()
        poller.register(events, select.POLLPRI | select.POLLERR)
        write(f"{place}/cgroup.kill", "1")
        while read_events(f"{place}/cgroup.events")["populated"]:
            assert poller.poll(60_000), "the tree was not emptied"
            events.seek(0)
            events.read()
    after = count(place) + count(f"{place}/deeper")
    os.rmdir(f"{place}/deeper")
    os.rmdir(place)
    return {"before": before, "after": after}


def main() -> None:
    parent = own_parent()
    owner = os.stat(parent).st_uid
    print(json.dumps({"uid": os.getuid(), "owner": owner, "hog": run_hog(parent), "tree": empty_tree(parent)}))


if __name__ == "__main__":
    main()
