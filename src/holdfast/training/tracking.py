"""What a run keeps track of: how each thing is captured for a checkpoint and put back in place.

Four kinds. Something with `state_dict()` and `load_state_dict()`; an array, which is overwritten in place; a random
generator; a dictionary or list of these and of plain values, which is updated in place, so that the script's own names
go on pointing at what was restored.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from enum import Enum
from typing import Any

from holdfast.model.record import record

from .errors import CannotResume, TrainingError
from .storage import arrays, layout

WRAPPERS = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put before each key; only ever removed at its beginning (CKPT-12, B-57)."""
_PLAIN = (bool, int, float, str, bytes, complex, type(None))
_Seen = dict[int, tuple[Any, Any]]
"""What was restored so far, by id: the object and its stored state."""


class TrackedKind(str, Enum):
    """How a tracked thing is captured and put back; its value stands in the commit record."""

    STATEFUL = "stateful"
    ARRAY = "array"
    VALUE = "value"


@record(frozen=False)
class Tracked:
    """One tracked thing: its name, itself, how it is restored, and whether every rank has the same."""

    name: str
    target: Any
    kind: TrackedKind
    replicated: bool = False

    def capture(self) -> Any:  # noqa: ANN401 - whatever the target's state is
        """The state as it is, by reference: the caller copies before the script goes on."""
        return self.target.state_dict() if self.kind is TrackedKind.STATEFUL else self.target

    def restore(self, state: Any) -> None:  # noqa: ANN401 - whatever was captured
        """Put `state` back in place.

        Raises:
            CannotResume: it does not fit; the message names the key.
        """
        try:
            if self.kind is TrackedKind.STATEFUL:
                _restore_stateful(self.name, self.target, state)
            else:
                _restore_value(self.name, self.target, state, {})
        except CannotResume:
            raise
        except (ValueError, TypeError, KeyError, RuntimeError, AttributeError, IndexError) as error:
            raise CannotResume(
                f"{self.name} does not fit the checkpoint: {str(error) or type(error).__name__:.500}",
                "run the script with the model and settings of the checkpoint, or use another directory",
            ) from error


def classify_target(name: str, target: Any, replicated: bool | None) -> Tracked:  # noqa: ANN401, FBT001 - whatever the script has
    """Find out how `target` is tracked.

    Raises:
        TrainingError: it cannot be restored in place.
    """
    layout.check_name(name)
    if replicated is None:
        replicated = type(target).__name__ == "DistributedDataParallel"
    target = _unwrap(target)
    if callable(getattr(target, "state_dict", None)) and callable(getattr(target, "load_state_dict", None)):
        return Tracked(name, target, TrackedKind.STATEFUL, replicated)
    if arrays.library_of(target) is not None:
        if arrays.library_of(target) == "jax":
            raise TrainingError(
                f"{name}: a jax array cannot be overwritten in place",
                "keep the training state in a dict and track that: state = {'params': params}, run.track(state)",
            )
        if not arrays.can_be_overwritten(target):
            raise TrainingError(
                f"{name}: an array that cannot be overwritten in place (read-only, or a view that repeats elements)",
                "track a copy of it and compute with that",
            )
        return Tracked(name, target, TrackedKind.ARRAY, replicated)
    if isinstance(target, (dict, list)) or arrays.capture_generator(target) is not None:
        return Tracked(name, target, TrackedKind.VALUE, replicated)
    if callable(getattr(target, "state_dict", None)):
        raise TrainingError(f"{name} has state_dict() and no load_state_dict()", "give it one")
    raise TrainingError(
        f"{name}: {type(target).__name__} {target!r:.60} cannot be restored in place",
        "track something with state_dict() and load_state_dict(), an array, a dict, or keep plain values in run.state",
    )


