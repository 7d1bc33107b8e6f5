"""Paths of a job that goes elsewhere: what is the box's stays as it is written, what is the tree's becomes relative."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.cli.job.documents import Node
from holdfast.cli.job.jobfile import read_job
from holdfast.cli.job.schema import KEYS, Kind
from holdfast.core.job.job_paths import change_paths
from holdfast.desk.orders.paths import DeskPath, relate_paths
from holdfast.model import wire
from holdfast.model.errors import JobFileError, UsageError
from holdfast.model.job import Checkpoints, DiskNeeds, JobSpec, Results

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files

OWN = """\
command: [python, train.py]
config: $EXPERIMENTS/a.yaml
data: [/data/imagenet, ~/cifar]
caches: ${SCRATCH}/caches
checkpoints:
  mirror: /mirror
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a job file in a directory of it."""
    (tmp_path / "tree" / "jobs").mkdir(parents=True)
    return tmp_path / "tree"


def read(tree: Path, text: str, **options: str) -> JobSpec:
    """The job of a file in ``jobs/``, on its way elsewhere."""
    path = tree / "jobs" / "job.yaml"
    path.write_text(text)
    nodes = {name: Node(value, f"--{name}", text=value) for name, value in options.items()}
    return read_job(str(path), nodes, cwd=str(tree), elsewhere=True)


def test_paths_of_the_box_stay_as_they_are_written(tree: Path) -> None:
    job = relate_paths(read(tree, OWN), str(tree))
    assert (job.config, job.caches, job.checkpoints.mirror) == ("$EXPERIMENTS/a.yaml", "${SCRATCH}/caches", "/mirror")
    assert job.data == ("/data/imagenet", "~/cifar")


def test_relative_paths_count_from_the_file_or_from_here_and_become_relative_to_the_working_directory(
    tree: Path,
) -> None:
    text = "command: x\nworkdir: ../src\ninputs: [a.txt, ../top.txt, ../src/b.txt]\n"
    job = read(tree, text, config="jobs/c.yaml")
    assert isinstance(job.workdir, DeskPath)
    related = relate_paths(job, str(tree))
    assert related.workdir == "."
    assert related.inputs == ("../jobs/a.txt", "../top.txt", "b.txt")
    assert related.config == "../jobs/c.yaml"
    assert not any(isinstance(path, DeskPath) for path in (related.workdir, related.config, *related.inputs))
    assert str(tree) not in str(wire.encode(related))


def test_a_path_out_of_the_tree_is_refused_with_its_place(tree: Path) -> None:
    text = "command: x\ninputs:\n  - ok.txt\n  - ../../elsewhere\ndata: ../../d\n"
    with pytest.raises(JobFileError) as caught:
        relate_paths(read(tree, text), str(tree))
    first, second = str(caught.value).splitlines()
    assert "job.yaml:4: inputs:" in first
    assert "is not in the tree that is sent" in first
    assert "job.yaml:5: data:" in second
    with pytest.raises(UsageError, match=r"--config: .*/outside.yaml is not in the tree"):
        relate_paths(read(tree, "command: x\n", config="../outside.yaml"), str(tree))


def test_a_link_out_of_the_tree_is_out_of_the_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tree / "jobs" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(JobFileError, match="not in the tree"):
        relate_paths(read(tree, "command: x\ninputs: link/key\n"), str(tree))


def test_without_code_no_path_may_count_from_here(tree: Path) -> None:
    assert relate_paths(read(tree, "command: x\n"), None).workdir == "."
    own = relate_paths(read(tree, "command: x\nworkdir: /srv/proj\nconfig: /srv/proj/c\n"), None)
    assert (own.workdir, own.config) == ("/srv/proj", "/srv/proj/c")
    for text in ("command: x\nworkdir: here\n", "command: x\nworkdir: /srv\nconfig: c.yaml\n"):
        with pytest.raises(JobFileError, match="no code is sent along"):
            relate_paths(read(tree, text), None)


def test_a_name_that_looks_like_a_home_is_no_home(tree: Path) -> None:
    job = relate_paths(read(tree, "command: x\ninputs: [./~x, ./$y]\n"), str(tree))
    assert job.inputs == ("./~x", "./$y")
    assert relate_paths(read(tree, "command: x\nworkdir: ..\ninputs: ../~x\n"), str(tree)).inputs == ("./~x",)


def test_every_key_of_a_path_is_changed() -> None:
    spec = JobSpec(
        "n", ("x",), "p",
        inputs=("p",), config="p", data=("p",), caches="p",
        disk=DiskNeeds(paths=("p",)), checkpoints=Checkpoints(mirror="p"), results=Results(to="p"),
    )  # fmt: skip
    seen: list[str] = []

    def change(field: str, path: str) -> str:
        seen.append(field)
        return path

    change_paths(spec, change)
    assert sorted(seen) == sorted(key.field for key in KEYS if key.kind in {Kind.PATH, Kind.PATHS})


def test_what_a_container_takes_travels_as_it_counts_there(tree: Path) -> None:
    text = "command: x\ncontainer: {image: train.sif, binds: ['/data:/d', '$SCRATCH/x:/x:rw', '~/y:/y']}\n"
    job = relate_paths(read(tree, text), str(tree))
    assert job.container.image == "train.sif"
    assert job.container.binds == ("/data:/d:ro", "$SCRATCH/x:/x:rw", "~/y:/y:ro")
    assert wire.decode(JobSpec, wire.encode(job)) == job
    at_box = change_paths(job, lambda field, path: f"/box/{field}/{path}")
    assert at_box.container.image == "/box/container.image/train.sif"
    with pytest.raises(JobFileError, match="on this machine"):
        read(tree, "command: x\ncontainer: {image: i.sif, binds: ['data:/d']}\n")
