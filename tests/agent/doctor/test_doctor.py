"""The doctor's sections on this box and on boxes in miniature; each finding that is not a pass has a remedy."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.doctor import gpus, runs, tools
from holdfast.agent.doctor import host as hosts
from holdfast.agent.doctor.examine import SECTIONS, run_sections
from holdfast.agent.doctor.host import HostFacts
from holdfast.core.rules.rules import Rules
from holdfast.host.files import disks
from holdfast.host.files.disks import DiskSpace, DiskUnreadable
from holdfast.host.files.filesystems import Mount
from holdfast.host.gpu.quarantine import quarantine
from holdfast.host.lease import area as lease_area
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Card, Inventory, InventorySource
from holdfast.model.record import replace
from tests.agent.interpreters import build_driver, make_interpreter
from tests.rundirs import ended, make_run, own_run_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.nvml.driver import FakeNvml

pytestmark = pytest.mark.process
GIB = 1024**3


@pytest.fixture
def host(isolated_environment: dict[str, str]) -> HostFacts:
    root = isolated_environment["HOLDFAST_RUNS"]
    os.makedirs(root, exist_ok=True)
    return HostFacts(dict(os.environ), Rules(), (root,))


def by_id(findings: Iterator[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.id, []).append(finding)
    return found


@pytest.mark.slow
def test_a_second_lease_area_that_is_in_use_is_an_error(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has HOLDFAST_LEASE_DIR set and who comes through ssh would give one card to two."""
    usual = tmp_path / "usual"
    usual.mkdir(mode=0o1777)
    monkeypatch.setattr(lease_area, "DEFAULT_DIRECTORIES", (str(usual),))
    assert "doctor.lease_areas" not in by_id(hosts.check_leases(host))
    (usual / "gpu-1.lock").touch()
    (found,) = by_id(hosts.check_leases(host))["doctor.lease_areas"]
    assert found.level is Level.FAIL
    assert str(usual) in found.evidence
    assert host.environ["HOLDFAST_LEASE_DIR"] in found.evidence
    without = replace(host, environ={**host.environ, "HOLDFAST_LEASE_DIR": str(usual)})
    assert "doctor.lease_areas" not in by_id(hosts.check_leases(without))


@pytest.mark.slow
def test_every_section_answers_and_every_complaint_has_a_remedy(host: HostFacts) -> None:
    found = [finding for _, findings in run_sections(host) for finding in findings]
    assert not [finding for finding in found if "could not be looked at" in finding.evidence]
    for finding in found:
        assert finding.evidence, finding
        assert finding.level is Level.PASS or finding.remedy, finding
    assert {title for title, _ in run_sections(host, SECTIONS[:1])} == {"Program"}


def test_a_section_that_breaks_hides_nothing(host: HostFacts) -> None:
    def check_broken(_: HostFacts) -> Iterator[Finding]:
        yield Finding("one", Level.PASS, "s", "e")
        raise OSError(5, "gone")

    ((_, first), (_, second)) = run_sections(host, (("A", check_broken), ("B", hosts.check_program)))
    assert [(finding.id, finding.level) for finding in first] == [("one", Level.PASS), ("doctor.broken", Level.UNKNOWN)]
    assert second


@pytest.mark.slow
def test_a_box_without_cards_is_no_failure(host: HostFacts, fake_nvml: FakeNvml) -> None:
    del fake_nvml
    found = by_id(gpus.check_cards(host))
    assert found["doctor.driver"][0].level is Level.PASS
    assert not by_id(gpus.check_holders(host))


