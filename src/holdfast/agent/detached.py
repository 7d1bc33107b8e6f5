"""Starts a detached process of holdfast's own: a clean interpreter that outlives whoever starts it.

Owns how such a process begins: ``python -I -S .../agent/__main__.py ENTRY WORDS`` (`__main__` lists the entries) in a
session of its own, without a terminal, in ``/``, with nothing open but its standard streams, and with the umask of
whoever starts it. The environment is handed over as a process's environment, never in words that others can read.

It must not know what the entries do. Imports only what every interpreter has loaded anyway, because `prestart` calls it
before anything else of a command is loaded.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost what prestart is there to save
    from collections.abc import Mapping

ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")


def build_command(*words: str) -> tuple[str, ...]:
    """The argument vector of an internal process: isolated interpreter, no site-packages."""
    return (sys.executable, "-I", "-S", ENTRY, *words)


def start_detached(words: tuple[str, ...], environ: Mapping[str, str], *, output: int, input_fd: int = -1) -> None:
    """Start the internal entry `words`; returns when it is on its own, which is before it has loaded anything.

    `output` becomes its standard output and error, `input_fd` its standard input (default: /dev/null); both stay ours
    to close. That no interpreter could be started after all is said on `output`.

    Raises:
        OSError: no process can be had.
    """
    command = build_command(*words)
    first = os.fork()
    if first == 0:
        _leave_and_exec(command, environ, output, input_fd)
    try:
        _, status = os.waitpid(first, 0)
    except ChildProcessError:
        # Our own parent had us ignore SIGCHLD: then nobody is told how a child ended. Source: wait(2), NOTES.
        return
    if status != 0:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _leave_and_exec(command: tuple[str, ...], environ: Mapping[str, str], output: int, input_fd: int) -> None:
    """In the child: own session, an orphan, the interpreter. Never returns."""
    code = 70
    try:
        os.setsid()
        if os.fork() != 0:
            code = 0
            os._exit(code)
        # Copies above the standard streams first: one of them may be what another is to become.
        source = os.open(os.devnull, os.O_RDONLY) if input_fd < 0 else input_fd
        copies = [os.dup(number) for number in (source, output)]
        for copy, target in ((copies[0], 0), (copies[1], 1), (copies[1], 2)):
            os.dup2(copy, target)
        os.closerange(3, 1024)
        os.chdir("/")
        os.execve(command[0], command, dict(environ))
    except OSError as error:
        os.write(2, f"{command[0]} could not be started: {error.strerror}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)
