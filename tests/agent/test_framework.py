"""Asking the job's own torch: in a real child, bounded, and never taken for an answer when there was none."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.checks import framework
from holdfast.agent.checks.context import CheckContext
from holdfast.agent.checks.framework import FrameworkUnread, ask_framework, check_framework
from holdfast.core.rules.rules import Rules
from holdfast.host.process import surroundings
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Card, GpuRequest, Inventory, InventorySource
from holdfast.model.job import GpuOptions, JobSpec
from tests.agent.interpreters import build_driver, make_interpreter

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

ONE_CARD = Inventory(InventorySource.NVML, cards=(Card(index=0, uuid="GPU-0", name="Card"),))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_driver(tmp_path_factory.mktemp("cuda") / "lib")


def check(
    python: str,
    driver: str = "",
    *,
    verify: bool = True,
    gpus: int = 1,
    inventory: Inventory = ONE_CARD,
    **more: str,
) -> dict[str, Finding]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", **more}
    if driver:
        environ["LD_LIBRARY_PATH"] = driver
    spec = JobSpec("t", (python, "train.py"), "/", gpus=GpuRequest(count=gpus), gpu=GpuOptions(verify=verify))
    return {
        finding.id: finding for finding in check_framework(CheckContext(spec, Rules(), environ, inventory=inventory))
    }


@pytest.mark.requirement("PRE-09", "PRE-10")
def test_PRE_09_a_torch_that_sees_a_card_it_has_code_for_passes(tmp_path: Path, driver: str) -> None:
    found = check(make_interpreter(tmp_path / "env"), driver)
    assert {finding.level for finding in found.values()} == {Level.PASS}
    assert set(found) == {"framework.cuda", "framework.driver", "framework.architecture"}


@pytest.mark.requirement("PRE-09")
def test_PRE_09_an_interpreter_that_would_fall_to_the_cpu_fails(tmp_path: Path, driver: str) -> None:
    found = check(make_interpreter(tmp_path / "env", available=False, devices=0), driver, FAKE_CUDA_INIT="100")
    assert found["framework.cuda"].level is Level.FAIL
    assert "CUDA_ERROR_NO_DEVICE" in found["framework.cuda"].evidence
    assert "--no-gpu-verify (in a job file gpu: {verify: false})" in found["framework.cuda"].remedy


def test_on_a_box_without_a_card_the_torch_is_not_the_reason(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path / "env", cuda=None, available=False, devices=0)
    assert {item.level for item in check(python).values()} == {Level.FAIL}
    none = check(python, inventory=Inventory(InventorySource.NONE, reason="no driver"))
    assert {name: item.level for name, item in none.items()} == {"framework.cuda": Level.UNKNOWN}
    assert "install" not in none["framework.cuda"].remedy
    # What could not be read may be there.
    unread = check(python, inventory=Inventory(InventorySource.NVML, complete=False, reason="it hangs"))
    assert {item.level for item in unread.values()} == {Level.FAIL}


@pytest.mark.requirement("PRE-10")
@pytest.mark.parametrize(
    ("driver_version", "sm", "check_id"),
    [("11080", "90", "framework.driver"), ("12080", "120", "framework.architecture")],
)
def test_PRE_10_the_odd_one_of_the_three_fails(
    tmp_path: Path, driver: str, driver_version: str, sm: str, check_id: str
) -> None:
    found = check(make_interpreter(tmp_path / "env"), driver, FAKE_CUDA_VERSION=driver_version, FAKE_CUDA_SM=sm)
    assert [finding.id for finding in found.values() if finding.level is Level.FAIL] == [check_id]


def test_without_a_driver_nothing_is_taken_for_well(tmp_path: Path) -> None:
    found = check(make_interpreter(tmp_path / "env", available=False, devices=0))
    assert found["framework.cuda"].level is Level.FAIL
    assert found["framework.driver"].level is Level.UNKNOWN
    assert "libcuda.so.1" in found["framework.driver"].evidence


@pytest.mark.slow
def test_an_interpreter_that_hangs_is_given_up_after_the_deadline(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path / "env", extra="time.sleep(600)")
    with pytest.raises(FrameworkUnread, match="did not answer within"):
        ask_framework(python, {}, within_s=0.5)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("raise ImportError('libcudnn.so.9: cannot open shared object file')", "libcudnn.so.9"),
        ("os._exit(3)", "ended with 3"),
        ("print('HOLDFAST-FRAMEWORK not json', flush=True); os._exit(0)", "cannot be read"),
    ],
)
def test_a_torch_that_does_not_answer_is_unknown_with_its_last_words(tmp_path: Path, extra: str, words: str) -> None:
    found = check(make_interpreter(tmp_path / "env", extra=extra))
    assert found["framework.cuda"].level is Level.UNKNOWN
    assert words in found["framework.cuda"].evidence


def test_the_child_is_not_marked_and_what_it_prints_is_passed_over(tmp_path: Path, driver: str) -> None:
    extra = "print('hello from sitecustomize'); assert not [n for n in os.environ if n.startswith('HOLDFAST_')]"
    found = check(make_interpreter(tmp_path / "env", extra=extra), driver, HOLDFAST_RUN_ID="20261120-100000-a-0a1b")
    assert found["framework.cuda"].level is Level.PASS


def test_a_file_of_the_jobs_directory_does_not_come_between(tmp_path: Path, driver: str) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong one')\n")
    environ = {"LD_LIBRARY_PATH": driver}
    assert ask_framework(make_interpreter(tmp_path / "env"), environ, cwd=str(tmp_path)).available is True


def test_nobody_is_asked_without_cards_or_against_the_jobs_word(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path / "env", extra="raise SystemExit('asked')")
    assert check(python, gpus=0) == {}
    assert check(python, verify=False)["framework.cuda"].level is Level.PASS
    assert check(python, HOLDFAST_SIMULATED_GPUS="1")["framework.cuda"].level is Level.PASS


def test_a_command_behind_a_shell_is_unknown_and_one_without_torch_is_not_asked(tmp_path: Path) -> None:
    assert check("/bin/sh")["framework.cuda"].level is Level.UNKNOWN
    empty = tmp_path / "empty"
    (empty / "bin").mkdir(parents=True)
    (empty / "bin/python3").symlink_to(sys.executable)
    (empty / "pyvenv.cfg").write_text("home = /nowhere\n")
    found = check(str(empty / "bin/python3"))["framework.cuda"]
    assert found.level is Level.PASS
    assert "no torch" in found.evidence


@pytest.mark.requirement("PRE-18")
def test_PRE_18_a_base_environment_warns_on_a_kept_machine_and_passes_on_a_rented_one(tmp_path: Path) -> None:
    for name in ("bin", "conda-meta", "condabin"):
        (tmp_path / "conda" / name).mkdir(parents=True)
    (tmp_path / "conda/bin/python").symlink_to(os.path.realpath(sys.executable))
    spec = JobSpec("t", (str(tmp_path / "conda/bin/python"), "train.py"), "/")

    def levels(environ: dict[str, str]) -> list[Level]:
        situation = CheckContext(spec, Rules(), environ, root=str(tmp_path))
        return [finding.level for finding in framework.check_base_environment(situation)]

    assert levels({}) == [Level.WARN]
    assert levels({"RUNPOD_POD_ID": "x"}) == [Level.PASS]
    (tmp_path / "conda/condabin").rmdir()
    assert levels({}) == []
    # A base whose conda lies elsewhere is told by its name.
    named = {"CONDA_DEFAULT_ENV": "base", "CONDA_PREFIX": str(tmp_path / "conda")}
    assert levels(named) == [Level.WARN]
    assert levels({"CONDA_DEFAULT_ENV": "base"}) == [Level.WARN]
    assert levels({**named, "CONDA_DEFAULT_ENV": "train"}) == []
    assert levels({**named, "CONDA_PREFIX": "/opt/conda"}) == []


def test_a_value_that_hides_the_cards_now_is_not_what_the_job_will_get(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = "cuda.is_available = lambda: 'CUDA_VISIBLE_DEVICES' not in os.environ"
    python = make_interpreter(tmp_path / "env", extra=hidden)
    assert check(python, driver, CUDA_VISIBLE_DEVICES="")["framework.cuda"].level is Level.PASS
    # What a scheduler set is what the job gets, inside of its allocation.
    assert check(python, driver, SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES="")["framework.cuda"].level is Level.PASS
    monkeypatch.setattr(surroundings, "_list_ancestors", lambda: ["slurmstepd"])
    found = check(python, driver, SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES="")
    assert found["framework.cuda"].level is Level.FAIL


def test_a_shim_that_chooses_an_interpreter_is_asked_itself(tmp_path: Path, driver: str) -> None:
    python = make_interpreter(tmp_path / "env")
    (tmp_path / "shims").mkdir()
    shim = tmp_path / "shims/python3"
    shim.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    shim.chmod(0o755)
    assert check(str(shim), driver)["framework.cuda"].level is Level.PASS
    shim.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -I -S "$@"\n')
    found = check(str(shim))
    assert [finding.evidence for finding in found.values()] == ["has no torch: nothing to ask"]
