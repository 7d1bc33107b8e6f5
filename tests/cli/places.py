"""Places for tests of what a desk asks of several: boxes of this very machine, and a black hole."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.transfer.boxes import MetBox, remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def met_box() -> Iterator[MetBox]:
    made = MetBox()
    yield made
    remove_tree(made.root)


@pytest.fixture
def places(met_box: MetBox, isolated_environment: dict[str, str], tmp_path: Path) -> Callable[..., Path]:
    """Write places.toml: `gpu1` is a box of this very machine with a runs root of its own; more are hosts of ssh."""

    def configure(**hosts: str) -> Path:
        if not (tmp_path / "gpu1").exists():
            (tmp_path / "gpu1").mkdir()
            # The bundle is there already; that a desk pushes it `tests/transfer` proves.
            subprocess.run(["/bin/cp", "-a", f"{met_box.root}/.agent-{os.geteuid()}", tmp_path / "gpu1"], check=True)
        lines = [f'[gpu1]\nkind = "local"\nroot = "{tmp_path}/gpu1"\n']
        lines += [f'[{name}]\nkind = "ssh"\nhost = "{host}"\n' for name, host in hosts.items()]
        directory = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast"
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / "places.toml").write_text("\n".join(lines))
        return tmp_path

    return configure


@pytest.fixture
def black_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host of ssh whose port takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config, program = tmp_path / "ssh_config", tmp_path / "ssh"
        config.write_text(f"Host hole\n  HostName 127.0.0.1\n  Port {listener.getsockname()[1]}\n")
        program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("HOLDFAST_SSH", str(program))
        yield "hole"
