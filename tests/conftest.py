"""What every test gets: an environment of its own, and a look at what it left behind.

Both come by themselves. Tests marked `pure` touch nothing, so they are spared both. Tests marked `files` start no
process that could detach itself: they have the directories, and only what this process holds is looked at afterwards,
not all of /proc. Each test carries exactly one kind as a marker; a file has it as `pytestmark = pytest.mark.process`.

Where the suite is started from must not matter. Variables that would change what is under test are removed, and
signals that whoever started us has ignored (`nohup`, a background job of a script) get their default action in every
child again: an ignored signal would stay ignored through exec (execve(2)). This process itself goes on to survive them.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from holdfast.host.process import children, offload
from tests.budget import examples
from tests.leaks import find_leaks, read_held

if TYPE_CHECKING:
    from collections.abc import Iterator

# No example is judged by its time: the machine may be busy with something else. Hypothesis' own profile for continuous
# integration would fix the examples, also where other ones are asked for.
hypothesis.settings.register_profile(
    "holdfast",
    deadline=None,
    print_blob=True,
    derandomize=False,
    max_examples=examples(100),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("repeatable", hypothesis.settings.get_profile("holdfast"), derandomize=True)
hypothesis.settings.load_profile("holdfast")

pytest_plugins = (
    "tests.agent.fixtures",
    "tests.fakes.nvml.fixtures",
    "tests.limits",
    "tests.runtimes",
    "tests.slurm.cluster",
    "tests.slurm.lab",
    "tests.slurm.programs",
    "tests.sshd",
)

KILLED_WITHIN_S = 30.0
KINDS = frozenset({"pure", "files", "contract", "process", "cli", "cluster"})

# Removed from the environment of each test: they would change what is under test according to where the suite runs.
FOREIGN_PREFIXES = (
    *("HOLDFAST_", "XDG_", "CUDA_", "NVIDIA_", "SLURM_", "KUBERNETES_"),
    *("OMP_", "MKL_", "OPENBLAS_", "NCCL_", "TORCH_", "PYTORCH_", "WANDB_"),
)
FOREIGN_NAMES = frozenset(
    {
        *("TMUX", "STY", "NOTIFY_SOCKET", "INVOCATION_ID", "COLUMNS", "NO_COLOR", "FORCE_COLOR"),
        *("PYTHONUNBUFFERED", "PYTHONHASHSEED"),
        # What the examples read; make hands on what stands on its command line (`make test-all SEED=7`).
        *("SEED", "STEPS", "EPOCHS"),
    }
)


def is_foreign(name: str) -> bool:
    """Whether a variable of the environment is kept from the tests."""
    return name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES


def pytest_configure() -> None:
    """Let no child inherit that a signal is ignored: a handler, unlike SIG_IGN, does not outlive exec."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:  # SIGPIPE and SIGXFSZ are ignored by each Python
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests without a kind, or with two: the kind decides what a test may touch and which runs pick it."""
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


def find_working_directory() -> str:
    """Where this process is, in words also when that was removed: no test after it could begin there."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "that is gone"


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves descriptors, threads, children or detached processes behind."""
    if request.node.get_closest_marker("pure"):
        yield
        return
    mark = str(request.getfixturevalue("tmp_path"))
    before, place = read_held(), os.getcwd()
    yield
    leaks = find_leaks(before, mark, detached=request.node.get_closest_marker("files") is None)
    here = find_working_directory()
    if here != place:
        leaks.append(f"working directory {here}")
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
        if is_foreign(name):
            monkeypatch.delenv(name)
    # The suite may run in a container, whose machine id names no machine: then no reboot could be proven.
    monkeypatch.setenv("HOLDFAST_MACHINE_ID", "the-machine-of-the-tests")
    # A killed child of this process dies when it is given a core, which takes a while beside other tests.
    for module in (children, offload):
        monkeypatch.setattr(module, "KILL_PATIENCE_S", KILLED_WITHIN_S)
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
    for path in directories.values():
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
