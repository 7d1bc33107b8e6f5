"""Kills of ``holdfast pull`` just before its n-th call that changes something, and what is at home afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from holdfast.core.pull.stream import PULLING, Wish
from holdfast.desk.pull import find_source, pull
from holdfast.desk.receipts import check_receipt
from tests.agent.killing import FRONT_NAME, build_library
from tests.rundirs import ended, make_run, own_run_id
from tests.transfer.code.repositories import list_tree

RUN = own_run_id()
"""Its own: records of a run that lie in memory, because a disk was full, are found by the id alone, and are pulled."""
OURS = ("copy.json", "receipt.json", ".holdfast-roster")
MIB = 1 << 20


class KilledPulls:
    """A run that has ended, and pulls of it that are killed: the first, or one over an earlier copy."""

    def __init__(self, top: Path, runs: str, state: str) -> None:
        """Make the run, pull it, and write to it."""
        self.run_dir = Path(make_run(runs, RUN, ended()))
        self.target, self.kept, self.library = top / FRONT_NAME, top / "kept", build_library(top)
        self.receipts = Path(state) / "holdfast" / "places" / "local" / "receipts"
        (self.run_dir / "artifacts" / "weights.bin").write_bytes(os.urandom(2 * MIB))
        (self.run_dir / "artifacts" / "old.txt").write_text("old")
        (self.run_dir / "best").symlink_to("artifacts/weights.bin")
        pull(find_source(RUN), str(self.target), Wish(str(self.run_dir)))
        self._keep(self.target, self.kept / "copy")
        self._keep(self.receipts, self.kept / "receipts")
        (self.run_dir / "artifacts" / "weights.bin").write_bytes(os.urandom(2 * MIB))
        (self.run_dir / "artifacts" / "old.txt").write_text("new")
        (self.run_dir / "artifacts" / "empty").mkdir()

    @staticmethod
    def _keep(source: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True)

    def begin(self, *, again: bool) -> None:
        """What is at home before the pull that is killed."""
        for path in (self.target, self.receipts):
            shutil.rmtree(path, ignore_errors=True)
        if again:
            self._keep(self.kept / "copy", self.target)
            self._keep(self.kept / "receipts", self.receipts)

    def kill(self, at: int, count: str = "") -> int:
        """Pull, and die before the call `at` (0: never); the exit code. `count` is a file that grows with each call."""
        told = {"LD_PRELOAD": self.library, "KILL_WHO": "front", "KILL_AT": str(at)}
        command = [sys.executable, "-m", "holdfast", "pull", RUN, str(self.target)]
        environ = {**os.environ, **told, **({"KILL_COUNT": count} if count else {})}
        return subprocess.run(command, env=environ, check=False, capture_output=True).returncode

    def count_calls(self, counter: Path, *, again: bool) -> int:
        """How many calls there are."""
        self.begin(again=again)
        assert self.kill(0, str(counter)) == 0
        return counter.stat().st_size

    def find_faults(self) -> list[str]:
        """What is wrong after a kill, and after the same command then; empty when nothing is."""
        expected, faults = list_tree(self.run_dir), []
        _, why = check_receipt("local", RUN)
        if not why and self._list() != expected:
            faults.append("a receipt holds for bytes that are not there")
        pull(find_source(RUN), str(self.target), Wish(str(self.run_dir)))
        _, why = check_receipt("local", RUN)
        if why:
            faults.append(f"the receipt of the repeated pull does not hold: {why}")
        if self._list() != expected or not (self.target / "artifacts" / "empty").is_dir():
            faults.append(f"the repeated pull did not bring the run, or left {set(self._list()) ^ set(expected)}")
        if (self.target / PULLING).exists():
            faults.append("parts were left")
        return faults

    def _list(self) -> dict[str, object]:
        return {path: data for path, data in list_tree(self.target).items() if path not in OURS}
