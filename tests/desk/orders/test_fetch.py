"""What a place fetches itself is a job: what it needs for that no other job sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ordering import Desk

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

TELL = ("--", "sh", "-c", "echo mirror=$HF_ENDPOINT fast=$HF_XET_HIGH_PERFORMANCE")


@pytest.mark.requirement("XPORT-21", "XPORT-25")
def test_XPORT_21_the_variables_of_a_download_are_not_the_trainings(
    tmp_path: Path, isolated_environment: dict[str, str]
) -> None:
    assert isolated_environment
    desk = Desk(tmp_path, f"{tmp_path}/box")
    mirror = ("--env", "HF_ENDPOINT=http://mirror.test", "--env", "HF_XET_HIGH_PERFORMANCE=1")
    fetched = desk.run("--name", "fetch", *mirror, *TELL)
    trained = desk.run("--name", "train", *TELL)
    assert (fetched.returncode, trained.returncode) == (0, 0), fetched.stderr + trained.stderr
    assert "mirror=http://mirror.test fast=1" in fetched.stdout
    assert "mirror= fast=\n" in trained.stdout
    desk.clear()
