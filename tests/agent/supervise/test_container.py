"""The first program inside of a container: under which Pythons it runs, and what is believed of what it leaves."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.agent.in_job import enter
from holdfast.agent.supervise.container import ask_inside, room
from holdfast.agent.supervise.container.plan import find_profile_variables
from holdfast.agent.supervise.container.room import read_inner_end
from holdfast.agent.supervise.context import SupervisorContext
from holdfast.core.container.references import Bind
from holdfast.host.container.oci import read_pid_file
from holdfast.model.container import ResolvedImage, RuntimeName
from holdfast.model.identity import WaitStatus
from holdfast.model.profile import Profile

pytestmark = pytest.mark.files


def test_it_is_read_by_the_pythons_of_old_images() -> None:
    tree = ast.parse(Path(enter.__file__).read_text(), feature_version=(3, 5))
    # Of Python 3.7: an older one does not even begin. `feature_version` does not look at either.
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]


def test_the_gate_is_passed_in_the_same_words_on_both_sides() -> None:
    assert (room.BEGUN, room.MEMORY_KILLS, room.TOLD) == (enter.BEGUN, enter.MEMORY_KILLS, enter.TOLD)
    assert ask_inside.GUESSED == enter.GUESSED
    assert f"say {enter.BEGUN}\n" in Path(enter.__file__).with_suffix(".sh").read_text()


@pytest.mark.parametrize(
    ("text", "code", "number", "core"),
    [("exit 3\n", 3, None, False), ("signal 11 core\n", None, 11, True), ("signal 9\n", None, 9, False)],
)
def test_the_end_that_is_written_inside_is_exact(text: str, code: int | None, number: int | None, core: bool) -> None:
    found = read_inner_end(text, WaitStatus(137, None))
    assert found is not None
    assert (found.code, found.signal, found.core_dumped) == (code, number, core)


@pytest.mark.parametrize(
    "text", ["", "exit \u00b2\n", "signal 0\n", "signal 99\n", "exit 4444\n", "exit -1", "x" * 4096]
)
def test_what_a_job_wrote_there_instead_is_no_end(text: str) -> None:
    assert read_inner_end(text, WaitStatus(137, None)) is None


def test_a_pid_file_names_the_first_process_of_a_container_or_nobody(tmp_path: Path) -> None:
    for number in (os.getpid(), 1, 4_000_000_000):
        (tmp_path / "init.pid").write_text(f"{number}\n")
        assert read_pid_file(str(tmp_path / "init.pid")) is None


@pytest.mark.requirement("PROF-07")
def test_PROF_07_a_container_has_the_directories_of_the_profile_that_are_bound() -> None:
    environ = {
        "DATA_DIR": "/workspace/data",
        "DURABLE_DIR": "/nfs/keep",
        "SCRATCH": "/scratch",
        "HF_HOME": "/nfs/hf",
        "DETACH": "holdfast",
        "CRED_FILE": "",
        "PROXY_HOOK": ". /etc/proxy.sh",
    }
    image = ResolvedImage(RuntimeName.PODMAN, "podman", "i", "i", "", environment={"HF_HOME": "/opt/hf"})
    binds = (Bind("/workspace", "/workspace"), Bind("/nfs", "/mnt", writable=True))
    context = cast("SupervisorContext", SimpleNamespace(profile=Profile("rented", "A rental"), environ=environ))
    assert find_profile_variables(context, image, binds) == {
        "DATA_DIR": "/workspace/data",
        "DURABLE_DIR": "/mnt/keep",
        "DETACH": "holdfast",
        "CRED_FILE": "",
    }
    none = cast("SupervisorContext", SimpleNamespace(profile=None, environ=environ))
    assert find_profile_variables(none, image, binds) == {}
