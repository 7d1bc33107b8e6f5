"""Commands of the desk that go on while a test does something else."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.cli.conftest import ENTRY
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Follower:
    """A command of the desk that follows a run, and what it has written so far."""

    def __init__(self, directory: Path, *words: str, env: Mapping[str, str] | None = None) -> None:
        """Start it; what it writes goes to files of its own."""
        self.words = words
        name = "-".join(word.strip("-") for word in words[:2])
        self._files = [directory / f"{name}.{kind}" for kind in ("out", "err")]
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self._process = subprocess.Popen(
                [*ENTRY, *words], stdout=out, stderr=err, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
            )

    @property
    def out(self) -> bytes:
        """Its standard output."""
        return self._files[0].read_bytes()

    @property
    def err(self) -> str:
        """Its standard error."""
        return self._files[1].read_text()

    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def end(self, limit_s: float) -> int:
        """Its exit code, once it has ended by itself."""
        wait_until(self.is_over, limit_s, what=f"the end of {self.words}")
        return self._process.returncode

    def kill(self) -> None:
        """End it, if it goes on."""
        self._process.kill()
        self._process.wait()
