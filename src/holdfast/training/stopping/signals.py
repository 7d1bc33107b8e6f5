"""Signal handlers that only set a flag, in the trainer and in the processes it forks (LIB-01, B-17).

A handler runs between two bytecodes of whatever the main thread was doing: in the middle of a save, of an optimizer
step, with a lock held. So it stores a number and a time, and everything else happens at the next step boundary.
"""

from __future__ import annotations

import _thread
import fcntl
import functools
import mmap
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""TERM: launchers and schedulers. INT: Ctrl-C. USR1: Slurm's ``--signal=USR1@300``. HUP: the terminal went away."""

REPEAT_S: Mapping[int, float] = {signal.SIGTERM: 3.0, signal.SIGINT: 1.0}
"""A repetition within this time is the same request: torchrun forwards a TERM or INT that the whole group got already
(torch/distributed/elastic, ``close(death_sig)``), and Slurm signals each process of a step and through srun again.
Later than that it is the second request, which gets the default action."""

PARENT_LAG_S = 0.2
"""How long a forked child that got a TERM waits to hear whether its parent got one too."""

PARENT_LEAD_S = 0.5
"""A TERM that reaches a child later than this after its parent's was meant for the child alone."""

SPARED_S = 30.0
"""How long a child lives on after a TERM that it let pass: a parent that meant it is not kept waiting for ever."""

WAKE = signal.SIGURG
WAKE_AFTER_S = (0.05, 0.5, 5.0)
"""More than once: on a busy machine the main thread may not have reached its system call by the first time."""

_PAUSE_S = 0.005
# Whose handlers are in place, the newest last: hooks into fork cannot be taken back, so they ask here.
_in_charge: list[StopSignals] = []
# Of a thread that forks right now: its signal mask, and whether the trainer had been told before.
_held = threading.local()


