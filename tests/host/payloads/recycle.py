"""Run as process 1 of a fresh PID namespace: let one pid name two processes, and ask for the first one afterwards.

Prints one JSON object. The second process must start in a later clock tick than the first: that is the resolution of a
start time in /proc, and no pid comes round within one tick where pids are not handed out by hand as here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

sys.path[:0] = [sys.argv[1]]

from holdfast.host.process import pidfd, processes  # noqa: E402 - found through the argument


def start_sleeper() -> int:
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    return child


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main() -> None:
    first_pid = start_sleeper()
    first = processes.identify(first_pid)
    assert first is not None
    alive_before = processes.is_alive(first)
    end(first_pid)
    gone = not processes.is_alive(first)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    later = time.clock_gettime(time.CLOCK_BOOTTIME) + 2 * tick_s
    while time.clock_gettime(time.CLOCK_BOOTTIME) < later:
        os.sched_yield()
    with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
        file.write(str(first_pid - 1))
    second_pid = start_sleeper()
    second = processes.identify(second_pid)
    while getattr(processes.read_stat(second_pid), "state", None) == "R":
        os.sched_yield()  # on its way into pause()
    assert second is not None
    answer = {
        "same_pid": first_pid == second_pid,
        "alive_before": alive_before,
        "gone": gone,
        "first_alive": processes.is_alive(first),
        "first_held": pidfd.hold_process(first),
        "signalled": pidfd.send_signal(first, signal.SIGKILL),
        "second_alive": processes.is_alive(second),
        "second_state": getattr(processes.read_stat(second_pid), "state", None),
    }
    end(second_pid)
    print(json.dumps(answer))


main()