def test_cards_faults_and_ghosts_are_told_with_what_to_do(host: HostFacts, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.run_on(1, (4_194_302, 3 * GIB))
    fake_nvml.lose(0)
    found = by_id(gpus.check_cards(host))
    assert "takes CUDA up to" in found["doctor.driver"][0].evidence
    lost = next(one for one in found["doctor.card"] if one.level is Level.FAIL)
    assert "only a reboot" in lost.remedy


@pytest.mark.requirement("GPUH-07")
def test_GPUH_07_memory_held_by_nobody_visible_is_told_and_nobody_is_named(
    host: HostFacts, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.diagnosis.cards import holders

    monkeypatch.setattr(holders, "BETWEEN_LOOKS_S", 0.05)
    fake_nvml.add_cards(1)
    fake_nvml.set(0, **{"memory.used": 9 * GIB})
    list(gpus.check_cards(host))
    found = by_id(gpus.check_holders(host))
    (one,) = found["doctor.holders"]
    assert one.level in (Level.WARN, Level.UNKNOWN)
    assert "no visible process" in one.evidence
    assert str(os.getpid()) not in one.evidence


def test_a_quarantined_card_is_told_until_it_is_cleared(host: HostFacts) -> None:
    uuid = "GPU-00000000-0000-4000-8000-000000000001"
    quarantine(uuid, "Xid 79")
    found = by_id(hosts.check_leases(host))
    assert "Xid 79" in found["doctor.quarantine"][0].evidence
    assert f"holdfast gpus clear {uuid}" in found["doctor.quarantine"][0].remedy


@pytest.mark.requirement("PRE-10")
def test_the_named_interpreters_torch_is_asked(host: HostFacts, fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.add_cards(1)
    list(gpus.check_cards(host))
    driver = build_driver(tmp_path / "cuda")
    library = f"{driver}:{host.environ.get('LD_LIBRARY_PATH', '')}"
    host.environ = {**host.environ, "LD_LIBRARY_PATH": library, "FAKE_CUDA_SM": "120"}
    host.python = make_interpreter(tmp_path / "env")
    found = by_id(gpus.check_framework(host))
    assert found["framework.architecture"][0].level is Level.FAIL
    assert found["framework.cuda"][0].level is Level.PASS


def test_without_cards_a_build_for_the_cpu_is_right(host: HostFacts, tmp_path: Path) -> None:
    host.python = make_interpreter(tmp_path / "env", version="2.5.1+cpu", cuda=None, available=False)
    host.root = str(tmp_path)
    (found,) = gpus.check_framework(host)
    assert found.level is Level.PASS
    host.python = str(tmp_path / "nothing")
    assert [finding.level for finding in gpus.check_framework(host)] == [Level.FAIL]


@pytest.mark.requirement("PRE-22")
def test_PRE_22_leftovers_are_told_with_their_run(host: HostFacts) -> None:
    run_dir = make_run(host.roots[0], own_run_id(), ended())
    marker = {"HOLDFAST_RUN_ID": os.path.basename(run_dir), "HOLDFAST_RUN_DIR": run_dir, "HOLDFAST_ATTEMPT": "1"}
    program = "import signal; print(1, flush=True); signal.pause()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, **marker}, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            found = by_id(runs.check_leftovers(host))
            told = [one for one in found["leftovers"] if one.subject == os.path.basename(run_dir)]
            assert str(child.pid) in told[0].evidence
            assert "holdfast doctor --reap" in told[0].remedy
        finally:
            child.kill()


@pytest.mark.requirement("STOR-02")
def test_STOR_02_a_cache_behind_a_link_is_named_with_its_real_place(host: HostFacts, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/model").write_bytes(b"x" * 100_000)
    (tmp_path / "hf").symlink_to(tmp_path / "disk")
    host.environ = {**host.environ, "HF_HOME": str(tmp_path / "hf")}
    first = next(iter(runs.check_consumers(host)))
    assert first.subject == "HF_HOME"
    assert f"{tmp_path}/hf lies in {tmp_path}/disk" in first.evidence


@pytest.mark.parametrize(
    ("changed", "check", "level"),
    [
        ({}, "doctor.disk", Level.PASS),
        ({"free_bytes": 5}, "doctor.disk", Level.FAIL),
        ({"free_bytes": 9 * GIB}, "doctor.disk", Level.WARN),
        ({"read_only": True}, "doctor.disk", Level.WARN),
        ({"free_inodes": 3}, "doctor.inodes", Level.FAIL),
        ({"is_network": True}, "doctor.network_disk", Level.WARN),
    ],
)
def test_disks_are_judged_by_bytes_and_by_inodes(changed: dict[str, object], check: str, level: Level) -> None:
    room = {"free_bytes": 50 * GIB, "total_bytes": 100 * GIB, "free_inodes": 10**6, "counts_inodes": True}
    kind = dict.fromkeys(("read_only", "is_network", "is_memory"), False)
    space = DiskSpace("/d", "/d", "ext4", "s", 1, **{**room, **kind, **changed})  # type: ignore[arg-type]
    found = by_id(runs.judge_space(space, ["runs"]))
    assert found[check][0].level is level


def test_a_place_on_a_server_that_does_not_answer_is_only_asked_with_a_deadline(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"{tmp_path}/dead/hf"
    host.environ = {"HF_HOME": dead, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    real, measured = os.lstat, disks.measure_space

    def measure(path: str, mounts: tuple[Mount, ...]) -> DiskSpace:
        if path == dead:
            raise DiskUnreadable(errno.ETIMEDOUT, "no answer within 2 s", path)
        return measured(path, mounts)

    def lstat(path: str, **rest: int | None) -> os.stat_result:
        assert path != dead, "this would hang"
        return real(path, **rest)

    monkeypatch.setattr(runs, "measure_space", measure)
    monkeypatch.setattr(os, "lstat", lstat)
    found = [finding for finding in runs.check_disks(host) if finding.level is Level.UNKNOWN]
    assert [(finding.id, finding.subject) for finding in found] == [("doctor.disk", dead)]


def test_what_is_closed_to_this_account_is_unknown_and_never_clean(host: HostFacts, tmp_path: Path) -> None:
    host.root = str(tmp_path)
    (tmp_path / "proc/sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text("2\n")
    (tmp_path / "proc/sys/kernel/dmesg_restrict").write_text("1\n")
    found = by_id(tools.check_rights(host))
    assert found["doctor.kernel_log"][0].level is Level.UNKNOWN
    assert "only root may attach" in found["doctor.ptrace"][0].evidence


def test_a_kernel_log_without_a_line_is_a_stand_in_and_tells_nothing(host: HostFacts, tmp_path: Path) -> None:
    host.root = str(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").symlink_to("/dev/null")
    (found,) = by_id(tools.check_rights(host))["doctor.kernel_log"]
    assert found.level is Level.UNKNOWN
    assert "no line at all" in found.evidence


def test_a_driver_that_does_not_answer_is_not_a_box_without_cards(host: HostFacts, tmp_path: Path) -> None:
    host.root, host.python = str(tmp_path), sys.executable
    host.inventory = Inventory(InventorySource.NONE, reason="the driver did not answer", complete=False)
    found = by_id(gpus.check_framework(host))
    assert "there are none" not in found["framework.torch"][0].evidence


def test_a_lost_cards_remedy_can_be_followed(host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Card(0, "UNREADABLE-0", "unreadable card", faults=("lost: gone",))
    throttled = Card(1, "GPU-1", "A100", faults=("remap_failed: no row left",))
    inventory = Inventory(InventorySource.NVML, (lost, throttled))
    monkeypatch.setattr(gpus, "read_inventory", lambda *_: inventory)
    first, second = by_id(gpus.check_cards(host))["doctor.card"]
    assert "quarantine" not in first.remedy
    assert "reboot" in first.remedy
    assert "holdfast gpus quarantine 1 --reason remap_failed" in second.remedy


def test_a_tool_on_PATH_is_found_and_what_an_absent_one_adds_is_said(host: HostFacts, tmp_path: Path) -> None:
    (tmp_path / "gdb").write_text("#!/bin/sh\n")
    (tmp_path / "gdb").chmod(0o755)
    host.environ = {"PATH": str(tmp_path)}
    found = {finding.subject: finding for finding in tools.check_tools(host)}
    assert str(tmp_path / "gdb") in found["gdb"].evidence
    assert found["py-spy"].level is Level.WARN
    assert "would add" in found["strace"].evidence


def test_nothing_leaves_the_box_unless_asked(host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(name: str, _: object) -> Finding:
        asked.append(name)
        return Finding("names", Level.PASS, name, "e")

    monkeypatch.setattr(tools, "resolve_host", resolve)
    list(tools.check_network(host))
    assert asked == []
    host.network = True
    list(tools.check_network(host))
    assert asked == list(tools.NAMES)


def test_every_finding_of_the_doctor_is_in_its_documentation() -> None:
    root = Path(__file__).resolve().parents[3]
    ids: set[str] = set()
    for path in (root / "src/holdfast/agent/doctor").glob("*.py"):
        ids |= set(re.findall(r"""(?:passed|unknown|warned|failed|Finding)\(\s*"([a-z_.]+)",""", path.read_text()))
    documented = set(re.findall(r"`([a-z_.]+)`", (root / "docs/doctor.md").read_text()))
    assert len(ids) > 15
    assert ids <= documented


@pytest.mark.requirement("FAIL-15")
def test_own_failure_rules_are_loaded_before_a_failure_needs_them(host: HostFacts, tmp_path: Path) -> None:
    rules = tmp_path / "failures.toml"
    good = '[seat]\npattern = \'^LicenceError: no seat\'\nclass = "transient"\nremedy = "wait"\n'
    rules.write_text(f'{good}example = "LicenceError: no seat"\nnear_miss = "LicenceErrors are handled"\n')
    rules.chmod(0o600)
    asked = replace(host, environ={**host.environ, "HOLDFAST_FAILURE_RULES": str(rules)})
    assert [finding.level for finding in tools.check_failure_rules(asked)] == [Level.PASS]
    rules.write_text(f'{good}example = "something else"\nnear_miss = "LicenceErrors are handled"\n')
    (refused,) = tools.check_failure_rules(asked)
    assert refused.level is Level.FAIL
    assert str(rules) in refused.evidence
    assert list(tools.check_failure_rules(host)) == []
