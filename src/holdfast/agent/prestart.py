"""Spawns a supervisor ahead of time, so that its imports overlap argument parsing.

`holdfast run` does this as its first act and hands the run over once that exists: the job begins some 100 ms earlier.
The waiting process holds nothing and has done nothing; it leaves without a word when its pipe closes without one.
"""

from __future__ import annotations

import os

from .detached import start_detached

TYPE_CHECKING = False
if TYPE_CHECKING:  # see `detached`
    from collections.abc import Mapping


class WaitingSupervisor:
    """The waiting supervisor of this process, if there is one."""

    def __init__(self) -> None:
        """None is waiting."""
        self._pipe: int | None = None
        self._environ: dict[str, str] = {}

    def start(self) -> None:
        """Start it. That no process can be had is no error here: the start of the run will say so."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            start_detached(("supervise", "--wait"), os.environ, output=null, input_fd=read_end)
            self._pipe, self._environ = write_end, dict(os.environ)
        except OSError:
            os.close(write_end)
        finally:
            os.close(read_end)
            os.close(null)

    def hand_over(self, words: tuple[str, ...], environ: Mapping[str, str]) -> bool:
        """Give it its run; False when none waits (any more), or when it was started with another environment."""
        if self._pipe is None:
            return False
        pipe, self._pipe = self._pipe, None
        try:
            if dict(environ) != self._environ:
                return False
            os.write(pipe, b"\0".join(os.fsencode(word) for word in words))
        except BrokenPipeError:
            return False
        finally:
            os.close(pipe)
        return True


STARTS_NOTHING_HERE = frozenset({"--dry-run", "--help", "--help-all", "-h", "--on"})
PRESTARTED = WaitingSupervisor()
"""The one of this process; only `holdfast run` ever starts it."""


def prestart_for(arguments: list[str]) -> None:
    """Start one if this command line is going to start a run on this machine."""
    if arguments[:1] != ["run"]:
        return
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if not STARTS_NOTHING_HERE & set(own) and not any(word.startswith("--on=") for word in own):
        if os.getpid() == 1:
            import signal

            # We become the supervisor ourselves, and the kernel drops what process 1 has no handler for.
            stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
            signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        elif "SLURM_JOB_ID" not in os.environ:
            PRESTARTED.start()