def _unwrap(target: Any) -> Any:  # noqa: ANN401 - a module or anything else
    """The module inside of DistributedDataParallel, DataParallel or torch.compile: its keys have no prefixes."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(target, torch.nn.Module):
        return target
    while True:
        if type(target).__name__ in ("DistributedDataParallel", "DataParallel"):
            target = target.module
        elif type(target).__name__ == "OptimizedModule":
            target = target._orig_mod  # noqa: SLF001 - torch.compile's own name for it
        else:
            return target


def strip_wrappers(key: str) -> str:
    """`key` without what wrappers put before it: ``_orig_mod.module.x`` is ``x``; ``encoder.module.x`` stays."""
    while True:
        for prefix in WRAPPERS:
            if key.startswith(prefix):
                key = key[len(prefix) :]
                break
        else:
            return key


def match_keys(stored: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """`stored` under the keys of `wanted`, when wrappers are all that tells them apart; else as it is."""
    if stored.keys() == wanted.keys():
        return stored
    bare = {strip_wrappers(key): key for key in wanted}
    renamed = {bare.get(strip_wrappers(key), key): value for key, value in stored.items()}
    return renamed if renamed.keys() == wanted.keys() and len(renamed) == len(stored) else stored


def _restore_stateful(name: str, target: Any, state: Any) -> None:  # noqa: ANN401
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        current = target.state_dict()
        metadata = getattr(state, "_metadata", None)
        state = match_keys(state, current)
        _compare_shapes(name, state, current)
        if metadata is not None and not hasattr(state, "_metadata"):
            state = OrderedDict(state)
            state._metadata = metadata  # noqa: SLF001 - torch's own place
    target.load_state_dict(state)


def _compare_shapes(name: str, stored: dict[str, Any], current: dict[str, Any]) -> None:
    """Say what changed in words, before torch says it in pages."""
    missing, extra = sorted(current.keys() - stored.keys()), sorted(stored.keys() - current.keys())
    changed = [
        f"{key} was {list(stored[key].shape)}, is {list(current[key].shape)}"
        for key in sorted(stored.keys() & current.keys())
        if hasattr(stored[key], "shape") and hasattr(current[key], "shape") and stored[key].shape != current[key].shape
    ]
    parts = [("changed shape", changed), ("not in the checkpoint", missing), ("not in the model", extra)]
    words = [
        f"{len(found)} {what}: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"
        for what, found in parts
        if found
    ]
    if words:
        raise CannotResume(
            f"{name} is not the model that was saved ({'; '.join(words)})",
            "run the script with the model that the checkpoint was made with, or use another directory",
        )


def _restore_value(place: str, target: Any, state: Any, seen: _Seen) -> None:  # noqa: ANN401
    """Update `target` in place; what cannot be is replaced in its container."""
    if arrays.library_of(target) is not None:
        arrays.restore_into(target, state, place)
    elif isinstance(target, dict):
        _expect(place, state, dict)
        for key in [key for key in target if key not in state]:
            del target[key]
        for key, value in state.items():
            target[key] = _merge(f"{place}.{key}", target.get(key), value, seen)
    elif isinstance(target, list):
        _expect(place, state, list)
        target[:] = [
            _merge(f"{place}.{at}", target[at] if at < len(target) else None, value, seen)
            for at, value in enumerate(state)
        ]
    else:
        captured = arrays.capture_generator(state)
        if captured is None:
            raise ValueError(f"{place}: the checkpoint has {type(state).__name__}, the script {type(target).__name__}")
        arrays.restore_generator(target, captured)


def _merge(place: str, old: Any, new: Any, seen: _Seen) -> Any:  # noqa: ANN401
    """What stands at `place` from here on: the old object with the new state where it can hold it, else the new one."""
    if old is None or isinstance(old, _PLAIN):
        return new
    if arrays.library_of(old) == "jax":
        return _as_jax(place, old, new)
    if arrays.library_of(old) is not None and not arrays.can_be_overwritten(old):
        arrays.check_alike(old, new, place)
        return new
    if isinstance(old, tuple):
        _expect(place, new, tuple)
        merged = [
            _merge(f"{place}.{at}", part, item, seen) for at, (part, item) in enumerate(zip(old, new, strict=True))
        ]
        return type(old)(*merged) if hasattr(old, "_fields") else tuple(merged)
    if callable(getattr(old, "state_dict", None)) and callable(getattr(old, "load_state_dict", None)):
        _restore_stateful(place, old, new)
        return old
    if arrays.library_of(old) is None and not isinstance(old, (dict, list)) and arrays.capture_generator(old) is None:
        return new
    if id(old) in seen and not _are_equal(seen[id(old)][1], new):
        # One object in two places as the script begins, and two by the time of the save: this place gets its own.
        old = copy.copy(old) if isinstance(old, (dict, list)) else copy.deepcopy(old)
    seen[id(old)] = (old, new)
    _restore_value(place, old, new, seen)
    return old


def _are_equal(one: Any, other: Any) -> bool:  # noqa: ANN401 - two stored states
    """Whether two stored states are the same to the bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if arrays.library_of(one) is None:
        return bool(one == other) or (arrays.capture_generator(one) or one) == (
            arrays.capture_generator(other) or other
        )
    what = arrays.describe_array(one, "")
    if what != arrays.describe_array(other, ""):
        return False
    bits = bytearray(what.nbytes), bytearray(what.nbytes)
    for array, into in zip((one, other), bits, strict=True):
        arrays.copy_into(array, what, into, 0)
    return bits[0] == bits[1]


def _as_jax(place: str, old: Any, new: Any) -> Any:  # noqa: ANN401
    if arrays.is_jax_key(old):
        random = sys.modules["jax"].random
        return random.wrap_key_data(_as_jax(place, random.key_data(old), new), impl=random.key_impl(old))
    if tuple(old.shape) != tuple(new.shape):
        raise ValueError(f"{place}: the checkpoint has shape {list(new.shape)}, the script {list(old.shape)}")
    return sys.modules["jax"].device_put(new, old.sharding)


def _expect(place: str, state: Any, kind: type) -> None:  # noqa: ANN401
    if not isinstance(state, kind):
        raise ValueError(f"{place}: the checkpoint has {type(state).__name__}, the script {kind.__name__}")  # noqa: TRY004 - bad data
