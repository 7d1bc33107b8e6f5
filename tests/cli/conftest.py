"""The command line under test: the real program in a process of its own, in the test's own environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.places import black_hole, met_box, places
from tests.json_forms import find_output_faults
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Protocol

    class Command(Protocol):
        """Runs the program to its end."""

        def __call__(
            self,
            *args: str,
            cwd: Path | str | None = None,
            env: Mapping[str, str | None] | None = None,
            stdin: str | None = None,
            timeout_s: float = LIMIT_S,
        ) -> Ended: ...


__all__ = ["black_hole", "met_box", "places"]

ENTRY = (sys.executable, "-m", "holdfast")
"""How tests start the program; without the installed script, so that the working tree is what runs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str
    arguments: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Standard output as one JSON object; it must be a record of its verb in the schema."""
        value = json.loads(self.out)
        assert isinstance(value, dict), self
        assert value["schema"] == 1, self
        faults = find_output_faults(self.arguments, value) if self.arguments else []
        assert not faults, faults[:5]
        return value


@pytest.fixture
def holdfast(isolated_environment: dict[str, str], tmp_path: Path) -> Command:
    """Run ``holdfast ARGS`` in `tmp_path`; a value None in `env` removes the variable."""

    def run(
        *args: str,
        cwd: Path | str | None = None,
        env: Mapping[str, str | None] | None = None,
        stdin: str | None = None,
        timeout_s: float = LIMIT_S,
    ) -> Ended:
        environ = {**os.environ, **(env or {})}
        done = subprocess.run(
            [*ENTRY, *args],
            cwd=cwd or tmp_path,
            env={name: value for name, value in environ.items() if value is not None},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout_s,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr, args)

    return run
