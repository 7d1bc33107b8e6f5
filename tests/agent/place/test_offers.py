"""What a place says of the job of a run, for another run that is to be like it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.place.offers.job import relate_to_code
from holdfast.model.container import ContainerSpec
from holdfast.model.job import JobSpec
from holdfast.model.order import CodeRef
from holdfast.model.record import replace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files
CODE = CodeRef("ab" * 8, 3, 100, "sub", "c0ffee")


def test_paths_in_the_code_are_relative_again_and_others_stay(tmp_path: Path) -> None:
    run_dir = f"{tmp_path}/20261123-101500-train-3fa2"
    tree = f"{tmp_path}/.code-{os.geteuid()}/{CODE.tree}/files"
    for top in (f"{run_dir}/work", tree):
        job = JobSpec(
            "train",
            ("python3", "train.py"),
            f"{top}/sub/deep",
            inputs=(f"{top}/sub/deep/a", f"{top}/b", f"{top}/sub/deep/~x", f"{top}-beside/c", "/data/d"),
            config=f"{top}/sub/deep",
            container=ContainerSpec(image="x/y:1", binds=(f"{top}/e:/e", "/data:/data:rw")),
        )
        made, code = relate_to_code(job, CODE, run_dir)
        assert (made.workdir, made.config, code) == (".", ".", replace(CODE, workdir="sub/deep"))
        assert made.inputs == ("a", "../../b", "./~x", f"{top}-beside/c", "/data/d")
        assert made.container.binds == ("../../e:/e:ro", "/data:/data:rw")
    beside = replace(job, workdir="/home/anna/project")
    assert relate_to_code(beside, CODE, run_dir) == (beside, None)


def test_a_run_that_is_reached_by_another_path_has_the_same_code(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    job = JobSpec("train", ("true",), f"{tmp_path}/disk/r/work")
    made, code = relate_to_code(job, replace(CODE, workdir=""), f"{tmp_path}/runs/r")
    assert (made.workdir, code) == (".", replace(CODE, workdir=""))
