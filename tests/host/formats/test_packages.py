"""The version of torch is read from the directories of the interpreter that the command will use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.host.formats.packages import find_command, find_interpreter, find_package, find_torch, read_shebang

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("RAIL-03", "RAIL-04")]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    root = tmp_path / "venv"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python").symlink_to(sys.executable)
    (root / "pyvenv.cfg").write_text(f"home = {tmp_path}/base/bin\ninclude-system-site-packages = false\n")
    add(root, "numpy-2.0.0.dist-info")
    (tmp_path / "base" / "bin").mkdir(parents=True)
    return root


def add(root: Path, name: str) -> None:
    (root / "lib" / "python3.11" / "site-packages" / name).mkdir(parents=True, exist_ok=True)


def version(venv: Path, *command: str, **environ: str) -> str | None:
    return find_torch(command, {"PATH": f"{venv}/bin", **environ}, str(venv)).version


def test_RAIL_03_torch_in_a_virtual_environment(venv: Path) -> None:
    add(venv, "torch-2.5.1+cu121.dist-info")
    add(venv, "torch_geometric-9.9.9.dist-info")
    assert version(venv, "python", "train.py") == "2.5.1+cu121"
    assert version(venv, f"{venv}/bin/python", "train.py") == "2.5.1+cu121"


def test_no_torch_is_not_known_and_says_where_it_looked(venv: Path) -> None:
    found = find_torch(("python",), {"PATH": f"{venv}/bin"}, str(venv))
    assert found.version is None
    assert "site-packages" in found.evidence


def test_RAIL_04_a_launcher_script_leads_to_its_interpreter(venv: Path) -> None:
    add(venv, "torch-2.1.0.dist-info")
    launcher = venv / "bin" / "torchrun"
    launcher.write_text(f"#!{venv}/bin/python\nimport x\n")
    launcher.chmod(0o755)
    assert version(venv, "torchrun", "train.py") == "2.1.0"
    launcher.write_text("#!/usr/bin/env python\nimport x\n")
    assert version(venv, "torchrun", "train.py") == "2.1.0"


@pytest.mark.parametrize("command", [("bash", "-c", "python t.py"), ("nonsense",), ()])
def test_what_runs_python_indirectly_is_not_known(venv: Path, command: tuple[str, ...]) -> None:
    assert find_torch(command, {"PATH": f"{venv}/bin:/bin:/usr/bin"}, str(venv)).version is None


def test_the_base_counts_only_where_the_environment_lets_it(venv: Path, tmp_path: Path) -> None:
    add(tmp_path / "base", "torch-2.9.0.dist-info")
    assert version(venv, "python") is None
    (venv / "pyvenv.cfg").write_text(f"home = {tmp_path}/base/bin\ninclude-system-site-packages = true\n")
    assert version(venv, "python") == "2.9.0"


def test_pythonpath_comes_first(venv: Path, tmp_path: Path) -> None:
    add(venv, "torch-2.5.1.dist-info")
    (tmp_path / "mine" / "torch-2.6.0.dist-info").mkdir(parents=True)
    assert version(venv, "python", PYTHONPATH=f"{tmp_path}/mine") == "2.6.0"


def test_the_interpreter_of_these_tests_is_understood() -> None:
    interpreter = find_interpreter((sys.executable,), {}, "/")
    assert interpreter is not None
    assert find_package(interpreter, "pytest").version == pytest.__version__


def test_commands_are_found_as_exec_finds_them(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    assert find_command("tool", {"PATH": str(tmp_path)}, "/") is None
    (tmp_path / "tool").chmod(0o755)
    assert find_command("tool", {"PATH": f"/nowhere:{tmp_path}"}, "/") == f"{tmp_path}/tool"
    assert find_command("tool", {"PATH": ""}, str(tmp_path)) == f"{tmp_path}/./tool"
    assert find_command("./tool", {"PATH": ""}, str(tmp_path)) == f"{tmp_path}/./tool"
    assert find_command("sh", {}, "/") is not None
    assert read_shebang(f"{tmp_path}/tool") == ["/bin/sh"]
    assert read_shebang(f"{tmp_path}/none") is None
