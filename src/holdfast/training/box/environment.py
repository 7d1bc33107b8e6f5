"""What the supervisor gave this process, read once, applied and checked (LIB-08, LIB-09, LIB-10).

`read_context` is the one place that knows the variables' names. Nothing of it is needed: a script that was started by
hand has none of them, and everything answers None. A value that makes no sense is left out and named in `problems`.

`apply_environment` holds the process to it: a card that was promised and is not usable ends the process at
once, with the code of a check before the start (78), because a training that falls back to the CPU computes for days
unnoticed.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.model.record import record
from holdfast.training.cadence import parse_every
from holdfast.training.randomness.rng import seed_everything
from holdfast.training.reporting.heartbeat import write_stderr

from .memory import limit_gpu_memory
from .slices import LoaderAdvice, Slice, advise_loader, measure_slice

__all__ = [
    "AppliedSettings",
    "DevicesMissing",
    "JobContext",
    "LoaderAdvice",
    "Slice",
    "advise_loader",
    "apply_environment",
    "measure_slice",
    "of_rank",
    "read_context",
]  # fmt: skip

T = TypeVar("T")

EX_CONFIG = 78
METRICS, STOP_RECORD, STACKS = "metrics.jsonl", "stop.json", "stacks.txt"
DRIVER = "/proc/driver/nvidia/version"
_FAR_FUTURE_S = 1e11


@record
class JobContext:
    """What the environment says; None is "not said".

    `deadline` is epoch seconds, `grace_s` and `interruption_s` are seconds; `gpu_count` cards are leased (0: a CPU
    run), `visible` is what CUDA_VISIBLE_DEVICES says; `threads` is the cap for this process, `workers` the bound for
    data-loader workers; `every` and `keep_last` are the checkpoint settings of the job, `seed` the one that it states.
    `simulated`: the cards do not exist, so they are not looked for. `rehearsal`: `holdfast drill` runs this, in a place
    of its own. `problems`: what was malformed and is ignored, for people.
    """

    run_dir: str | None = None
    run_id: str | None = None
    attempt: int | None = None
    reason: str | None = None
    checkpoint_dir: str | None = None
    artifact_dir: str | None = None
    heartbeat: str | None = None
    metrics: str | None = None
    stop_record: str | None = None
    stacks: str | None = None
    checkpoint_request: str | None = None
    deadline: float | None = None
    grace_s: float | None = None
    gpu_count: int | None = None
    gpu_memory_share: float | None = None
    visible: str | None = None
    threads: int | None = None
    local_rank: int | None = None
    local_world: int | None = None
    interruption_s: float | None = None
    workers: int | None = None
    mirror: str | None = None
    every: str | None = None
    keep_last: int | None = None
    seed: int | None = None
    simulated: bool = False
    rehearsal: bool = False
    problems: tuple[str, ...] = ()


@record
class AppliedSettings:
    """What was found and done, for the record; None is "not known".

    `devices`: usable cards, `needed`: how many of them had to be, `limited`: cards whose memory share was limited,
    `seeds`: the record of `rng.seed_everything`, `notes`: what a person should know.
    """

    devices: int | None = None
    needed: int | None = None
    threads: int | None = None
    interop_threads: int | None = None
    limited: int = 0
    seeds: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


class DevicesMissing(SystemExit):
    """A card was promised and none, or too few, are usable: leaves with 78, as a check before the start does."""

    def __init__(self, message: str) -> None:
        super().__init__(EX_CONFIG)
        self.message = message

    def __str__(self) -> str:
        return self.message


# ---------------------------------------------------------------------------------------------------------- reading


def read_context(environ: Mapping[str, str] | None = None) -> JobContext:
    """What the supervisor put into `environ` (None: this process's own). Never raises for what stands there."""
    reader = _Reader(os.environ if environ is None else environ)
    heartbeat = reader.text("HOLDFAST_HEARTBEAT")

    def beside(name: str) -> str | None:
        return None if heartbeat is None else os.path.join(os.path.dirname(heartbeat), name)

    return JobContext(
        run_dir=reader.text("HOLDFAST_RUN_DIR"),
        run_id=reader.text("HOLDFAST_RUN_ID"),
        attempt=reader.count("HOLDFAST_ATTEMPT", least=0),
        reason=reader.text("HOLDFAST_REASON"),
        checkpoint_dir=reader.text("HOLDFAST_CHECKPOINT_DIR"),
        artifact_dir=reader.text("HOLDFAST_ARTIFACT_DIR"),
        heartbeat=heartbeat,
        metrics=beside(METRICS),
        stop_record=beside(STOP_RECORD),
        stacks=beside(STACKS),
        checkpoint_request=reader.text("HOLDFAST_CHECKPOINT_REQUEST"),
        deadline=reader.number("HOLDFAST_DEADLINE", most=_FAR_FUTURE_S),
        grace_s=reader.number("HOLDFAST_GRACE"),
        gpu_count=reader.count("HOLDFAST_GPU_COUNT", least=0),
        gpu_memory_share=reader.number("HOLDFAST_GPU_MEMORY_SHARE", most=1.0),
        visible=reader.raw("CUDA_VISIBLE_DEVICES"),
        threads=reader.first_count("OMP_NUM_THREADS"),
        local_rank=reader.count("LOCAL_RANK", least=0),
        local_world=reader.count("LOCAL_WORLD_SIZE", least=1),
        interruption_s=reader.number("HOLDFAST_MEAN_TIME_BETWEEN_INTERRUPTIONS"),
        workers=reader.count("HOLDFAST_WORKERS", least=0),
        mirror=reader.text("HOLDFAST_MIRROR_DIR"),
        every=reader.every("HOLDFAST_CHECKPOINT_EVERY"),
        keep_last=reader.count("HOLDFAST_CHECKPOINT_KEEP", least=1),
        seed=reader.whole("HOLDFAST_SEED"),
        simulated=reader.text("HOLDFAST_SIMULATED_GPUS") is not None,
        rehearsal=reader.text("HOLDFAST_REHEARSAL") is not None,
        problems=tuple(reader.problems),
    )


class _Reader:
    """One environment, and what was wrong in it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def raw(self, name: str) -> str | None:
        return self._environ.get(name)

    def text(self, name: str) -> str | None:
        return self._environ.get(name) or None

    def count(self, name: str, *, least: int) -> int | None:
        return self._convert(name, lambda text: _to_count(text, least), f"a whole number of at least {least}")

    def whole(self, name: str) -> int | None:
        return self._convert(name, _to_whole, "a whole number")

    def first_count(self, name: str) -> int | None:
        """The first of a list of counts: OMP_NUM_THREADS has one for each level of nesting."""
        return self._convert(name, lambda text: _to_count(text.split(",")[0].strip(), 1), "a whole number above 0")

    def number(self, name: str, *, most: float = math.inf) -> float | None:
        wanted = "a number above 0" if most == math.inf else f"a number above 0 and up to {most:g}"
        return self._convert(name, lambda text: _to_number(text, most), wanted)

    def every(self, name: str) -> str | None:
        def check(text: str) -> str:
            parse_every(text)
            return text

        return self._convert(name, check, "auto, a number of steps or a time such as 10m")

    def _convert(self, name: str, convert: Callable[[str], T], wanted: str) -> T | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return convert(text)
        except ValueError:
            self.problems.append(f"{name} is {text[:60]!r}, expected {wanted}; it is ignored")
            return None


def _to_count(text: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) < least:
        raise ValueError(text)
    return int(text)


def _to_whole(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,40}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _to_number(text: str, most: float) -> float:
    value = float(text)
    if not (0 < value <= most and value < math.inf):
        raise ValueError(text)
    return value


def of_rank(path: str, rank: int) -> str:
    """The file of one rank: rank 0 has `path` itself, rank 2 of ``stacks.txt`` has ``stacks.rank-2.txt``."""
    stem, suffix = os.path.splitext(path)
    return path if rank == 0 else f"{stem}.rank-{rank}{suffix}"


# ---------------------------------------------------------------------------------------------------------- applying


def apply_environment(
    context: JobContext, *, seed: int | None = None, rank: int = 0, deterministic: bool = False
) -> AppliedSettings:
    """Check the cards, cap the threads, limit the share of the cards' memory, seed everything.

    Call it after the script has imported torch and before it uses a card. Without torch nothing can be said about the
    cards and nothing is: `AppliedSettings.devices` is then None, with a note. `deterministic` without a seed takes seed
    0.

    Raises:
        DevicesMissing: cards were promised and too few are usable; a message is on standard error.
    """
    torch = sys.modules.get("torch")
    notes: list[str] = []
    try:
        devices, needed = _check_devices(context, torch, notes)
    except DevicesMissing as missing:
        write_stderr(missing.message)
        raise
    threads, interop = _cap_threads(context.threads, torch, notes)
    limited = _limit_memory(context, devices, notes)
    seeds = None
    if seed is not None or deterministic:
        seeds = seed_everything(0 if seed is None else seed, rank=rank, deterministic=deterministic)
    return AppliedSettings(devices, needed, threads, interop, limited, seeds, tuple(notes))


def hold_standard_streams() -> None:
    """Put /dev/null where standard input, output or error is closed.

    Else the next files to be opened take their numbers: a print of some library would write into a checkpoint, and the
    writer process, whose standard streams are redirected, would be given what it cannot use.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is the one that is given out.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _check_devices(context: JobContext, torch: Any, notes: list[str]) -> tuple[int | None, int | None]:  # noqa: ANN401
    """The usable cards and how many are needed.

    Raises:
        DevicesMissing: there are fewer.
    """
    promised = context.gpu_count
    if not promised:
        return None, promised
    if context.simulated:
        notes.append(f"{_cards(promised)} promised, and SIMULATED: no hardware was looked for")
        return None, promised
    named = None if context.visible is None else _count_named(context.visible)
    if named == 0:
        raise DevicesMissing(
            f"{_cards(promised)} promised, but CUDA_VISIBLE_DEVICES is {context.visible!r}, which hides all cards. "
            "Remove what sets it in the script or its launcher: the supervisor has set it to the leased cards"
        )
    if torch is None:
        notes.append(f"{_cards(promised)} promised; whether they are usable is not known: torch is not imported yet")
        return None, promised
    needed = promised
    if named is not None and named < promised:
        needed = named
        notes.append(f"{_cards(promised)} promised, but CUDA_VISIBLE_DEVICES names only {named}: the rest is idle")
    # A launcher may have given each of its processes a part of the cards.
    needed = max(1, math.ceil(needed / (context.local_world or 1)))
    devices = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    if devices < needed:
        raise DevicesMissing(_explain_missing(context, torch, devices))
    return devices, needed


def _count_named(visible: str) -> int:
    """How many devices the variable names; from the first -1 on, CUDA sees none. Source: CUDA programming guide."""
    count = 0
    for entry in visible.split(","):
        if not entry.strip() or entry.strip() == "-1":
            break
        count += 1
    return count


def _cards(count: int) -> str:
    return "1 GPU was" if count == 1 else f"{count} GPUs were"


def _explain_missing(context: JobContext, torch: Any, devices: int) -> str:  # noqa: ANN401 - the module
    version = getattr(torch, "version", None)
    cuda, hip = getattr(version, "cuda", None), getattr(version, "hip", None)
    driver = _read_driver()
    seen = [
        f"{_cards(context.gpu_count or 0)} promised and torch sees {devices}",
        f"CUDA_VISIBLE_DEVICES is {'not set' if context.visible is None else context.visible}",
        f"torch {getattr(torch, '__version__', '(unknown version)')} "
        + (f"is built for CUDA {cuda}" if cuda else f"is built for ROCm {hip}" if hip else "is built without CUDA"),
        f"the driver is {driver}" if driver else f"no NVIDIA driver is to be seen ({DRIVER})",
    ]
    if not cuda and not hip:
        remedy = "install a build of torch with CUDA into this environment (pytorch.org/get-started)"
    elif cuda and driver is None:
        remedy = "give the driver to the container (docker run --gpus all, a GPU limit in the pod), or load it"
    elif devices == 0:
        remedy = f"compare the CUDA version that nvidia-smi shows with {cuda or hip}, and look for Xid errors in dmesg"
    else:
        remedy = "look with nvidia-smi for the card that is gone; a name in the list that does not exist hides the rest"
    return "; ".join(seen) + ". What to do: " + remedy


def _read_driver() -> str | None:
    """The version of the loaded NVIDIA driver; None when there is none to be seen."""
    try:
        with open(DRIVER, encoding="utf-8", errors="replace") as file:
            found = re.search(r"\d+\.\d+(?:\.\d+)?", file.readline())
    except OSError:
        return None
    return found[0] if found else "of unknown version"


def _cap_threads(cap: int | None, torch: Any, notes: list[str]) -> tuple[int | None, int | None]:  # noqa: ANN401
    """Lower torch's thread counts to the cap; a script that has chosen fewer keeps its choice."""
    if torch is None or not hasattr(torch, "get_num_threads"):
        return None, None
    if cap is not None and torch.get_num_threads() > cap:
        torch.set_num_threads(cap)
    if cap is not None and torch.get_num_interop_threads() > cap:
        try:
            torch.set_num_interop_threads(cap)
        except RuntimeError:
            # Source: torch.set_num_interop_threads: once only, and before any inter-op work has started.
            seen = torch.get_num_interop_threads()
            notes.append(f"torch's inter-op pool keeps {seen} threads, the cap is {cap}: torch has begun to use it")
    return int(torch.get_num_threads()), int(torch.get_num_interop_threads())


def _limit_memory(context: JobContext, devices: int | None, notes: list[str]) -> int:
    share = context.gpu_memory_share
    if share is None or not devices:
        return 0
    only = None
    if (context.local_world or 1) > 1 and context.local_rank is not None and context.local_rank < devices:
        only = (context.local_rank,)
    limited = limit_gpu_memory(share, only)
    if not limited:
        notes.append(f"the share of {share:g} of the cards' memory is not in force: torch sees no card")
    return limited
