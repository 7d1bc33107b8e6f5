"""A place whose jobs get the environment of a login shell: programs that only that one finds, and its secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command
    from tests.sshd import Sshd

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]
CANARY = "hf_CanaryOfALoginShell0123456789abcd"


@pytest.fixture
def bash_box(ssh_desk: Sshd, isolated_environment: dict[str, str]) -> Iterator[Path]:
    """The place ``gpu1``: an account whose login shell has a program on its PATH, and a secret; answers its home."""
    config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast"
    config.mkdir(mode=0o700, exist_ok=True)
    alias = ssh_desk.alias("chatty")
    (config / "places.toml").write_text(f'[gpu1]\nhost = "{alias}"\nroot = "~/login"\nenv_from = "login"\n')
    home = ssh_desk.home("chatty")
    profile, tool = home / ".bash_profile", home / "opt" / "mytrain"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "trained with ${HF_TOKEN:+a token} in $SCRATCH"\n')
    tool.chmod(0o755)
    profile.write_text(
        f". ~/.bashrc\nread -p 'Which project? ' x\nexport PATH=$HOME/opt:$PATH HF_TOKEN={CANARY} SCRATCH=$HOME/opt\n"
    )
    for path in (tool.parent, tool, profile):
        os.chown(path, ssh_desk.users["chatty"], ssh_desk.users["chatty"])
    yield home
    profile.unlink()


def test_a_job_finds_what_a_login_shell_finds(bash_box: Path, holdfast: Command) -> None:
    done = holdfast("run", "--on", "gpu1", "--no-code", "--data", "$SCRATCH", "--", "mytrain", timeout_s=LONG_S)
    assert (done.code, done.out) == (0, f"trained with a token in {bash_box}/opt\n"), done.err
    # The next attempt has it too, though its command comes without a login.
    (run_dir,) = (bash_box / "login").glob("2*")
    again = holdfast("restart", f"gpu1:{run_dir.name}", timeout_s=LONG_S)
    assert again.code == 0, again.err
    assert holdfast("wait", f"gpu1:{run_dir.name}", timeout_s=LONG_S).code == 0
    assert "a token" in (run_dir / "attempts/2/output.log").read_text()
    # A secret of the login shell is in no file.
    for path in bash_box.rglob("*"):
        if path.is_file() and path.name != ".bash_profile":
            assert CANARY.encode() not in path.read_bytes(), path
    measured = holdfast("place", "probe", "gpu1", "--json", timeout_s=LONG_S)
    facts = json.loads(measured.out)["facts"]
    assert (facts["login_path"].startswith(f"{bash_box}/opt:"), CANARY in measured.out) == (True, False)
    pushed = holdfast("push", "gpu1", __file__, "$SCRATCH/in", timeout_s=LONG_S)
    assert f"gpu1:{bash_box}/opt/in: 1 file" in pushed.out, pushed.err
    gone = holdfast("run", "--on", "gpu1", "--no-code", "-d", "--", "no-such-program", timeout_s=LONG_S)
    assert (gone.code, f"PATH={bash_box}/opt:" in gone.err) == (78, True)
    assert "a login shell's, read 20" in gone.err
    # A login that comes to no environment is refused before there is a run, once it is read anew.
    (bash_box / ".bash_profile").write_text("echo 'the licence server is away' >&2; exit 3\n")
    warned = holdfast("place", "probe", "gpu1", timeout_s=LONG_S)
    assert "the login shell gives no environment: /bin/bash ended before its prompt" in warned.out + warned.err
    refused = holdfast("run", "--on", "gpu1", "--no-code", "-d", "--", "true", timeout_s=LONG_S)
    assert (refused.code, "the login shell gives no environment" in refused.err) == (78, True)
