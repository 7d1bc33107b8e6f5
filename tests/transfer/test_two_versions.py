"""Two bundles and a local installation on one card and one queue, of which one bundle is newer: nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from holdfast.model.run import SCHEMA
from holdfast.model.runs_root import bundles_dir
from holdfast.transfer.bundle import receive
from holdfast.transfer.bundle.build import PACKAGE
from tests.transfer.boxes import pack, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

BUILD = """
import sys
from holdfast.transfer.bundle.build import build_bundle
made = build_bundle({})
sys.stdout.buffer.write(made.hash.encode() + made.data)
"""
HERE = (sys.executable, "-m", "holdfast")
STATED = "schema"


class Versions(NamedTuple):
    """The command lines of two bundles below one runs root, the second of which writes the next format."""

    root: Path
    older: tuple[str, ...]
    newer: tuple[str, ...]


@pytest.fixture
def versions(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Versions]:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1")
    package = tmp_path / "holdfast"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    model = package / "model" / "run.py"
    model.write_text(model.read_text().replace(f"SCHEMA = {SCHEMA}\n", f"SCHEMA = {SCHEMA + 1}\n"))
    built = subprocess.run(
        [sys.executable, "-c", BUILD], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=True
    ).stdout
    root = Path(isolated_environment["HOLDFAST_RUNS"])
    base = bundles_dir(str(root), os.geteuid())
    scripts = []
    for name, data in ((pack().hash, pack().data), (built[:16].decode(), built[16:])):
        receive.install(data, base, name)
        scripts.append((sys.executable, "-X", "utf8", "-I", "-S", f"{base}/{name}/hf.py", "--"))
    yield Versions(root, *scripts)
    for program in scripts:
        subprocess.run([*program, "stop", "--now", "new"], capture_output=True, check=False)
    remove_tree(Path(base))


def call(program: tuple[str, ...], *words: str, code: int = 0) -> str:
    done = subprocess.run([*program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == code, (words, done)
    return done.stdout + done.stderr


def list_runs(program: tuple[str, ...]) -> dict[str, dict[str, object]]:
    listed = json.loads(call(program, "ls", "--all", "--json").partition("\nholdfast:")[0])
    return {run["name"]: run for run in listed["runs"]}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_older_holdfast_leaves_a_newer_run_to_its_own_bundle(versions: Versions) -> None:
    older, newer = versions.older, versions.newer
    call(newer, "run", "--gpus", "1", "-d", "--name", "new", "--", "sleep", "600")
    (run_dir,) = versions.root.glob("*-new-*")
    assert json.loads((run_dir / "run.json").read_text())[STATED] == SCHEMA + 1

    # The card is the newer one's, for everybody.
    for program in (older, HERE):
        assert "new" in call(program, "run", "--gpus", "1", "--", "true", code=75)
    call(HERE, "run", "--gpus", "0", "--name", "old", "--", "true")

    # All list both; who is too old says which bundle is not.
    for program in (older, HERE, newer):
        assert set(list_runs(program)) >= {"new", "old"}
    seen = list_runs(older)["new"]
    assert seen["condition"] == "unreadable"
    assert f"format {SCHEMA + 1}" in str(seen["note"])
    assert f"see it with {newer[5]} -- show" in str(seen["note"])
    assert list_runs(newer)["new"]["condition"] == "running"

    # To act is the newer one's: asked of the older, it is done by it.
    assert "stopped (exit 130)" in call(older, "stop", "new")
    state = json.loads((run_dir / "attempts" / "1" / "state.json").read_text())
    assert (state[STATED], state["state"]["outcome"]) == (SCHEMA + 1, "stopped")
    call(HERE, "restart", "new")
    assert json.loads((run_dir / "attempts" / "2" / "state.json").read_text())[STATED] == SCHEMA + 1
    call(HERE, "stop", "--now", "new")
    call(older, "run", "--gpus", "1", "--", "true")

    # One queue, whoever looks after it.
    call(newer, "submit", "--gpus", "1", "--name", "q-new", "--", "true")
    call(older, "submit", "--gpus", "1", "--name", "q-old", "--", "true")
    for program in (HERE, older, newer):
        call(program, "wait", "q-new", "q-old")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_without_its_bundle_a_newer_run_is_refused_with_words(versions: Versions) -> None:
    call(versions.newer, "run", "--gpus", "0", "--name", "new", "--", "true")
    remove_tree(Path(versions.newer[5]).parent)
    said = call(HERE, "stop", "new", code=74)
    assert f"was written by a newer holdfast (0.1.0, format {SCHEMA + 1}; this one reads up to {SCHEMA})" in said
    assert "no bundle of it is below" in said
    assert list_runs(HERE)["new"]["condition"] == "succeeded"
