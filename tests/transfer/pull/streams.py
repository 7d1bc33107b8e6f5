"""A box for pulls: this machine's own entries as processes, and a link that a test can damage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import holdfast
from holdfast.model.errors import CutOff
from holdfast.model.place import Place
from holdfast.transport.base import Done

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.transfer.box import Box

ENTRIES = Path(holdfast.__file__).parent / "agent" / "__main__.py"
PIECE = 1 << 16


class PullBox:
    """`spoil` gets each piece of a stream and its offset, and answers what arrives: None cuts the link there."""

    def __init__(self, place: str = "gpu1") -> None:
        self.place = Place(place)
        self.spoil: Callable[[bytes, int], bytes | None] = lambda data, _at: data
        self.streams = self.carried = 0

    def as_box(self) -> Box:
        return cast("Box", self)

    def prepare(self, *, sends: bool) -> None:
        assert sends

    def run(self, argv: Sequence[str], **_options: object) -> Done:
        words = [sys.executable, "-I", "-S", str(ENTRIES), *argv[1:]]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=os.environ)
        return Done(done.returncode, done.stdout, done.stderr)

    def follow(
        self,
        argv: Sequence[str],
        *,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
        stdin_fd: int,
        **_options: object,
    ) -> int:
        self.streams += 1
        at = 0
        words = [sys.executable, "-I", "-S", str(ENTRIES), *argv[1:]]
        with subprocess.Popen(words, stdin=stdin_fd, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                while data := os.read(process.stdout.fileno(), PIECE):
                    arrives = self.spoil(data, at)
                    at += len(data)
                    if arrives is None:
                        raise CutOff("the link was cut")
                    self.carried += len(arrives)
                    out(arrives)
                err(process.stderr.read())
            finally:
                process.kill()
        return process.returncode
