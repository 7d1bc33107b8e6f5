"""Seeds, and the states of all random numbers as plain data (LIB-09, CKPT-01, CKPT-11; B-54, B-74).

Python's ``random``, numpy's global generator, torch's of the CPU and of every device that is in use. Libraries that
are not loaded are not loaded for this, and generators that a script makes itself are the script's to track. JAX has no
global state: its keys are arrays.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

from holdfast.training.errors import TrainingError

from .streams import bytes_of, global_streams, tensor_of, unplain_all

Foreign = Any  # an object of torch, which need not be installed
Plain = dict[str, Any]

MAX_SEED = 2**32 - 1
"""The largest seed that all libraries take: numpy.random.seed refuses more than 32 bits."""

ACCELERATORS = ("cuda", "xpu")
"""Modules of torch with is_initialized(), device_count(), get_rng_state(i) and set_rng_state(state, i)."""

CUBLAS_VARIABLE, CUBLAS_VALUE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
FLAG_VARIABLES = (CUBLAS_VARIABLE, "PYTHONHASHSEED", "TF_DETERMINISTIC_OPS", "XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")


class RandomStateUnusable(TrainingError, ValueError):
    """What was given to `restore_states` is not what `capture_states` answers."""


def seed_everything(seed: int, *, rank: int = 0, per_rank: bool = False, deterministic: bool = False) -> Plain:
    """Seed Python, numpy and torch with all its devices, as far as they are loaded, and say what was seeded.

    Every rank gets the same seed, as Lightning's `seed_everything` does: models then begin alike without a broadcast,
    and samplers that shuffle from global state deal the same cards on all ranks. With `per_rank` it is `seed + rank`.
    Call it after the imports: a library that is imported later is not seeded.

    With `deterministic`, torch uses deterministic algorithms or raises where there is none, cuDNN does not try out
    kernels, and ``CUBLAS_WORKSPACE_CONFIG`` is set where it is not (cuBLAS repeats its results only with it; source:
    pytorch.org/docs/stable/notes/randomness.html). Without it, all flags stay as they are.

    Returns:
        For the run's record: seed, what was seeded, the determinism flags in force, versions, and advice.

    Raises:
        TrainingError: The seed, or seed + rank, is not in 0..2**32-1; `rank` is negative.
    """
    effective = _effective(seed, rank if per_rank else 0)
    random.seed(effective)
    seeded = ["python"]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(effective)
        seeded.append("numpy")
    if torch is not None:
        if deterministic:
            _make_deterministic(torch)
        torch.manual_seed(effective)
        seeded.append("torch")
        seeded += [name for name in ACCELERATORS if _device_count(torch, name)]
    return {
        "seed": seed,
        "rank": rank,
        "per_rank": per_rank,
        "effective": effective,
        "seeded": seeded,
        "deterministic": deterministic,
        "flags": _flags(torch),
        "versions": _versions(numpy, torch),
        "advice": _advice(deterministic),
    }


def _effective(seed: int, offset: int) -> int:
    remedy = f"give a whole number from 0 to {MAX_SEED}, which every library takes"
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TrainingError(f"the seed {seed!r} is a {type(seed).__name__}", remedy)
    if offset < 0:
        raise TrainingError(f"the rank {offset} is negative", "ranks count from 0")
    if not 0 <= seed <= MAX_SEED or seed + offset > MAX_SEED:
        raise TrainingError(f"the seed {seed}{f' + rank {offset}' if offset else ''} is out of range", remedy)
    return seed + offset


def _make_deterministic(torch: Foreign) -> None:
    if _device_count(torch, "cuda"):
        # Read when a cuBLAS handle is made, which is later than this in a script that seeds at its start.
        os.environ.setdefault(CUBLAS_VARIABLE, CUBLAS_VALUE)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def _flags(torch: Foreign | None) -> Plain:
    flags: Plain = {name: os.environ[name] for name in FLAG_VARIABLES if name in os.environ}
    if torch is not None:
        flags["torch.deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
        flags["torch.float32_matmul_precision"] = torch.get_float32_matmul_precision()
        flags["torch.num_threads"] = torch.get_num_threads()
        flags["cudnn.benchmark"] = torch.backends.cudnn.benchmark
        flags["cudnn.deterministic"] = torch.backends.cudnn.deterministic
    return flags


def describe_flags(record: Plain) -> str:
    """The determinism flags of a record of `seed_everything` in one line, for who looks from outside."""
    flags = record["flags"]
    ordered = [*(name for name in flags if name not in FLAG_VARIABLES), *(n for n in FLAG_VARIABLES if n in flags)]
    return ", ".join(f"{name}={flags[name]}" for name in ordered if name != "torch.num_threads") or "none is set"


def _versions(numpy: Foreign | None, torch: Foreign | None) -> Plain:
    versions: Plain = {"python": sys.version.split()[0]}
    if numpy is not None:
        versions["numpy"] = str(numpy.__version__)
    if torch is not None:
        versions["torch"] = str(torch.__version__)
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = torch.backends.cudnn.version() if torch.version.cuda else None
    return versions


def _advice(deterministic: bool) -> list[str]:  # noqa: FBT001 - the one question here
    if not deterministic or os.environ.get("PYTHONHASHSEED", "random") != "random":
        return []
    return ["sets and hashes of strings differ from run to run: start Python with PYTHONHASHSEED=0"]


def _device_count(torch: Foreign, name: str) -> int:
    module = getattr(torch, name, None)
    return int(module.device_count()) if module is not None and module.is_available() else 0


def capture_states() -> Plain:
    """The states of all global random numbers: numbers, strings, lists and dicts only.

    Less than 0.1 ms with numpy and torch loaded (measured). A device's state is kept on the host, so that reading it
    waits for no kernel. Devices that this process does not use yet have none.
    """
    streams = global_streams()
    state: Plain = {name: stream.to_plain(stream.get()) for name, stream in streams.items()}
    torch = sys.modules.get("torch")
    for name in ACCELERATORS if torch is not None else ():
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            state[name] = [bytes_of(module.get_rng_state(device)) for device in range(int(module.device_count()))]
    return state


def restore_states(state: Plain) -> list[str]:
    """Go on from what `capture_states` answered, bit for bit.

    Returns:
        What could not be restored, in sentences that name it: a library that is not loaded, a device that is gone.

    Raises:
        RandomStateUnusable: A part is not a state; nothing was changed, or some devices only.
    """
    if not isinstance(state, dict):
        raise RandomStateUnusable(f"the random state is a {type(state).__name__}", "give what capture() answered")
    streams = global_streams()
    plain = {name: value for name, value in state.items() if name not in ACCELERATORS}
    try:
        states = unplain_all(streams, plain)
        puts, warnings = _device_puts(state)
    except ValueError as error:
        raise RandomStateUnusable(str(error), "the checkpoint is damaged or not ours: use an earlier one") from None
    warnings += [_missing(name) for name in plain if name not in streams]
    for put in puts:
        put()
    for name, value in states.items():
        streams[name].restore(value)
    return warnings


def _missing(name: str) -> str:
    if name not in ("numpy", "torch"):
        return f"random numbers of {name!r} are in the checkpoint, and this version of holdfast does not know them"
    return f"{name} is not loaded: its random numbers were not restored; import it before the run begins"


def _device_puts(state: Plain) -> tuple[list[Callable[[], None]], list[str]]:
    """What is to be done for the devices, and what cannot be."""
    torch = sys.modules.get("torch")
    puts: list[Callable[[], None]] = []
    warnings = []
    for name in ACCELERATORS:
        saved = state.get(name)
        if saved is None:
            continue
        if not isinstance(saved, list):
            raise ValueError(f"the state of the random numbers of {name} is no list: {saved!r:.40}")  # noqa: TRY004 - bad data
        present = 0 if torch is None else _device_count(torch, name)
        if present != len(saved):
            warnings.append(
                f"the checkpoint has the random numbers of {len(saved)} {name} devices, and {present} are visible: "
                f"{min(present, len(saved))} were restored"
            )
        for device, text in enumerate(saved[:present]):
            puts.append(_device_put(getattr(torch, name), device, text, name))
    return puts, warnings


def _device_put(module: Foreign, device: int, text: str, name: str) -> Callable[[], None]:
    try:
        tensor = tensor_of(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the state of the random numbers of {name}:{device} is not usable: {error}") from None

    def put() -> None:
        try:
            module.set_rng_state(tensor, device)
        except RuntimeError as error:
            what = f"the random state of {name}:{device} was refused: {str(error).splitlines()[0]}"
            raise RandomStateUnusable(what, "the checkpoint is damaged or of another kind of device") from None

    return put


__all__ = ["RandomStateUnusable", "capture_states", "restore_states", "seed_everything"]
