"""Requirements beside the code that would replace the box's framework, with both versions (PRE-16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.agent.checks.context import CheckContext
from holdfast.agent.checks.framework import check_replacement
from holdfast.core.rules.rules import Rules
from holdfast.model.job import JobSpec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


@pytest.mark.requirement("PRE-16")
def test_PRE_16_both_versions_are_named(tmp_path: Path) -> None:
    library = tmp_path / "env/lib/python3.11/site-packages"
    for name in ("torch-2.13.0+cu126.dist-info", "torchvision-0.28.0+cu126.dist-info", "torchmetrics-1.2.dist-info"):
        (library / name).mkdir(parents=True)
    python = tmp_path / "env/bin/python"
    python.parent.mkdir()
    python.symlink_to("/bin/true")
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr/bin\n")
    code = tmp_path / "code"
    code.mkdir()
    (code / "requirements.txt").write_text("torch==2.1\ntorchvision>=0.20\ntorchaudio==2.1\ntorchmetrics==0.1\n")
    context = CheckContext(JobSpec("t", (str(python), "train.py"), str(code)), Rules(), {"PATH": "/bin"})
    found = [(one.level.value, one.evidence) for one in check_replacement(context)]
    assert found == [
        ("warn", f"asks for torch==2.1, and {python} has torch 2.13.0+cu126: installing it would replace that build"),
        ("pass", f"asks for torchvision>=0.20, and {python} has torchvision 0.28.0+cu126"),
    ]
