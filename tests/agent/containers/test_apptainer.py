"""Apptainer's command line honoured by a stand-in over namespaces: signals, exit codes and the environment are real.

Apptainer itself is in no registry that these tests reach; it was never run (docs/containers.md).
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.container import ContainerSpec
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions
from holdfast.model.record import replace
from holdfast.model.run import Outcome
from tests.agent.containers.test_containers import TRAINER

if TYPE_CHECKING:
    from tests.agent.driving import Drive
    from tests.fakes.nvml.driver import FakeNvml

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in mounts, as root"),
]
FACTS = """
import json, os
json.dump(dict(os.environ), open(os.environ["HOLDFAST_RUN_DIR"] + "/artifacts/facts.json", "w"))
"""

NETWORK = (
    "import os; open(os.environ['HOLDFAST_RUN_DIR'] + '/artifacts/net', 'w').write(os.readlink('/proc/self/ns/net'))"
)


@pytest.fixture
def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, image_tars: tuple[Path, Path]
) -> tuple[ContainerSpec, dict[str, str]]:
    """An image that is a directory, and where the stand-in is found."""
    name = getattr(request, "param", "apptainer")
    with tarfile.open(image_tars[0]) as tar:
        tar.extractall(tmp_path / "image", filter="fully_trusted")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / name
    words = f'export STAND_IN_NAME={name}\nexec {sys.executable} {Path(__file__).with_name("apptainer.py")} "$@"'
    program.write_text(f"#!/bin/sh\n{words}\n")
    program.chmod(0o755)
    return ContainerSpec(str(tmp_path / "image")), {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}


@pytest.mark.requirement("CTR-01", "CTR-02")
@pytest.mark.parametrize("sandbox", ["apptainer", "singularity"], indirect=True)
def test_CTR_01_the_environment_inside_is_the_declared_one(
    drive: Drive, sandbox: tuple[ContainerSpec, dict[str, str]], tmp_path: Path
) -> None:
    image, environ = sandbox
    (tmp_path / "theirs").mkdir()
    leaks = {"SURPRISE": "stays outside", "http_proxy": "theirs", "NO_PROXY": "theirs"}
    for name in ("APPTAINER", "SINGULARITY"):
        leaks |= {f"{name}_BIND": str(tmp_path / "theirs"), f"{name}ENV_LEAK": "theirs", f"{name}ENV_HOME": "/theirs"}
    run = drive(
        "python3", "-c", FACTS, container=image, environ={**environ, **leaks}, env={"MODE": "a 'b'\nc"}
    )  # fmt: skip
    ended = run.ended()
    assert ended.outcome is Outcome.SUCCEEDED, run.output() + run.log().encode()
    with open(f"{run.run_dir}/artifacts/facts.json", encoding="utf-8") as file:
        inside = json.load(file)
    named = {
        "HOME",
        "USER",
        "LOGNAME",
        "PATH",
        "PWD",
        "OLDPWD",
        "_",
        "SHLVL",
        "LC_CTYPE",
        "APPTAINER_CONTAINER",
        "LANG",
    }
    named |= {"NVIDIA_VISIBLE_DEVICES", "HOLDFAST_LEASE_DIR", "HOLDFAST_MACHINE_ID"}
    assert set(inside) - named == {*run.read("manifest.json")["environment_added"], "MODE"} - named
    assert (inside["MODE"], inside["HOME"]) == ("a 'b'\nc", "/tmp")
    assert b"Overriding HOME" not in run.output()
    assert not os.path.exists(f"{image.image}{tmp_path}/theirs"), "a bind of the caller's went in"


@pytest.mark.requirement("CTR-01")
@pytest.mark.parametrize("network", ["host", "none"])
def test_CTR_01_a_job_without_network_has_none(
    drive: Drive, sandbox: tuple[ContainerSpec, dict[str, str]], network: str
) -> None:
    run = drive("python3", "-c", NETWORK, container=replace(sandbox[0], network=network), environ=sandbox[1])
    assert run.ended().outcome is Outcome.SUCCEEDED, run.output() + run.log().encode()
    with open(f"{run.run_dir}/artifacts/net", encoding="ascii") as file:
        assert (file.read() == os.readlink("/proc/self/ns/net")) == (network == "host")


TORCH = """
import os
__version__ = "2.4.0"
class version: cuda, hip = "12.4", None
class cuda:
    is_available = staticmethod(lambda: os.environ["SEEN"] != "0")
    device_count = staticmethod(lambda: int(os.environ["SEEN"]))
    get_arch_list = staticmethod(lambda: ["sm_80", "compute_90"])
"""


@pytest.mark.requirement("CTR-08", "LEASE-09", "PRE-09")
@pytest.mark.gotcha("U31", "K8S6")
@pytest.mark.parametrize(("seen", "words"), [("0", "would train on the CPU"), ("2", "sees 2 cards"), ("1", "")])
def test_CTR_08_the_images_own_torch_sees_the_leased_cards_before_the_command_runs(
    drive: Drive, sandbox: tuple[ContainerSpec, dict[str, str]], fake_nvml: FakeNvml, seen: str, words: str
) -> None:
    fake_nvml.add_cards(2)
    os.makedirs(f"{drive.workdir}/packages/torch")
    Path(f"{drive.workdir}/packages/torch/__init__.py").write_text(TORCH)
    run = drive(
        "python3", "-c", "open('ran', 'w')", container=sandbox[0], gpus=GpuRequest(count=1),
        gpu=GpuOptions(idle_window_s=0.0), environ={**sandbox[1], **fake_nvml.environment()},
        env={"PYTHONPATH": f"{drive.workdir}/packages", "SEEN": seen},
    )  # fmt: skip
    ended = run.ended()
    assert (ended.exit_code, os.path.exists(f"{drive.workdir}/ran")) == ((78, False) if words else (0, True)), run.log()
    assert words in (ended.refusal.message if ended.refusal else ""), ended


@pytest.mark.parametrize(
    ("words", "status"), [("exit 3", (3, None)), ("kill -9 $$", (None, 9)), ("exit 255", (255, None))]
)
def test_an_end_comes_out_exactly(
    drive: Drive, sandbox: tuple[ContainerSpec, dict[str, str]], words: str, status: tuple[int | None, int | None]
) -> None:
    run = drive("sh", "-c", words, container=sandbox[0], environ=sandbox[1])
    ended = run.ended()
    assert ended.status is not None, run.output()
    assert (ended.status.code, ended.status.signal) == status


def test_term_reaches_the_trainer_and_a_killed_runtime_leaves_nothing(
    drive: Drive, sandbox: tuple[ContainerSpec, dict[str, str]]
) -> None:
    run = drive("python3", "-c", TRAINER, container=sandbox[0], environ=sandbox[1])
    run.ready()
    run.ask()
    ended = run.ended()
    assert (ended.outcome, ended.status and ended.status.code) == (Outcome.STOPPED, 7)
    run = drive("python3", "-c", TRAINER, container=sandbox[0], environ=sandbox[1])
    run.kill(run.ready().job.process)
    assert run.ended().exit_code == 137
    run.assert_gone()
