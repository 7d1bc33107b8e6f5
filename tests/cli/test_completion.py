"""Completion scripts, asked by real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.completion import SHELLS, build_script
from holdfast.cli.verbs import SUMMARIES
from holdfast.desk.runs import registry
from tests.cli.conftest import ENTRY

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

RUNS = ("20261120-104501-digits-3fa2", "20261120-114501-resnet-0b1c")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory for PATH with `holdfast` in it."""
    directory = tmp_path / "bin"
    directory.mkdir()
    script = directory / "holdfast"
    script.write_text(f'#!/bin/sh\nexec {" ".join(ENTRY)} "$@"\n')
    script.chmod(0o755)
    return directory


@pytest.fixture
def runs(isolated_environment: dict[str, str]) -> None:
    for run_id in RUNS:
        (Path(isolated_environment["HOLDFAST_RUNS"]) / run_id).mkdir()


def ask_bash(program: Path, *words: str) -> list[str]:
    """What a real bash offers when TAB is pressed at the end of ``holdfast WORDS``."""
    script = (
        f'source {program}/script.bash; COMP_WORDS=(holdfast "$@"); COMP_CWORD=$#; '
        f'_holdfast_completion holdfast; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    (program / "script.bash").write_text(build_script("bash").script)
    environ = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        env=environ, capture_output=True, text=True, check=False, cwd=program,
    )  # fmt: skip
    # compopt and complete complain outside of an interactive completion; anything else would be ours.
    ours = [line for line in done.stderr.splitlines() if "compopt" not in line and "complete:" not in line]
    assert ours == []
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["a"], ["attach", "adopt"]),
        (["comp"], ["completion"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["run", "--limit-mem"], ["--limit-memory", "--limit-memory-high"]),
        (["run", "--containment", "cg"], ["cgroup_v2", "cgroup_v1"]),
        (["nonsense", "x"], []),
    ],
)
def test_bash_completes_verbs_options_and_choices(program: Path, words: list[str], offered: list[str]) -> None:
    assert ask_bash(program, *words) == offered


@pytest.mark.parametrize("verb", ["show", "logs", "attach", "stop", "restart", "adopt", "rm"])
def test_bash_completes_runs(verb: str, program: Path, runs: None) -> None:
    assert RUNS[0] in ask_bash(program, verb, "2026")
    assert ask_bash(program, verb, "dig") == ["digits"]


def test_a_broken_runs_directory_is_met_with_silence(
    program: Path, isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    root = Path(isolated_environment["HOLDFAST_RUNS"])
    root.rmdir()
    root.write_text("in the way")
    assert ask_bash(program, "show", "2026") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_accepts_its_script(shell: str, holdfast: Command, tmp_path: Path) -> None:
    ended = holdfast("completion", shell)
    assert (ended.code, ended.err) == (0, "")
    assert "_HOLDFAST_COMPLETE" in ended.out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(ended.out)
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", pytest.param("fish", marks=pytest.mark.slow)])
def test_completion_as_json_says_how_to_install_it_also_where_there_is_no_such_directory(
    holdfast: Command, shell: str, isolated_environment: dict[str, str]
) -> None:
    value = holdfast("completion", shell, "--json").json()
    assert value["script"] == build_script(shell).script
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    subprocess.run(["sh", "-c", value["install"]], env={**os.environ, "PATH": path}, check=True)
    home = Path(isolated_environment["HOME"])
    (installed,) = (file for file in home.rglob("holdfast*") if file.is_file())
    assert installed.read_text().strip() == value["script"].strip()


def test_an_unknown_shell_is_a_usage_error(holdfast: Command) -> None:
    ended = holdfast("completion", "tcsh")
    assert ended.code == 64
    assert "'bash'" in ended.err


def test_completing_a_verb_imports_no_verb(program: Path) -> None:
    environ = {**os.environ, "_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast s", "COMP_CWORD": "1"}
    command = [sys.executable, "-X", "importtime", *ENTRY[1:]]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"plain,{verb}" for verb in SUMMARIES if verb.startswith("s")]
    assert "holdfast.cli.verbs.show" not in done.stderr


@pytest.mark.slow
def test_a_tab_knows_places_and_the_runs_that_were_seen_there(
    program: Path, runs: None, isolated_environment: dict[str, str]
) -> None:
    config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast"
    config.mkdir(mode=0o700)
    (config / "places.toml").write_text('[gpu1]\nhost = "nowhere.invalid"\n')
    registry.record_taken("gpu1", RUNS[1])
    far, near = f"gpu1:{RUNS[1]}", "digits"
    for words in (
        ("ls", "--on"),
        ("wait", "--on"),
        ("run", "--on"),
        ("patrol", "--on"),
        ("show", "--on"),
        ("reconcile",),
    ):
        assert ask_bash(program, *words, "g") == ["gpu1"], words
    assert ask_bash(program, "stop", "g") == ["gpu1:resnet", far]
    assert ask_bash(program, "stop", "d") == [near]
    # bash breaks words at colons, and puts what it gets behind the last one.
    assert ask_bash(program, "show", "gpu1", ":") == ["resnet", RUNS[1]]
    assert ask_bash(program, "show", "gpu1", ":", "res") == ["resnet"]
    assert ask_bash(program, "logs", "-f", "gpu1", ":", "2026") == [RUNS[1]]
