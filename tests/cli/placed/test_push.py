"""``holdfast push`` to a place behind the real sshd, and a job there whose data is proven before it starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import LONG_S

if TYPE_CHECKING:
    from tests.cli.conftest import Command
    from tests.sshd import Sshd

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture
def place(ssh_desk: Sshd, isolated_environment: dict[str, str]) -> Path:
    """The place ``gpu1``, whose login shell is no sh; answers its home."""
    config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast"
    config.mkdir(mode=0o700, exist_ok=True)
    (config / "places.toml").write_text(f'[gpu1]\nhost = "{ssh_desk.alias("fisher")}"\nroot = "~/pushed"\n')
    return ssh_desk.home("fisher")


@pytest.mark.slow
@pytest.mark.requirement("STOR-06")
def test_data_is_pushed_proven_and_checked_before_a_job(place: Path, holdfast: Command, tmp_path: Path) -> None:
    here = tmp_path / "set"
    here.mkdir()
    for name in ("a b.bin", "c'd.bin", "\u00e9.bin"):
        (here / name).write_bytes(name.encode() * 1000)
    planned = holdfast("push", "--dry-run", "gpu1", f"{here}/", "~/data/set one", timeout_s=LONG_S)
    assert planned.out == f"gpu1:{place}/data/set one: 3 files, 19.5 KiB of 3 files, 19.5 KiB would be sent (dry run)\n"
    assert not (place / "data").exists()
    done = holdfast("push", "--json", "gpu1", f"{here}/", "~/data/set one", timeout_s=LONG_S).json()
    assert (done["sent"], done["files"], done["directory"]) == (3, 3, f"{place}/data/set one")
    assert (place / "data/set one/c'd.bin").read_bytes() == b"c'd.bin" * 1000
    again = holdfast("push", "gpu1", f"{here}/", "~/data/set one", timeout_s=LONG_S)
    assert again.out == f"gpu1:{place}/data/set one: 3 files, 19.5 KiB, all there and proven; nothing was sent\n"
    job = ("run", "--on", "gpu1", "--no-code", "--data", "~/data/set one", "--", "true")
    assert holdfast(*job, timeout_s=LONG_S).code == 0
    (run_dir,) = (place / "pushed").glob("2*")
    found = json.loads((run_dir / "attempts/1/preflight.json").read_text())["findings"]
    assert ("data.roster", "3 files are what was pushed, by SHA-256") in {(one["id"], one["evidence"]) for one in found}
    (place / "data/set one/a b.bin").write_bytes(b"A b.bin" * 1000)
    (place / "data/set one/c'd.bin").unlink()
    refused = holdfast(*job, timeout_s=LONG_S)
    assert refused.code == 78
    assert "2 of 3 files are not what was pushed: a b.bin is another one, c'd.bin is missing" in refused.err
    home = os.environ["HOME"]
    expanded = holdfast("push", "gpu1", f"{here}/", f"{home}/data", timeout_s=LONG_S)
    assert (expanded.code, "in quotes, '~/data', it is the one of gpu1" in expanded.err) == (74, True), expanded.err


@pytest.mark.slow
@pytest.mark.requirement("STOR-06")
def test_this_machine_is_a_place_too(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "x.bin").write_bytes(b"x" * 5000)
    staged = holdfast("push", "local", str(tmp_path / "slow"), str(tmp_path / "fast"), timeout_s=LONG_S)
    assert staged.out == f"local:{tmp_path}/fast: 1 file, 4.88 KiB, proven; sent 1 file, 4.88 KiB\n", staged.err
    done = holdfast("run", "--data", str(tmp_path / "fast/slow"), "--", "cat", str(tmp_path / "fast/slow/x.bin"))
    assert (done.code, done.out) == (0, "x" * 5000), done.err
    wrong = holdfast("push", "local", str(tmp_path / "fast"))
    assert (wrong.code, "push takes: PLACE LOCAL... REMOTE_DIR" in wrong.err) == (64, True)
    as_for_scp = holdfast("push", "fast", "local:in data")
    assert (as_for_scp.code, "holdfast push local fast '~/in data'" in as_for_scp.err) == (64, True), as_for_scp.err
