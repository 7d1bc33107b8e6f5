"""Places for tests of the router: this machine by its own name, so that what is sent is like what is typed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tests.transfer.boxes import is_used
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def add_place(name: str, *, root: str, **keys: object) -> None:
    """Write a section of places.toml."""
    directory = f"{os.environ['XDG_CONFIG_HOME']}/holdfast"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    lines = [f"[{name}]", f'root = "{root}"']
    lines += [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in keys.items()]
    with open(f"{directory}/places.toml", "a", encoding="utf-8") as file:
        file.write("\n".join([*lines, "", ""]))
    os.chmod(f"{directory}/places.toml", 0o600)


class WarmLoop:
    """A runs root that has the bundle, for the tests of one file: what a desk knows of it is kept from test to test."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "runs"
        self.root.mkdir()
        self._kept = directory / "kept"

    def add(self, name: str = "loop") -> None:
        """Make it a place of this test, whose own runs lie there, too."""
        add_place(name, root=str(self.root), kind="local")
        if self._kept.exists():
            shutil.copytree(self._kept, self._known(name))

    def keep(self, name: str = "loop") -> None:
        """Keep what was learned of it, once nothing is written there any more."""
        wait_until(lambda: not is_used(f"{self.root}/.agent-"), what="the bundle is compiled")
        if not self._kept.exists() and os.path.exists(self._known(name)):
            shutil.copytree(self._known(name), self._kept)

    def _known(self, name: str) -> str:
        return f"{os.environ['XDG_STATE_HOME']}/holdfast/places/{name}"
