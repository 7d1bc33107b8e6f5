"""What is on the disk when the exit record is: told by the order of the system calls, since no test cuts the power."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.model import wire

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = pytest.mark.process


@pytest.mark.slow
def test_all_records_of_an_end_are_synced_before_the_exit_record_counts(drive: Drive, tmp_path: Path) -> None:
    """Seen after a power cut: `exit.json` right, the manifest and the findings empty, verdict and last words gone."""
    trace = tmp_path / "trace"
    calls = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-qq",
        "-o",
        str(trace),
        "-e",
        "trace=fsync,rename",
        "-e",
        "signal=none",
    ]
    command = [sys.executable, "-m", "holdfast", "run", "--", "sh", "-c", "echo last words; exit 3"]
    done = subprocess.run([*calls, *command], env=drive.environ, cwd=drive.workdir, check=False, capture_output=True)
    assert done.returncode == 3, done.stderr
    lines = trace.read_text().splitlines()
    (end,) = [number for number, line in enumerate(lines) if "rename(" in line and f'/{wire.EXIT}"' in line]
    synced = [line.split(">")[0].rpartition("/")[2] for line in lines[:end] if "fsync(" in line]
    wanted = {wire.PREFLIGHT, wire.POSTFLIGHT, wire.MANIFEST, wire.VERDICT, wire.FAILURE, wire.OUTPUT}
    assert wanted <= set(synced), synced
    assert any("fsync(" in line and "/attempts/1>" in line for line in lines[end:]), "nor was the directory after it"
