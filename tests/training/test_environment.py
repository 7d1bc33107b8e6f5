"""What the supervisor promised: read whole, malformed values named, cards checked, caps applied."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.model.record import fields, replace
from holdfast.training.box import environment
from holdfast.training.box.environment import DevicesMissing, JobContext, apply_environment, of_rank, read_context

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

FULL = {
    "HOLDFAST_RUN_DIR": "/runs/r",
    "HOLDFAST_RUN_ID": "20261120-101010-r-abcd",
    "HOLDFAST_ATTEMPT": "2",
    "HOLDFAST_REASON": "preempted",
    "HOLDFAST_CHECKPOINT_DIR": "/runs/r/checkpoints",
    "HOLDFAST_ARTIFACT_DIR": "/runs/r/artifacts",
    "HOLDFAST_HEARTBEAT": "/runs/r/attempts/2/heartbeat.json",
    "HOLDFAST_CHECKPOINT_REQUEST": "/runs/r/attempts/2/checkpoint_request.json",
    "HOLDFAST_DEADLINE": "1795000000",
    "HOLDFAST_GRACE": "45.5",
    "HOLDFAST_GPU_COUNT": "2",
    "HOLDFAST_GPU_MEMORY_SHARE": "0.9",
    "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
    "OMP_NUM_THREADS": "4,2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "HOLDFAST_MEAN_TIME_BETWEEN_INTERRUPTIONS": "7200",
    "HOLDFAST_WORKERS": "3",
    "HOLDFAST_MIRROR_DIR": "/mirror",
    "HOLDFAST_CHECKPOINT_EVERY": "10m",
    "HOLDFAST_CHECKPOINT_KEEP": "3",
    "HOLDFAST_SEED": "-7",
    "HOLDFAST_SIMULATED_GPUS": "4",
    "HOLDFAST_REHEARSAL": "1",
}


class FakeCuda:
    """Stands where torch.cuda does and writes down what it is asked."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.calls: list[tuple[float, int]] = []

    def is_available(self) -> bool:
        return self.devices > 0

    def device_count(self) -> int:
        return self.devices

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        self.calls.append((fraction, device))