class StopSignals:
    """Handlers for TERM, INT, USR1 and HUP that set `flag`; one object at a time, in the main thread.

    The second TERM or INT has its default action: death or `KeyboardInterrupt`. A handler that the script had
    installed before is called too, after the flag is set. INT and HUP stay ignored where they were (background jobs
    of a shell, nohup).

    Children forked while installed (worker pools, data loaders) would be the first to die of a TERM to the whole
    group, and the trainer would fail on their absence before it reaches its flag. So they let the first INT and all
    USR1 pass, and the first TERM when their parent got one at the same time; a TERM for themselves ends them as usual,
    and so does any after `restore`, because ``Pool.terminate()`` and daemonic processes at exit are told that way and
    waited for without a bound. They use handlers for that, not SIG_IGN: an ignored signal stays ignored through exec, a
    handler does not, so programs that are started from here die of a TERM as ever. A signal does not tell a Python
    handler who sent it, so this goes by time, with three limits: a parent that sits in one C call for longer than
    `PARENT_LAG_S` cannot be asked (the child dies, as it would without us); a parent that ends a child within
    `PARENT_LEAD_S` of its own TERM is misunderstood (the child dies after `SPARED_S`); and a child that forks has a
    second thread, which Python 3.12 warns of. Workers of torch's DataLoader have `shield_worker`, which has none.

    Attributes:
        flag: 0, or the number of the first signal.
        at: When that was, in seconds of `time.monotonic`.
        installed: Whether the handlers are in place.
    """

    def __init__(self, *, repeat_s: Mapping[int, float] = REPEAT_S) -> None:
        self.flag = 0
        self.at = 0.0
        self.installed = False
        self._repeat_s = repeat_s
        self._asked_at = 0.0
        self._previous: dict[int, Handler] = {}
        self._pid = os.getpid()
        self._spared: set[int] = set()
        # Shared with the forked children, two aligned doubles: when the trainer was told (0.0: not yet), and whether it
        # has let go of them.
        self._told: memoryview[float] = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")

    def install(self) -> None:
        """Put the handlers in place; in another thread than the main one nothing is done (`installed` stays False)."""
        if self.installed or threading.current_thread() is not threading.main_thread():
            return
        self._pid = os.getpid()
        self._told[1] = 0.0
        _hook_forks()
        for number in ASKING:
            before: Handler = signal.getsignal(number)
            if before is signal.SIG_IGN and number in (signal.SIGINT, signal.SIGHUP):
                continue
            self._previous[number] = before
            signal.signal(number, self._note)
        self.installed = True
        _in_charge.append(self)

    def restore(self) -> None:
        """Put the previous handlers back, where nobody else has replaced ours since; main thread only, else nothing."""
        if not self.installed or threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._previous.items():
            if signal.getsignal(number) in (self._note, self._note_in_child):
                signal.signal(number, _plain(before))
        self._previous.clear()
        self._told[1] = 1.0
        self.installed = False
        _in_charge.remove(self)

    def post(self, signum: int) -> None:
        """Set the flag as the signal would, from code: for adapters and tests."""
        self._set(signum, time.monotonic())

    def _set(self, signum: int, now: float) -> None:
        if not self.flag:
            self._told[0] = self.at = now
            self.flag = signum

    def _note(self, signum: int, frame: FrameType | None) -> None:
        """The handler. Python runs it in the main thread, possibly in the middle of a save or with a lock held."""
        now = time.monotonic()
        if self._is_second(signum, now):
            _act_by_default(signum, frame)
            return
        self._set(signum, now)
        before = self._previous.get(signum)
        if callable(before) and before is not signal.default_int_handler:
            before(signum, frame)

    def _is_second(self, signum: int, now: float) -> bool:
        if signum not in self._repeat_s:
            return False
        if not self._asked_at:
            self._asked_at = now
            return False
        return now - self._asked_at >= self._repeat_s[signum]

    def _become_child(self, *, told: bool) -> None:
        """Change the handlers in a forked child, before any of its own code runs; `told`: before it was forked."""
        self._parent, self._pid = self._pid, os.getpid()
        self._spared = {signal.SIGTERM} if told else set()
        for number, before in self._previous.items():
            ours = signal.getsignal(number) == self._note or signal.getsignal(number) == self._note_in_child
            if ours:
                signal.signal(number, _plain(before) if number == signal.SIGHUP else self._note_in_child)
        _wake_after_signals()

    def _note_in_child(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if os.getppid() == self._parent:
            if signum == signal.SIGUSR1:
                return
            if signum not in self._spared and (signum == signal.SIGINT or self._was_for_all()):
                self._spared.add(signum)
                if signum == signal.SIGTERM:
                    _start_deaf(self._leave_in_the_end, time.monotonic() + SPARED_S)
                return
        signal.signal(signum, _plain(self._previous.get(signum)))
        os.kill(os.getpid(), signum)

    def _was_for_all(self) -> bool:
        """Whether the trainer got its TERM at about the time of ours; a child waits a moment to find out."""
        arrived = time.monotonic()
        end = arrived + PARENT_LAG_S
        while not (self._told[0] or self._told[1]) and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        told, released = self._told[0], self._told[1]
        return bool(told) and not released and arrived - told <= PARENT_LEAD_S

    def _leave_in_the_end(self, end: float) -> None:
        """In a child, in a thread of its own: repeat the TERM that was let pass, unless the trainer is done."""
        while time.monotonic() < end and not self._told[1]:
            time.sleep(_PAUSE_S * 20)
        if not self._told[1]:
            os.kill(os.getpid(), signal.SIGTERM)


class ShieldedInit:
    """A `worker_init_fn` for torch's DataLoader: `shield_worker`, then the one that the loader had. Can be pickled."""

    def __init__(self, inner: Callable[[int], object] | None = None) -> None:
        self.inner = inner

    def __call__(self, worker_id: int) -> None:
        """Called by torch in the worker, after torch has set its own handlers."""
        shield_worker(worker_id)
        if self.inner is not None:
            self.inner(worker_id)


def shield_worker(worker_id: int = 0) -> None:  # noqa: ARG001 - the signature of a worker_init_fn
    """Let this loader worker survive a TERM, INT or USR1 to the whole group, until its trainer needs no more data.

    The first TERM is passed over, the second ends the worker, and so does any once the parent is gone. That never
    holds up an exit: torch asks a worker to leave through its queue, waits 5 s and only then sends a TERM, and
    multiprocessing sends daemonic processes another at exit. Torch itself installs a C handler that dies of a TERM from
    anybody but the parent (torch/csrc/DataLoader.cpp, handler_SIGTERM) after fork, so this must run in the worker:
    give `ShieldedInit` as `worker_init_fn`. A worker that is hit in the few milliseconds before that dies as without
    it. Only in the main thread of the worker; elsewhere nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    parent = os.getppid()
    passed: list[int] = []

    def pass_over(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        if os.getppid() == parent and (signum != signal.SIGTERM or not passed):
            passed.append(signum)
            return
        # Silent and without an error, as torch's own handler leaves: the trainer has let go, or is gone.
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, pass_over)


@functools.cache
def _hook_forks() -> None:
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_after_fork)


def _hold_back() -> None:
    """Keep a TERM that reaches a child in its first moments for the child's own handler, which is not there yet.

    Python forgets what it has noted before its hooks run in the child, and a pool that is left waits for that worker
    without a bound. Source: CPython, Modules/posixmodule.c, PyOS_AfterFork_Child: `_PySignal_AfterFork`.
    """
    if _in_charge:
        _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        # Asked here: a TERM to the whole group may reach the trainer and the newborn child at once.
        _held.told = bool(_in_charge[-1]._told[0])  # noqa: SLF001 - of this module


def _let_through() -> None:
    mask = _held.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork() -> None:
    if _in_charge:
        _in_charge[-1]._become_child(told=getattr(_held, "told", False))  # noqa: SLF001 - of this module
    _let_through()


def _wake_after_signals() -> None:
    """Interrupt the main thread of a forked child once more after each signal, from a thread that only waits for one.

    A handler in Python runs between two bytecodes. A signal that comes after the last of them, just before the thread
    blocks in a system call, is acted on when that call returns: never, in a worker of a ``multiprocessing.Pool`` that
    asks for work while the pool is left, which TERMs it and waits. With the default action it would have died.
    Source: Python's documentation of `signal`, "Execution of Python signal handlers".
    """
    if signal.getsignal(WAKE) is _ignore:
        signal.set_wakeup_fd(-1)  # the one of the child that forked this one
    elif signal.getsignal(WAKE) is not signal.SIG_DFL:
        return
    try:
        reader, writer = _open_high_pipe()
    except OSError:
        return  # no descriptor is left
    others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)
        os.close(writer)
        os.close(reader)
        return
    signal.signal(WAKE, _ignore)  # its default action is none: programs that are executed do not notice
    main = _thread.get_ident()

    def wake() -> None:
        with suppress(OSError):  # both ends were closed: it became a daemon
            while numbers := os.read(reader, 64):
                if any(number != WAKE for number in numbers):
                    for pause_s in WAKE_AFTER_S:
                        time.sleep(pause_s)
                        signal.pthread_kill(main, WAKE)

    _start_deaf(wake)


def _open_high_pipe() -> tuple[int, int]:
    """A pipe of high numbers, its end for writing without blocking.

    A child that becomes a daemon closes all that it has and opens files anew, from the lowest number up. Not as high as
    the limit may be: the kernel's table of a process reaches up to its highest descriptor.

    Raises:
        OSError: there are no descriptors left.
    """
    low = os.pipe()
    least = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1024) * 3 // 4
    try:
        reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, least) for end in low)
    finally:
        for end in low:
            os.close(end)
    os.set_blocking(writer, False)
    return reader, writer


def _start_deaf(work: Callable[..., object], *arguments: object) -> None:
    """Start a thread that takes no signal: of those that the main thread blocks, to wait for them, none goes there.

    Not threading.Thread: its locks may be held by what a handler interrupted.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _thread.start_new_thread(work, arguments)
    except RuntimeError:
        return  # no process is left, and all is as it would be without
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Nothing: the system call was interrupted, and that was all."""


def _act_by_default(signum: int, frame: FrameType | None) -> None:
    """The second request: KeyboardInterrupt for INT, death for TERM."""
    if signum == signal.SIGINT:
        signal.signal(signum, signal.default_int_handler)
        signal.default_int_handler(signum, frame)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def _plain(handler: Handler) -> Callable[[int, FrameType | None], object] | int:
    """A handler that can be given back to `signal.signal`: one that C code had set is unknown to Python (None)."""
    return signal.SIG_DFL if handler is None else handler
