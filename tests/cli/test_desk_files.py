"""Files that come to the desk through a real sshd: a link that is cut and a disk that is full leave nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import training
from tests.cli.conftest import ENTRY
from tests.cli.far import FarRun, far_run
from tests.proxy import Proxy
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = [pytest.mark.cli, pytest.mark.slow, pytest.mark.timeout(180)]
__all__ = ["far_run"]
LARGE = 6 << 20


def make_checkpoint(path: Path) -> None:
    """A checkpoint of some MiB that nothing makes smaller."""
    state = {"weights": array("B", os.urandom(LARGE))}
    with training.run(path, every=1, asynchronous=False, seed=3) as run:
        run.track(state)
        for _ in run.steps(1):
            pass


def test_a_file_for_the_desk_comes_whole_or_not_at_all(far_run: FarRun, holdfast: Command, tmp_path: Path) -> None:
    made = tmp_path / "made"
    make_checkpoint(made)
    place = far_run.root / "kept"
    shutil.copytree(made, place)
    number = far_run.box.users["box"]
    for directory, _, names in os.walk(place):
        for path in (directory, *(f"{directory}/{name}" for name in names)):
            os.chown(path, number, number)

    def export(name: str, *before: str) -> subprocess.CompletedProcess[str]:
        words = ["checkpoints", "export", f"{name}:{place}", "model.safetensors"]
        return subprocess.run(
            [*before, *ENTRY, *words], cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S, check=False
        )

    def is_bare() -> bool:
        return not [name for name in os.listdir(tmp_path) if "model.safetensors" in name]

    def is_bare_there() -> bool:
        return not list(far_run.root.glob(".agent-*/.call-*"))

    full = export("gpu1", "prlimit", f"--fsize={LARGE // 2}")
    assert (full.returncode, "model.safetensors: File too large; nothing is left of it" in full.stderr) == (74, True), (
        full
    )
    assert (full.stdout, is_bare()) == ("", True)
    wait_until(is_bare_there, what="the box has removed what was on its way")
    with Proxy(far_run.box.port) as link:
        alias = far_run.box.alias("box", via=link.port)
        places = Path(os.environ["XDG_CONFIG_HOME"], "holdfast/places.toml")
        places.write_text(f'{places.read_text()}[far]\nhost = "{alias}"\nroot = "~/{far_run.root.name}"\n')
        assert holdfast("show", f"far:{far_run.run_id}", timeout_s=LONG_S).code == 0
        link.cut_after(LARGE // 2)
        cut = export("far")
        assert (cut.returncode, "nothing was written to model.safetensors" in cut.stderr) == (69, True), cut
        assert (cut.stdout, is_bare()) == ("", True)
        wait_until(is_bare_there, what="the box has removed what was on its way")
        whole = export("far")
        assert whole.returncode == 0, whole
        far_run.box.forget(alias)
    here = holdfast("checkpoints", "export", str(made), "here.safetensors")
    assert here.code == 0
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "here.safetensors").read_bytes()
    again = export("gpu1")
    assert (again.returncode, "model.safetensors is there already" in again.stderr) == (74, True), again
    assert is_bare_there()
