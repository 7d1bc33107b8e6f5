"""Give a message to a command of the user's: as JSON on its standard input, bounded, in a session of its own."""

from __future__ import annotations

import os
import signal

from .problem import NotDelivered

COMMAND_LIMIT_S = 20.0


def run_hook(command: tuple[str, ...], body: bytes) -> None:
    """Run `command` (no shell) with `body` on its input, in the home directory, whoever tells.

    Raises:
        NotDelivered: it could not be run, failed, or took too long, and was then ended with all of its group.
    """
    import subprocess

    name, home = os.path.expanduser(command[0]), os.path.expanduser("~")
    cwd = home if os.path.isabs(home) and os.access(home, os.X_OK) else "/"
    try:
        hook = subprocess.Popen((name, *command[1:]), stdin=subprocess.PIPE, cwd=cwd, start_new_session=True)
    except OSError as error:
        raise NotDelivered(f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        # What it does not read is its own affair.
        hook.communicate(body, timeout=COMMAND_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(hook.pid, signal.SIGKILL)
        hook.communicate()
        raise NotDelivered(f"{command[0]} took longer than {COMMAND_LIMIT_S:.0f} s and was ended") from None
    if hook.returncode:
        raise NotDelivered(f"{command[0]} ended with {hook.returncode}")
