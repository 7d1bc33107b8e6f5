"""What every test gets: an environment of its own, and a look at what it left behind.

Both come by themselves. Tests marked `pure` touch nothing, so they are spared the directories and the search of /proc.
Each test carries exactly one of the five kinds as a marker; a file does so with `pytestmark = pytest.mark.process`.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.leaks import find_leaks, read_held
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

# No example is judged by its time: the machine may be busy with something else. Hypothesis' own profile for continuous
# integration would fix the examples, also where other ones are asked for.
hypothesis.settings.register_profile("holdfast", deadline=None, print_blob=True, derandomize=False)
hypothesis.settings.register_profile("repeatable", hypothesis.settings.get_profile("holdfast"), derandomize=True)
hypothesis.settings.load_profile("holdfast")

pytest_plugins = ("tests.agent.fixtures", "tests.fakes.nvml.fixtures")

KINDS = frozenset({"pure", "contract", "process", "cli", "cluster"})

# Removed from the environment of each test: they would change what is under test according to where the suite runs.
FOREIGN_PREFIXES = (
    *("HOLDFAST_", "XDG_", "CUDA_", "NVIDIA_", "SLURM_", "KUBERNETES_"),
    *("OMP_", "MKL_", "OPENBLAS_", "NCCL_", "TORCH_", "PYTORCH_", "WANDB_"),
)
FOREIGN_NAMES = frozenset(
    {"TMUX", "STY", "NOTIFY_SOCKET", "INVOCATION_ID", "PYTHONUNBUFFERED", "COLUMNS", "NO_COLOR", "FORCE_COLOR"}
)

MADE_WHEN_NEEDED = frozenset({"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse tests without a kind, or with two: the kind decides what a test may touch and which runs pick it."""
    for item in items if PATIENCE != 1 else ():
        mark = item.get_closest_marker("timeout")
        limit_s = float(mark.args[0] if mark else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(limit_s * PATIENCE), append=False)
    wrong = []
    for item in items:
        kinds = KINDS.intersection(mark.name for mark in item.iter_markers())
        if len(kinds) != 1:
            wrong.append(f"  {item.nodeid}: {', '.join(sorted(kinds)) or 'none'}")
    if wrong:
        message = f"each test has exactly one kind of {', '.join(sorted(KINDS))}; these have not:\n" + "\n".join(wrong)
        raise pytest.UsageError(message)


def pytest_collection_finish() -> None:
    """Keep what thousands of tests consist of out of each later collection of garbage, also in what is forked off."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves descriptors, threads, children or detached processes behind."""
    if request.node.get_closest_marker("pure"):
        yield
        return
    mark = str(request.getfixturevalue("tmp_path"))
    before, place = read_held(), os.getcwd()
    yield
    leaks = find_leaks(before, mark)
    if os.getcwd() != place:
        leaks.append(f"working directory {os.getcwd()}")
        os.chdir(place)
    if leaks:
        pytest.fail("left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture(autouse=True)
def isolated_environment(
    request: pytest.FixtureRequest, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """Give the test a home, run directories and a lease area of its own; answers what was set.

    Asks for `no_leaks` so that the search for leaks comes last, after every other fixture has cleaned up.
    """
    if request.node.get_closest_marker("pure"):
        yield {}
        return
    for name in list(os.environ):
        if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES:
            monkeypatch.delenv(name)
    root: Path = request.getfixturevalue("tmp_path") / "isolated"
    directories = {
        "HOME": root / "home",
        "XDG_CONFIG_HOME": root / "config",
        "XDG_DATA_HOME": root / "data",
        "XDG_STATE_HOME": root / "state",
        "XDG_CACHE_HOME": root / "cache",
        "XDG_RUNTIME_DIR": root / "runtime",
        # Not below `tmp_path`: multiprocessing puts sockets into it, whose names may have 107 bytes (unix(7)), and a
        # worker of a data loader that cannot make one loses its batches without a word.
        "TMPDIR": Path(tempfile.mkdtemp(prefix="hf-")),
        "HOLDFAST_RUNS": root / "runs",
        "HOLDFAST_LEASE_DIR": root / "leases",
    }
    root.mkdir()
    # What a program makes for itself, when it has something to put there, is not there: each test would pay for it.
    for name, path in directories.items():
        if name not in MADE_WHEN_NEEDED:
            path.mkdir(mode=0o700, exist_ok=True)
    # A lease area as on a real box: sticky, for everybody.
    directories["HOLDFAST_LEASE_DIR"].chmod(0o1777)
    environment = {name: str(path) for name, path in directories.items()}
    # A file that is not there: the rules of this machine do not reach into tests.
    environment["HOLDFAST_RULES"] = str(root / "rules.toml")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield environment
    shutil.rmtree(directories["TMPDIR"], ignore_errors=True)


@pytest.fixture
def public_path(no_leaks: None) -> Iterator[Path]:
    """A directory that other accounts can enter too; pytest's own `tmp_path` is closed to them."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=tempfile.gettempdir()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
