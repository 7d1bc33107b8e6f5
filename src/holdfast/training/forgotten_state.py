"""Warns once of what a script forgot: state that exists and is not tracked, a learning rate that went back (CKPT-14).

A resume that lacks the gradient scaler or the moving average goes on without an error and trains something else. After
the first step everything of the kind exists, so it can be looked for; a warning is all that follows.
"""

from __future__ import annotations

import gc
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .storage import arrays, tree

if TYPE_CHECKING:
    from .tracking import Tracked

SAMPLED = 4096
"""So many elements of an array say whether it changes."""
NOTICEABLE = 0.01
"""A learning rate that is this share away from the restored one has moved."""


def find_untracked(tracked: Iterable[Tracked]) -> list[str]:
    """Torch's optimizers, schedulers, gradient scalers and averaged models that live and are not tracked, in words."""
    kinds = _kinds()
    if not kinds:
        return []

    known = {id(part) for item in tracked for part in _parts(item.target)}
    found = _find_others(kinds, known)
    if found:
        gc.collect()  # what only waits to be collected was not forgotten
        found = _find_others(kinds, known)
    return found


def _find_others(kinds: list[tuple[type, str]], known: set[int]) -> list[str]:
    found: list[str] = []
    kind_of: dict[int, str | None] = {}  # a data set may be millions of objects, of few types
    for thing in gc.get_objects():
        # type() does not ask proxies, isinstance() would.
        what = type(thing)
        if id(what) not in kind_of:
            kind_of[id(what)] = next((words for base, words in kinds if issubclass(what, base)), None)
        kind = kind_of[id(what)]
        if kind is not None and id(thing) not in known:
            found.append(f"{kind} ({type(thing).__name__})")
    return sorted(set(found))


def find_all(
    tracked: Mapping[str, Tracked],
    rates: tuple[dict[str, list[float]], dict[str, list[float]]],
    state: Mapping[str, Any],
) -> list[str]:
    """Everything of this page that can be seen after the first step, as sentences.

    `rates` are built and restored, `state` is `Run.state`.
    """
    if not tracked:
        kept = "run.state, the step and the random states" if state else "the step and the random states"
        return [f"nothing was given to run.track(): a checkpoint has {kept} only; give it what else is to be kept"]
    untracked = find_untracked(tracked.values())
    words = [f"{what} is not tracked: a resume would begin it anew; give it to run.track()" for what in untracked]
    words += find_foreign_parameters(tracked)
    words += [
        f"no batch was taken from {name} in the first step: begin the loop over it after run.begin() or run.steps(), "
        "or take its batches from run.batches()"
        for name, item in tracked.items()
        if getattr(item.target, "untouched", False)
    ]
    built, restored = rates
    return words + compare_rates(built, restored, read_rates(tracked))


def find_foreign_parameters(tracked: Mapping[str, Tracked]) -> list[str]:
    """Tracked optimizers of torch that train parameters of a module which is not tracked."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    known: set[int] = set()
    for item in tracked.values():
        for part in _parts(item.target):
            if isinstance(part, torch.nn.Module):
                known.update(id(parameter) for parameter in part.parameters())
            elif isinstance(part, torch.Tensor):
                known.add(id(part))
    return [
        f"{name} trains parameters of a module that is not tracked: give that to run.track(), too"
        for name, item in tracked.items()
        if isinstance(item.target, torch.optim.Optimizer)
        and any(id(parameter) not in known for group in item.target.param_groups for parameter in group["params"])
    ]


def checksum_sample(state: object, name: str) -> int | None:
    """A CRC-32 over the beginnings of all arrays in a state; None without any."""
    digest, found = 0, tree.flatten(state, name)[1]
    for value in found.values():
        piece = value[:SAMPLED] if getattr(value, "ndim", 1) == 1 else value.reshape(-1)[:SAMPLED]
        what = arrays.describe_array(piece, name)
        buffer = bytearray(what.nbytes)
        arrays.copy_into(piece, what, buffer, 0)
        digest = zlib.crc32(buffer, digest)
    return digest if found else None


def _kinds() -> list[tuple[type, str]]:
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    places = (
        ("torch.optim", "Optimizer", "an optimizer"),
        ("torch.optim.lr_scheduler", "LRScheduler", "a learning-rate scheduler"),
        ("torch.amp", "GradScaler", "a gradient scaler"),
        ("torch.optim.swa_utils", "AveragedModel", "a moving average of the weights"),
    )
    found = [(getattr(sys.modules.get(module), name, None), words) for module, name, words in places]
    return [(kind, words) for kind, words in found if isinstance(kind, type)]


def _parts(target: Any) -> Iterator[Any]:  # noqa: ANN401 - anything tracked
    """A tracked thing and what it holds: schedulers keep schedulers, wrappers keep what they wrap."""
    yield target
    held = target.values() if isinstance(target, dict) else target if isinstance(target, (list, tuple)) else ()
    inner = [
        *held,
        *(getattr(target, name, None) for name in ("_schedulers", "optimizer", "scheduler", "scaler", "module")),
    ]
    for part in inner:
        if isinstance(part, (list, tuple)):
            yield from part
        elif part is not None and part is not target:
            yield part


def read_rates(tracked: Mapping[str, Tracked]) -> dict[str, list[float]]:
    """The learning rates of all tracked optimizers, by name, one for each group of parameters."""
    rates = {}
    for name, item in tracked.items():
        groups = getattr(item.target, "param_groups", None)
        if isinstance(groups, list):
            rates[name] = [float(group["lr"]) for group in groups if isinstance(group, dict) and "lr" in group]
    return rates


def compare_rates(
    built: dict[str, list[float]], restored: dict[str, list[float]], now: dict[str, list[float]]
) -> list[str]:
    """Learning rates that a resumed run set back to what its script began with: pure.

    `built` is before anything was restored, `restored` after, `now` after the first step.
    """
    return [
        f"the learning rate of {name} was {old:g} in the checkpoint and is {new:g} again, as the script built it: "
        "build the scheduler before the loop, and track it"
        for name, rates in restored.items()
        for first, old, new in zip(built.get(name, []), rates, now.get(name, []), strict=False)
        if _near(new, first) and not _near(old, first) and not _near(new, old)
    ]


def compare_built(
    began: object, built: dict[str, list[float]], restored: dict[str, list[float]], now: dict[str, list[float]]
) -> dict[str, str]:
    """Optimizers that a script builds with another learning rate than when the checkpoint was made, each with words.

    `began` is what the checkpoint says the script had built, `built` what it builds today, `restored` what came from
    the checkpoint, `now` what is in the optimizer as the loop begins. Of several groups of parameters the first that
    differs is told. Pure.
    """
    words: dict[str, str] = {}
    for name, rates in began.items() if isinstance(began, dict) else ():
        groups = zip(rates, built.get(name, []), restored.get(name, []), now.get(name, []), strict=False)
        for old, new, kept, here in groups:
            if old == new or name in words:
                continue
            changed = f"the script builds {name} with a learning rate of {new:g}, it was {old:g}: "
            words[name] = changed + (
                f"it goes on with {here:g}"
                if not _near(here, kept)
                else f"the checkpoint's goes on ({here:g}); to change it, call run.resume() after run.track(), and "
                f'before the loop set group["lr"] in {name}.param_groups ("Change the learning rate after a stop" in '
                "docs/training.md)"
            )
    return words


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= NOTICEABLE * max(abs(one), abs(other))