class FakeTorch(types.ModuleType):
    """A torch that records what is asked of it."""

    def __init__(self, devices: int, *, cuda: str | None = "12.8") -> None:
        super().__init__("torch")
        self.__version__ = "2.13.0" if cuda else "2.13.0+cpu"
        self.version = types.SimpleNamespace(cuda=cuda, hip=None)
        self.cuda = FakeCuda(devices)
        self.threads, self.interop = 16, 16
        self.started = False

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, count: int) -> None:
        self.threads = count

    def get_num_interop_threads(self) -> int:
        return self.interop

    def set_num_interop_threads(self, count: int) -> None:
        if self.started:
            raise RuntimeError("cannot set number of interop threads after parallel work has started")
        self.interop = count


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a fake torch with so many devices the loaded one."""

    def load(devices: int, **settings: Any) -> FakeTorch:
        torch = FakeTorch(devices, **settings)
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    return load


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


# ------------------------------------------------------------------------------------------------------------ reading


def test_all_promises_are_read() -> None:
    context = read_context(FULL)
    assert context.problems == ()
    given = {field.name: getattr(context, field.name) for field in fields(context)}
    assert given.pop("problems") == ()
    assert [name for name, value in given.items() if value in (None, False)] == [], "not read"
    assert (context.attempt, context.deadline, context.grace_s) == (2, 1795000000.0, 45.5)
    assert (context.gpu_count, context.gpu_memory_share, context.threads) == (2, 0.9, 4)
    assert context.metrics == "/runs/r/attempts/2/metrics.jsonl"
    assert context.stop_record == "/runs/r/attempts/2/stop.json"
    assert context.stacks == "/runs/r/attempts/2/stacks.txt"
    assert (context.every, context.keep_last, context.workers, context.seed) == ("10m", 3, 3, -7)


def test_without_a_supervisor_nothing_is_promised() -> None:
    assert read_context({}) == JobContext()
    assert read_context(dict.fromkeys(FULL, "")) == JobContext(visible="")


def test_this_process_s_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_ID", "this-one")
    assert read_context().run_id == "this-one"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("HOLDFAST_GPU_COUNT", value) for value in ("-1", "two", "1.5", "1e3", "٢", "9" * 30)),
        *(("HOLDFAST_GPU_MEMORY_SHARE", value) for value in ("0", "1.5", "nan", "-0.1", "all")),
        *(("HOLDFAST_DEADLINE", value) for value in ("soon", "inf", "nan", "-5", "1e30")),
        *(("HOLDFAST_GRACE", value) for value in ("inf", "0", "x")),
        *(("HOLDFAST_MEAN_TIME_BETWEEN_INTERRUPTIONS", value) for value in ("0", "3h")),
        *(("HOLDFAST_CHECKPOINT_EVERY", value) for value in ("sometimes", "0", "-5m")),
        *(("HOLDFAST_CHECKPOINT_KEEP", value) for value in ("0", "few")),
        *(("HOLDFAST_SEED", value) for value in ("1.5", "many")),
        *(("OMP_NUM_THREADS", value) for value in ("0", "many", ",")),
        *(("LOCAL_WORLD_SIZE", value) for value in ("0", "x")),
        *(("HOLDFAST_WORKERS", "-1"), ("HOLDFAST_ATTEMPT", "second"), ("LOCAL_RANK", "first")),
    ],
)
def test_a_malformed_value_is_ignored_and_named(name: str, value: str) -> None:
    context = read_context({name: value})
    (problem,) = context.problems
    assert problem.startswith(f"{name} is ")
    assert "expected" in problem
    assert replace(context, problems=()) == JobContext()


@pytest.mark.parametrize(
    ("path", "rank", "own"),
    [("/a/stacks.txt", 0, "/a/stacks.txt"), ("/a/stacks.txt", 3, "/a/stacks.rank-3.txt"), ("x", 1, "x.rank-1")],
)
def test_each_rank_has_a_file_of_its_own(path: str, rank: int, own: str) -> None:
    assert of_rank(path, rank) == own


# -------------------------------------------------------------------------------------------------------------- cards


@pytest.mark.gotcha("U31")
@pytest.mark.requirement("LIB-08")
def test_LIB_08_a_promised_card_that_torch_does_not_see_ends_with_the_preflight_code(
    with_torch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with_torch(0)
    with pytest.raises(DevicesMissing) as caught:
        apply_environment(JobContext(gpu_count=1, visible="GPU-a"))
    assert isinstance(caught.value, SystemExit)
    assert caught.value.code == 78
    message = capsys.readouterr().err
    assert str(caught.value) in message
    for said in ("1 GPU was promised and torch sees 0", "CUDA_VISIBLE_DEVICES is GPU-a", "CUDA 12.8", "driver", "do:"):
        assert said in message


@pytest.mark.gotcha("K8S6")
@pytest.mark.requirement("LIB-08")
def test_LIB_08_a_torch_for_cpus_is_named_as_the_cause(with_torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with_torch(0, cuda=None)
    with pytest.raises(
        DevicesMissing, match=r"2\.13\.0\+cpu is built without CUDA.*install a build of torch with CUDA"
    ):
        apply_environment(JobContext(gpu_count=1))
    assert "CUDA_VISIBLE_DEVICES is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [(None, 0, "docker run --gpus all"), ("550.54.15", 0, "Xid"), ("550.54.15", 1, "the card that is gone")],
)
def test_the_remedy_follows_the_cause(
    with_torch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: tuple[str | None, int, str]
) -> None:
    driver, devices, remedy = case
    path = tmp_path / "version"
    if driver:
        path.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue Mar  5 22:23:56 UTC 2024\n")
    monkeypatch.setattr(environment, "DRIVER", str(path))
    with_torch(devices)
    with pytest.raises(DevicesMissing) as caught:
        apply_environment(JobContext(gpu_count=2))
    assert remedy in str(caught.value)
    assert (driver or "no NVIDIA driver") in str(caught.value)


@pytest.mark.gotcha("NB3")
@pytest.mark.parametrize("visible", ["", "-1", " ", "-1,0"])
def test_LIB_08_hidden_cards_are_found_without_torch(without_torch: None, visible: str) -> None:
    with pytest.raises(DevicesMissing, match="hides all cards"):
        apply_environment(JobContext(gpu_count=1, visible=visible))


def test_LIB_08_without_torch_the_cards_are_unknown_and_never_fine(without_torch: None) -> None:
    applied = apply_environment(JobContext(gpu_count=1, visible="GPU-a"))
    assert applied.devices is None
    assert "not known" in applied.notes[0]


def test_LIB_08_enough_cards_pass(with_torch: Any) -> None:
    with_torch(2)
    applied = apply_environment(JobContext(gpu_count=2, visible="GPU-a,GPU-b"))
    assert (applied.devices, applied.needed, applied.notes) == (2, 2, ())


@pytest.mark.parametrize("count", [None, 0])
def test_no_promise_asks_for_no_card(with_torch: Any, count: int | None) -> None:
    with_torch(0)
    assert apply_environment(JobContext(gpu_count=count)).devices is None


def test_a_launcher_may_split_the_cards_among_its_ranks(with_torch: Any) -> None:
    with_torch(1)
    applied = apply_environment(JobContext(gpu_count=4, visible="GPU-c", local_world=4, local_rank=2))
    assert (applied.devices, applied.needed) == (1, 1)


def test_a_script_that_narrows_its_own_list_is_told_what_is_idle(with_torch: Any) -> None:
    with_torch(1)
    applied = apply_environment(JobContext(gpu_count=4, visible="GPU-a"))
    assert applied.needed == 1
    assert "names only 1" in applied.notes[0]


def test_simulated_cards_are_not_looked_for_and_said_to_be_simulated(with_torch: Any) -> None:
    with_torch(0)
    applied = apply_environment(JobContext(gpu_count=2, visible="GPU-a,GPU-b", simulated=True))
    assert applied.devices is None
    assert "SIMULATED" in applied.notes[0]


# --------------------------------------------------------------------------------------------------------------- caps


@pytest.mark.requirement("LIB-10")
def test_LIB_10_the_share_and_the_caps_go_through_torch_s_own_calls(with_torch: Any) -> None:
    torch = with_torch(2)
    applied = apply_environment(JobContext(gpu_count=2, gpu_memory_share=0.9, threads=4))
    assert torch.cuda.calls == [(0.9, 0), (0.9, 1)]
    assert (applied.limited, applied.threads, applied.interop_threads) == (2, 4, 4)


def test_LIB_10_a_rank_limits_only_its_own_card(with_torch: Any) -> None:
    torch = with_torch(4)
    apply_environment(JobContext(gpu_count=4, gpu_memory_share=0.9, local_rank=2, local_world=4))
    assert torch.cuda.calls == [(0.9, 2)]


def test_LIB_10_a_script_that_chose_fewer_threads_keeps_them(with_torch: Any) -> None:
    torch = with_torch(0)
    torch.threads = torch.interop = 2
    assert apply_environment(JobContext(threads=4)).threads == 2


def test_LIB_10_a_pool_that_is_in_use_already_is_a_note(with_torch: Any) -> None:
    torch = with_torch(0)
    torch.started = True
    applied = apply_environment(JobContext(threads=4))
    assert (applied.threads, applied.interop_threads) == (4, 16)
    assert "keeps 16 threads" in applied.notes[0]


def test_without_promises_nothing_is_touched(with_torch: Any) -> None:
    torch = with_torch(1)
    applied = apply_environment(JobContext())
    assert (torch.threads, torch.interop, torch.cuda.calls) == (16, 16, [])
    assert applied.seeds is None


@pytest.mark.gotcha("U36")
@pytest.mark.requirement("LIB-09")
def test_LIB_09_the_seeds_that_were_set_are_given_back(monkeypatch: pytest.MonkeyPatch, without_torch: None) -> None:
    asked: list[tuple[int, int, bool]] = []

    def seed_everything(seed: int, *, rank: int = 0, deterministic: bool = False) -> dict[str, int]:
        asked.append((seed, rank, deterministic))
        return {"seed": seed}

    monkeypatch.setattr(environment, "seed_everything", seed_everything)
    assert apply_environment(JobContext(), seed=7, rank=1).seeds == {"seed": 7}
    assert apply_environment(JobContext(), deterministic=True).seeds == {"seed": 0}
    assert asked == [(7, 1, False), (0, 0, True)]


REAL = """
import torch
torch.set_num_threads(2)
from holdfast.training.box.environment import apply_environment, read_context
applied = apply_environment(read_context())
print(torch.get_num_threads(), torch.get_num_interop_threads(), applied.threads, applied.interop_threads)
"""


@pytest.mark.requirement("LIB-08", "LIB-10")
@pytest.mark.parametrize(
    ("promised", "code", "said"),
    [pytest.param("0", 0, "1 1 1 1", marks=pytest.mark.slow), ("1", 78, "1 GPU was promised and torch sees 0")],
)
def test_LIB_10_real_torch_on_cpus_obeys_the_cap_and_misses_the_card(promised: str, code: int, said: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_GPU_COUNT": promised}
    done = subprocess.run([sys.executable, "-c", REAL], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
