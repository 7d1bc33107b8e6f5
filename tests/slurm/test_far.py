"""A laptop, ssh to a login node, Slurm behind it: the account of the jobs is another one, without any rights."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import Slurm
from tests.sshd import Sshd

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster


@pytest.mark.timeout(240)
@pytest.mark.requirement("SLM-01")
def test_a_run_through_ssh_is_the_login_accounts_job(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sshd.started(options="PermitUserEnvironment yes") as sshd, Slurm.started(accounts=sshd.root / "etc") as slurm:
        monkeypatch.setenv("HOLDFAST_SSH", str(sshd.program))
        # Where the cluster's configuration is, as a login node knows it.
        home = sshd.home("box")
        (home / ".ssh").mkdir(exist_ok=True)
        (home / ".ssh" / "environment").write_text(f"SLURM_CONF={slurm.conf}\n")
        for path in (home / ".ssh", home / ".ssh" / "environment"):
            os.chown(path, sshd.users["box"], sshd.users["box"])
        code = tmp_path / "code"
        code.mkdir()

        def desk(*words: str) -> str:
            command = [sys.executable, "-m", "holdfast", *words]
            done = subprocess.run(command, cwd=code, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            return done.stdout

        desk("place", "add", "lab", sshd.alias("box"), "--kind", "slurm", "--root", f"{home}/runs", "--slurm", "time=5")
        assert "22.05.8, cluster hf, 2 nodes, at most 4 cards on one" in desk("place", "show", "lab")
        name = desk("run", "--on", "lab", "-d", "--", "sh", "-c", "id -un; hostname").strip()
        desk("wait", name)
        who, host = desk("logs", name).split()
        assert (who, host in {"n1", "n2"}) == ("box", True)
        assert "succeeded" in desk("ls", "--on", "lab")
        (job,) = slurm.call("squeue", "--states=all", "--noheader", "--format=%U|%T|%l").split()
        assert job == f"{sshd.users['box']}|COMPLETED|5:00"
