"""Which signals end a process that does not expect them, and how a process of ours is not ended by them.

What is no request for us (USR1, which schedulers send ahead of a deadline, an alarm, a real-time signal) must neither
kill a supervisor, whose job would go on unwatched, nor a keeper. What tells of a fault of our own (SEGV, ABRT ...),
what only stops or resumes (STOP, TSTP, CONT ...) and what the kernel or Python ignores anyway keep their meaning.
"""

from __future__ import annotations

import signal

STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""Requests to a supervisor to stop its run."""
WARNINGS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""What a scheduler sends ahead of an end that it has decided. Source: sbatch(1), ``--signal``."""
STOPS_IN_FOREGROUND = STOPS | WARNINGS | {signal.SIGQUIT}
"""The same for one that is a place's own process; QUIT is the stop signal of some images (STOPSIGNAL)."""
_KEPT = frozenset(
    {
        *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
        *(signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS),
        *(signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG, signal.SIGPIPE, signal.SIGXFSZ),
    }
)
SURVIVED = frozenset(number for number in signal.valid_signals() if number not in _KEPT)
"""All that would end a process by default, may be handled, and tells of no fault of its own. Source: signal(7)."""


def hold_back() -> None:
    """Let what would end us wait until somebody here listens: a signal that is blocked is not lost, nor acted upon.

    So the first moments of a process count too, also as process 1 of a container, for which the kernel drops what has
    no handler yet. `Loop` lets them in.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SURVIVED)
