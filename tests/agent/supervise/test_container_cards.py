"""How exactly the leased cards come into a container, and what is made of what its torch says of them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.checks.framework import MARK
from holdfast.agent.supervise.container import plan
from holdfast.agent.supervise.container.ask_inside import ANSWERED, put_question, read_answer
from holdfast.agent.supervise.container.plan import choose_cards, choose_user
from holdfast.agent.supervise.container.room import Room
from holdfast.core.container.command import CardsInside, DeviceGrant
from holdfast.model.container import ANSWER, QUESTION, SAID, ResolvedImage, RuntimeName
from holdfast.model.errors import PreflightFailed
from holdfast.model.gpu import Inventory, InventorySource
from holdfast.model.job import GpuOptions, JobSpec
from holdfast.model.lease import LeasedDevice
from holdfast.model.record import replace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files
LEASED = (LeasedDevice("GPU-b", 1, "b"), LeasedDevice("GPU-d", 3, "d"))
UUIDS = ("GPU-b", "GPU-d")
REAL = Inventory(InventorySource.NVML)
DOCKER = ResolvedImage(RuntimeName.DOCKER, "/usr/bin/docker", "x", "x", "sha256:x")


@pytest.mark.requirement("CTR-03", "LEASE-09", "B-15")
def test_CTR_03_each_runtime_gets_the_leased_cards_in_the_way_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CDI_PLACES", (str(tmp_path / "cdi"),))
    bare, tools = {"PATH": str(tmp_path / "none")}, {"PATH": str(tmp_path)}
    (tmp_path / "nvidia-container-runtime-hook").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-container-runtime-hook").chmod(0o755)
    assert choose_cards(LEASED, REAL, DOCKER, tools) == CardsInside(DeviceGrant.GPUS, UUIDS)
    podman = replace(DOCKER, runtime=RuntimeName.PODMAN)
    # Without a way of their own the device files, which this box has not: a refusal, not a job without a card.
    for runtime in (DOCKER, podman):
        with pytest.raises(PreflightFailed, match="is not on this box"):
            choose_cards(LEASED, REAL, runtime, bare)
    sliced = (replace(LEASED[0], slice_uuid="MIG-1"),)
    with pytest.raises(PreflightFailed, match="slice"):
        choose_cards(sliced, REAL, podman, bare)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "nvidia.yaml").write_text("")
    assert choose_cards(LEASED, REAL, podman, bare) == CardsInside(DeviceGrant.CDI, UUIDS)
    assert choose_cards(sliced, REAL, podman, bare).uuids == ("MIG-1",)
    for name in (RuntimeName.APPTAINER, RuntimeName.SINGULARITY):
        assert choose_cards(LEASED, REAL, replace(DOCKER, runtime=name), bare).how is DeviceGrant.VARIABLE
    assert choose_cards((), REAL, DOCKER, tools) == CardsInside()


@pytest.mark.requirement("CTR-01")
def test_CTR_01_below_a_rootless_docker_number_0_is_the_account() -> None:
    own = f"{os.getuid()}:{os.getgid()}"
    assert choose_user(replace(DOCKER, rootless=True)) == ("0:0", ())
    assert choose_user(DOCKER)[0] == choose_user(replace(DOCKER, runtime=RuntimeName.PODMAN, rootless=True))[0] == own


@pytest.mark.requirement("CTR-08", "LEASE-09")
def test_CTR_08_nothing_goes_on_before_torch_has_answered(tmp_path: Path) -> None:
    room, spec, cards = Room(str(tmp_path)), JobSpec("t", ("true",), "/"), CardsInside(DeviceGrant.CDI, UUIDS)
    (tmp_path / SAID).write_text("python 3.11\n")
    (tmp_path / plan.CARDS).write_text("GPU-b,GPU-d\n")
    for how in (DeviceGrant.NONE, DeviceGrant.SIMULATED):
        put_question(room, spec, CardsInside(how))
    put_question(room, replace(spec, gpu=GpuOptions(verify=False)), cards)
    assert read_answer(room, "x").finished
    put_question(room, spec, cards)
    # The image's own user, who may be another one, reads the one and writes the other.
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in (QUESTION, ANSWER)] == [0o644, 0o666]

    def answer(**facts: object) -> str:
        line = MARK + json.dumps({"version": "2.4", "cuda": "12.4", "available": True, **facts}) if facts else ""
        (tmp_path / ANSWER).write_text(f"noise\n{line}\n{ANSWERED}\n")
        found = read_answer(room, "x")
        assert found.finished
        return found.refusal.message if found.refusal else ""

    assert not read_answer(room, "x").finished
    (tmp_path / ANSWER).write_text("noise\n")
    assert not read_answer(room, "x").finished
    assert answer() == ""
    assert answer(devices=2) == ""
    assert "2 are leased" in answer(devices=1)
    assert "would train on the CPU" in answer(available=False, devices=0)
    # Of slices CUDA shows the first alone.
    (tmp_path / plan.CARDS).write_text("MIG-1,MIG-2\n")
    assert answer(devices=1) == ""
    (tmp_path / SAID).write_text("python none\n")
    (tmp_path / ANSWER).unlink()
    assert read_answer(room, "x").finished
