"""The smoke test and the setup of a job, as they are typed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model import wire

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def read_smoke(run_dir: str) -> dict[str, str]:
    """The finding of the smoke test of a run."""
    found = json.loads(Path(run_dir, "attempts/1", wire.PREFLIGHT).read_text())["findings"]
    return next(one for one in found if one["id"] == "smoke")


@pytest.mark.slow
@pytest.mark.requirement("PRE-12")
def test_it_is_run_once_for_each_state_of_the_code(holdfast: Command, tmp_path: Path) -> None:
    tree, ran = tmp_path / "tree", tmp_path / "ran"
    tree.mkdir()
    (tree / "job.yaml").write_text(f"command: ['true']\nsmoke: ['sh', '-c', 'echo x >> {ran}']\n")
    git = ("git", "-C", str(tree), "-c", "user.name=me", "-c", "user.email=me@x")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run((*git, *words), check=True)
    for more, expected in (((), "x\n"), ((), "x\n"), (("--env", "SIZE=2"), "x\nx\n")):
        done = holdfast("run", *more, str(tree / "job.yaml"))
        assert (done.code, ran.read_text()) == (0, expected), done.err
    # What was changed since has no name: it is run each time.
    (tree / "train.py").write_text("print(1)\n")
    (tree / "job.yaml").write_text((tree / "job.yaml").read_text() + "seed: 1\n")
    assert holdfast("run", str(tree / "job.yaml")).code == 0
    assert ran.read_text() == "x\nx\nx\n"
    # Skipped is said.
    assert holdfast("run", "--skip-smoke", "--runs", str(tmp_path / "runs"), str(tree / "job.yaml")).code == 0
    assert ran.read_text() == "x\nx\nx\n"
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert read_smoke(str(run_dir))["evidence"] == "was skipped, as asked for (skip_smoke)"


def test_asked_about_it_starts_nothing(holdfast: Command, tmp_path: Path) -> None:
    done = holdfast("preflight", "--smoke", f"touch {tmp_path}/ran", "--", "true")
    assert ("is run before the start" in done.out, (tmp_path / "ran").exists()) == (True, False), done.err


@pytest.mark.slow
def test_setup_of_a_job_runs_before_it_and_only_from_a_file_of_ones_own(holdfast: Command, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("command: [sh, -c, 'echo \"$A$B\"']\nsetup: |\n  A=1; export A\n  export B=2\n")
    done = holdfast("run", str(job))
    assert (done.code, done.out) == (0, "12\n"), done.err
    # A program that only the setup brings is no failure of a check.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mytrain").symlink_to("/bin/true")
    assert holdfast("run", "--setup", f"PATH={tmp_path}/bin:$PATH", "--", "mytrain").code == 0
    failing = holdfast("run", "--setup", "true", "--setup", "no-such-command", "--", "true")
    words = "line 2 of setup failed with exit code 127: no-such-command"
    assert (failing.code, words in failing.out, f"why: environment (certain): {words}" in failing.err) == (
        127,
        True,
        True,
    )
    job.chmod(0o666)
    refused = holdfast("run", str(job))
    assert (refused.code, "job.yaml:2: setup: is taken from a file of your own alone" in refused.err) == (65, True)
    secret = holdfast("run", "--setup", "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789", "--", "true")
    assert (secret.code, "hf_abc" in secret.err) == (64, False), secret.err
