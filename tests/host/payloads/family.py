"""A family of processes that is hard to end: started by path, or called after a fork.

Each member writes one byte to the descriptor it was given when it is in place, and keeps that descriptor open: end of
file on the other side is the kernel's word that nobody of the family is left, whatever names, namespaces or parents
they have.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def stay(fd: int) -> NoReturn:
    os.write(fd, b".")
    while True:
        signal.pause()


def fork_and(fd: int, *steps: str) -> None:
    """One child that does the steps and stays."""
    if os.fork():
        return
    for step in steps:
        if step == "setsid":
            os.setsid()
        elif step == "fork" and os.fork():
            os._exit(0)
        elif step == "ignore":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        elif step == "stop":
            os.write(fd, b".")
            os.kill(os.getpid(), signal.SIGSTOP)
        elif step == "forget":
            # The same program without the run's marker in its environment.
            os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, str(fd)], {})
    stay(fd)


def vfork(fd: int) -> None:
    """A parent that waits in vfork: its child blocks in open(2) of a FIFO before exec, and shares its memory until
    then."""
    if os.fork():
        return
    os.mkfifo(f"/proc/self/cwd/fifo-{os.getpid()}")
    fifo = os.path.realpath(f"fifo-{os.getpid()}")
    os.write(fd, b".")
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, fd + 1, fifo, os.O_RDONLY, 0)])
    stay(fd)


def lose_leader(fd: int) -> None:
    """A process whose main thread has ended (the process shows as a zombie) while another thread lives on."""
    if os.fork():
        return
    import ctypes
    import threading

    libc = ctypes.CDLL(None)
    # SYS_exit ends the calling thread only. Source: _exit(2).
    number = 60 if os.uname().machine == "x86_64" else 93

    def go_on() -> None:
        os.write(fd, b".")
        threading.Event().wait()

    threading.Thread(target=go_on).start()
    libc.syscall(number, 0)


def bomb(fd: int) -> None:
    """A runaway chain: each process forks the next and ends, so that no list of processes is ever up to date."""
    if os.fork():
        return
    os.write(fd, b".")
    while True:
        if os.fork():
            os._exit(0)


KINDS = {
    "plain": ((),),
    "setsid": (("setsid",),),
    "double_fork": (("setsid", "fork"),),
    "ignore_term": (("ignore",),),
    "stopped": (("stop",),),
    "escapee": (("setsid", "fork", "ignore"),),
    "forgetful": (("setsid", "fork", "forget"),),
    "crowd": (("setsid", "fork", "ignore"),) * 200,
}
SPECIAL = {"vfork": vfork, "lost_leader": lose_leader, "bomb": bomb}


def raise_family(fd: int, kinds: list[str]) -> NoReturn:
    """Start one member (200 for a crowd) of each kind, then stay as their parent."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for kind in kinds:
        if kind in SPECIAL:
            SPECIAL[kind](fd)
        for steps in KINDS.get(kind, ()):
            fork_and(fd, *steps)
    stay(fd)


def count_members(kinds: list[str]) -> int:
    """How many bytes come before the family is complete."""
    return 1 + sum(len(KINDS.get(kind, ((),))) for kind in kinds)


if __name__ == "__main__":
    raise_family(int(sys.argv[1]), sys.argv[2:])
