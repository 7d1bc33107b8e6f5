"""What `holdfast.host.process.pidfd` and `offload` do here, as JSON. ``SOURCE`` is the directory of the package."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

sys.path.insert(0, sys.argv[1])
from holdfast.host.process import pidfd
from holdfast.host.process.offload import Offload, OffloadFailed

LEADER_LEAVES = """
import ctypes, os, threading
threading.Thread(target=os.read, args=(0, 1)).start()
os.write(1, b"x")
ctypes.CDLL(None).pthread_exit(None)
"""


def start_sleeper() -> int:
    """A child that waits for a signal."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def find_thread_lives_on() -> bool:
    """Whether a process whose main thread has left is held as alive."""
    read_end, write_end = os.pipe()
    said, saying = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(read_end, 0)
        os.dup2(saying, 1)
        os.closerange(3, 100)
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", LEADER_LEAVES])
    os.close(read_end)
    os.read(said, 1)
    while open(f"/proc/{pid}/stat", "rb").read().rpartition(b")")[2].split()[0] != b"Z":  # noqa: SIM115 - a payload
        time.sleep(0.01)
    held = pidfd.hold(pid)
    assert held is not None
    lives = not held.has_ended()
    held.send(signal.SIGKILL)
    os.close(write_end)
    held.wait(60)
    held.reap(block=True)
    held.close()
    return lives


def find_given_up() -> bool:
    """Whether work that hangs is given up, and its child is gone and reaped."""
    work = Offload(lambda: time.sleep(1000))
    try:
        work.wait(0.05)
    except OffloadFailed:
        return not os.path.exists(f"/proc/{work.pid}")
    return False


def main() -> None:
    """All of it."""
    pid = start_sleeper()
    held = pidfd.hold(pid)
    assert held is not None
    answer = {"has_descriptor": held.descriptor is not None, "alive": not held.has_ended()}
    answer["waited_in_vain"] = not held.wait(0.02)
    answer["other_start"] = pidfd.hold(pid, held.start_ticks + 1) is None
    answer["signalled"] = held.send(signal.SIGTERM)
    answer["ended"] = held.wait(60)
    answer["zombie_has_ended"] = os.path.exists(f"/proc/{pid}") and held.has_ended()
    answer["reaped"] = held.reap(block=True)
    answer["reaped_twice"] = held.reap(block=False)
    answer["signal_after_that"] = held.send(signal.SIGTERM)
    answer["held_after_that"] = pidfd.hold(pid) is None
    held.close()
    answer["thread_lives_on"] = find_thread_lives_on()
    answer["offload"] = Offload(lambda: 7).wait(20.0)
    answer["offload_given_up"] = find_given_up()
    print(json.dumps(answer))


main()
