"""ssh that damages what it brings, once: what a fault of memory or of a program does behind ssh's own checksums.

    SPOIL_SSH=PROGRAM SPOIL_ONCE=FILE SPOIL_AT=BYTES SPOIL_SEED=N python damaging_ssh.py WORDS-OF-SSH

The piece of standard output in which `SPOIL_AT` lies is damaged, of the first call that brings so much: `SPOIL_ONCE` is
removed with that.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
from typing import TYPE_CHECKING

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from tests.transfer.pull.damages import DAMAGES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE = 32 << 10


def main() -> int:
    """Be ssh."""
    at, draw = int(os.environ["SPOIL_AT"]), random.Random(os.environ["SPOIL_SEED"])
    child = subprocess.Popen([os.environ["SPOIL_SSH"], *sys.argv[1:]], stdout=subprocess.PIPE)
    assert child.stdout is not None
    begun = 0
    for piece in _read_until_end(child.pid, child.stdout.fileno()):
        arrives: bytes | None = piece
        if begun <= at < begun + len(piece) and _is_first():
            arrives = draw.choice(DAMAGES)(piece, draw)
        if arrives is None:
            child.kill()
            child.wait()
            return 255
        begun += len(piece)
        try:
            with open(1, "wb", buffering=0, closefd=False) as out:
                while arrives:
                    arrives = arrives[out.write(arrives) :]
        except BrokenPipeError:
            break
    child.stdout.close()
    return child.wait()


def _read_until_end(pid: int, source: int) -> Iterator[bytes]:
    """What the child writes; a shared connection that it leaves behind keeps the pipe, so its end is no end of that."""
    ended = os.pidfd_open(pid)
    try:
        while ready := select.select([source, ended], [], [])[0]:
            piece = os.read(source, PIECE) if source in ready else b""
            if not piece:
                return
            yield piece
    finally:
        os.close(ended)


def _is_first() -> bool:
    try:
        os.unlink(os.environ["SPOIL_ONCE"])
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
