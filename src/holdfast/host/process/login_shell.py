"""Asks this account's login shell for its environment: bounded in time and size, with nothing to answer its questions.

The shell is started as login(1) does (a dash before its name), which every kind understands, and interactive: many set
up conda or modules only then. Its input is empty and it has no terminal, so that a question gets no answer instead of
waiting for one. What it prints besides is told apart by a nonce. It leads a session of its own, which is killed.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import subprocess
from typing import TYPE_CHECKING

from holdfast.core.control_characters import one_line
from holdfast.host.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_S = 30.0
"""Modules on a cold network disk take seconds; what takes longer waits for something that will not come."""
MOST_BYTES = 4 << 20
LAST_WORDS = 2048
OF_THE_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})
"""What a shell sets of itself and of its working directory."""

_NO_TERMINAL = ("job control", "terminal process group", "access tty")


class LoginShellSilent(Exception):
    """There is no environment; the message says why, and what the shell said last."""


def find_login_shell(environ: Mapping[str, str]) -> str:
    """The shell of the account, else ``SHELL``, else sh."""
    try:
        found = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        found = ""
    return found or environ.get("SHELL") or "/bin/sh"


def read_login_environment(
    environ: Mapping[str, str], *, shell: str | None = None, limit_s: float = LIMIT_S
) -> dict[str, str]:
    """What a command has in its environment that is typed in a login shell begun with `environ`.

    Raises:
        LoginShellSilent: it could not be started, said too much, or did not come so far within `limit_s` seconds.
    """
    shell = shell or find_login_shell(environ)
    nonce = os.urandom(16).hex()
    # Read alike by sh, csh and fish; NUL ends each variable, since a value may hold line feeds.
    line = f"echo {nonce}; /usr/bin/env -0; echo {nonce}"
    argv = (f"-{os.path.basename(shell)}", "-ic", line)
    try:
        # Not os.posix_spawn: a Python that was built with a glibc before 2.26 (conda, uv) has no `setsid` there.
        child = subprocess.Popen(
            argv,
            executable=shell,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise LoginShellSilent(f"{shell} could not be started: {error.strerror}") from error
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout as out, child.stderr as err:
        try:
            return _read(out.fileno(), err.fileno(), f"{nonce}\n".encode(), shell, limit_s)
        finally:
            # Not reaped yet, so its number is still its own; it leads its own group.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _read(out: int, err: int, mark: bytes, shell: str, limit_s: float) -> dict[str, str]:
    found, said, end = bytearray(), b"", monotonic_s() + limit_s
    poller = select.poll()
    for descriptor in (out, err):
        poller.register(descriptor, select.POLLIN)
    while True:
        left_ms = int((end - monotonic_s()) * 1000)
        ready = poller.poll(left_ms) if left_ms > 0 else []
        if not ready:
            raise LoginShellSilent(f"{shell} did not come to its prompt within {limit_s:g} s{_quote(found, said)}")
        # Errors first: when its output has ended, what it said last is there already.
        for descriptor, _ in sorted(ready, key=lambda one: one[0] != err):
            chunk = os.read(descriptor, 1 << 16)
            if descriptor == err:
                said = (said + chunk)[-LAST_WORDS:]
                if not chunk:
                    poller.unregister(err)
                continue
            if not chunk:
                raise LoginShellSilent(f"{shell} ended before its prompt{_quote(found, said)}")
            found += chunk
            begin = found.find(mark)
            if begin >= 0 and (stop := found.find(mark, begin + len(mark))) >= 0:
                return _parse(bytes(found[begin + len(mark) : stop]))
            if len(found) > MOST_BYTES:
                raise LoginShellSilent(f"{shell} printed more than {MOST_BYTES >> 20} MiB")


def _parse(data: bytes) -> dict[str, str]:
    pairs = (item.partition(b"=") for item in data.split(b"\0"))
    named = {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals and name}
    return {name: value for name, value in named.items() if name not in OF_THE_SHELL}


def _quote(out: bytes | bytearray, err: bytes) -> str:
    said = [line for data in (bytes(out[-LAST_WORDS:]), err) for line in _list_lines(data)[-1:]]
    return f"; it said last: {one_line(' / '.join(said), 300)}" if said else ""


def _list_lines(data: bytes) -> list[str]:
    """The lines that say something: a shell without a terminal complains of that each time."""
    lines = data.decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.strip() and not any(words in line for words in _NO_TERMINAL)]
