"""A desk with one place, whose commands are real processes; and the runs that they leave there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.agent.killing import is_busy
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACE = "box"


class Desk:
    """A tree of code, a place `box` with a runs root, and commands that are typed in the tree."""

    def __init__(self, tmp_path: Path, root: str, *, host: str | None = None) -> None:
        self.root = Path(root)
        self._before = self._list_all()
        self.tree = tmp_path / "tree"
        self.tree.mkdir()
        (self.tree / "train.py").write_text("print('trained')\n")
        config = Path(os.environ["XDG_CONFIG_HOME"], "holdfast")
        config.mkdir(exist_ok=True)
        self.places = config / "places.toml"
        reached = f'kind = "ssh"\nhost = "{host}"' if host is not None else 'kind = "local"'
        self.places.write_text(f'[{PLACE}]\n{reached}\nroot = "{root}"\n')
        self.places.chmod(0o600)

    def run(
        self, *words: str, environ: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """``holdfast run --on box WORDS``."""
        return self.say("run", "--on", PLACE, *words, environ=environ, limit_s=limit_s)

    def say(
        self, *words: str, environ: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """``holdfast WORDS``, typed in the tree."""
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            cwd=self.tree,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def list_runs(self) -> set[str]:
        """The ids of the runs there that were not there before this desk: a box is shared by tests, as by people."""
        return self._list_all() - self._before

    def _list_all(self) -> set[str]:
        return {name for name in os.listdir(self.root) if not name.startswith(".")} if self.root.is_dir() else set()

    def ended(self, run_id: str) -> int:
        """The exit code of a run, once nothing of it is left."""
        path = self.root / run_id / "attempts/1/exit.json"
        wait_until(path.exists, what=f"{run_id} is over")
        wait_until(lambda: not is_busy(str(self.root / run_id)), what=f"nothing of {run_id} is left")
        return int(json.loads(path.read_text())["exit_code"])

    def clear(self) -> None:
        """Wait until every run is over."""
        for run_id in self.list_runs():
            self.ended(run_id)
