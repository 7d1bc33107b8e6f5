"""A run that lives at a place behind the real sshd, for tests of verbs that reach into it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files.files import read_text_or_none
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command
    from tests.sshd import Sshd


class FarRun:
    """A run at the place ``gpu1``, which is an account of the sshd; commands about it are typed at this desk."""

    def __init__(self, box: Sshd, run_id: str, root: Path) -> None:
        self.box, self.run_id, self.root = box, run_id, root
        self.run_dir = root / run_id
        self.name = f"gpu1:{run_id}"

    def write(self, path: str, data: bytes) -> Path:
        """A file of the account in the run's directory."""
        where = self.run_dir / path
        number = self.box.users["box"]
        for directory in reversed([one for one in where.parents if not one.exists()]):
            directory.mkdir()
            os.chown(directory, number, number)
        where.write_bytes(data)
        os.chown(where, number, number)
        return where


@pytest.fixture
def far_run(ssh_desk: Sshd, holdfast: Command, isolated_environment: dict[str, str]) -> Iterator[FarRun]:
    """A run that lives behind the sshd until the test is over, alone in a root of its own: others share the account.

    The account's index is forgotten: it names the roots of tests before, whose runs may need a person (`patrol`: 1).
    """
    for path in (ssh_desk.home("box") / ".local/state/holdfast").glob("index.db*"):
        path.unlink()
    root = f"beside-{uuid.uuid4().hex[:8]}"
    config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast"
    config.mkdir(mode=0o700, exist_ok=True)
    (config / "places.toml").write_text(f'[gpu1]\nhost = "{ssh_desk.alias("box")}"\nroot = "~/{root}"\n')
    began = holdfast(
        *("run", "--on", "gpu1", "--no-code", "--env", "COLOUR=blue", "-d", "--prove", "0", "--json"),
        *("--", "sh", "-c", "echo ready; while :; do sleep 0.1; done"),
        timeout_s=LONG_S,
    ).json()
    run = FarRun(ssh_desk, began["run_id"], ssh_desk.home("box") / root)
    try:
        output = f"{run.run_dir}/attempts/1/output.log"
        wait_until(lambda: "ready" in (read_text_or_none(output) or ""), what="the job")
        yield run
    finally:
        holdfast("stop", "--now", "--wait", "20s", run.name, timeout_s=LONG_S)
        wait_until(lambda: not [line for line in ssh_desk.processes("box").values() if run.run_id in line])
