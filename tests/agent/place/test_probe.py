"""What a probe measures of its box."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.place import probe
from holdfast.cli.render.places import _describe_control_groups
from holdfast.host.contain.tree import EffectiveLimits
from holdfast.host.files.disks import measure_space
from holdfast.model.place import MISSING, DiskFacts
from tests.desk.boxes import FACTS_OF_A_BOX

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

GIB = 1 << 30


@pytest.mark.requirement("BSSH-06")
def test_BSSH_06_what_control_groups_allow_is_told_beside_what_the_machine_has(
    monkeypatch: pytest.MonkeyPatch, isolated_environment: dict[str, str]
) -> None:
    """A rented container sees the memory of its host, and is killed at its own limit."""
    assert isolated_environment
    secret = "/sys/fs/cgroup/above/memory.max"
    held = EffectiveLimits(memory_bytes=64 * GIB, cpu_quota=7.5, tasks=4096, unreadable=(secret,))
    monkeypatch.setattr(probe, "read_effective", lambda: held)
    facts = probe.read_facts()
    assert (facts.memory_limit_bytes, facts.cpu_limit, facts.task_limit) == (64 * GIB, 7.5, 4096)
    assert facts.memory_bytes != facts.memory_limit_bytes
    assert f"{secret} cannot be read: it may limit what a job may use" in facts.warnings
    assert _describe_control_groups(facts) == "7.5 cpus, 64 GiB of memory, 4096 tasks"
    assert not _describe_control_groups(FACTS_OF_A_BOX), "no limit was found"


@pytest.mark.requirement("PROF-06")
def test_asked_for_paths_it_measures_the_disks_behind_them_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe.main([str(tmp_path), f"{tmp_path}/gone", "~"]) == 0
    found = [DiskFacts(**disk) for disk in json.loads(capsys.readouterr().out)["disks"]]
    assert [disk.path for disk in found] == [str(tmp_path), f"{tmp_path}/gone", os.path.expanduser("~")]
    assert found[0].total_bytes == measure_space(str(tmp_path)).total_bytes
    assert found[1] == DiskFacts(f"{tmp_path}/gone", MISSING)
