"""A supervisor that is forked before anybody knows of which run: it loads its modules on another core meanwhile.

`holdfast run` forks it as its very first act and hands it the run directory once that exists; so the job starts some
twenty milliseconds earlier. It holds nothing and does nothing until then, and leaves when the pipe closes without a
word. Imports nothing at the top but what an interpreter has loaded anyway.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost what this module is there to save
    from collections.abc import Mapping

PRELOADED = (
    "holdfast.agent.supervisor",
    "holdfast.agent.preflight",
    "holdfast.agent.starting",
    "holdfast.agent.promises",
    "holdfast.host.packages",
    "holdfast.host.rulesfile",
    "ctypes",
    "fcntl",
    "zlib",
)
"""What every start needs."""


class Ahead:
    """The waiting process, as its parent sees it."""

    def __init__(self) -> None:
        """None is waiting."""
        self._pipe: int | None = None
        self._environ: dict[str, str] = {}

    def fork(self) -> None:
        """Fork it. That no process can be had is no error here: the start will say so."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            first = os.fork()
        except OSError:
            os.close(read_end)
            os.close(write_end)
            return
        if first == 0:
            os.close(write_end)
            _wait_for_run(read_end)
        os.close(read_end)
        os.waitpid(first, 0)
        self._pipe, self._environ = write_end, dict(os.environ)

    def take(self, arguments: tuple[str, ...], environ: Mapping[str, str], log_path: str) -> bool:
        """Hand it the run; False when there is none (any more), or when it was forked with another environment."""
        if self._pipe is None:
            return False
        descriptor, self._pipe = self._pipe, None
        try:
            if dict(environ) != self._environ:
                return False
            os.write(descriptor, b"\0".join(os.fsencode(word) for word in (log_path, *arguments)))
        except BrokenPipeError:
            return False
        finally:
            os.close(descriptor)
        return True


WAITING = Ahead()
"""The one of this process; only `holdfast run` ever forks it."""


def _wait_for_run(pipe: int) -> None:
    """In the child: detach, load, wait for the word, supervise. Never returns."""
    code = 70
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        for name in PRELOADED:
            __import__(name)
        words = os.read(pipe, 1 << 16)
        if not words:
            os._exit(0)
        log_path, *arguments = (os.fsdecode(word) for word in words.split(b"\0"))
        from .launch import supervise_here

        code = supervise_here(tuple(arguments), log_path)
    finally:
        os._exit(code)


def fork_for(arguments: list[str]) -> None:
    """Fork one if this command line is going to start a run."""
    if arguments[:1] == ["run"] and not {"--dry-run", "--help", "-h"} & set(arguments):
        WAITING.fork()
