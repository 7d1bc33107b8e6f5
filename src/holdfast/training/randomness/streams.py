"""Streams of random numbers, one like the other: Python's, numpy's, torch's; read, put back, seeded, written as JSON.

A stream's *state* is what `get` answers and `put` takes; it is cheap and stays in this process. Its *plain* form has
only numbers, strings, lists and dicts, so that a checkpoint with it is read without running code (B-74).
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

Foreign = Any  # an object of torch or numpy, which need not be installed
State = Any
Plain = Any

MASK32 = 0xFFFFFFFF


class RandomStream(Protocol):
    """One source of random numbers."""

    @property
    def kind(self) -> str:
        """Whose it is, in a word or two."""

    def get(self) -> State:
        """The state that the next numbers follow from."""

    def restore(self, state: State) -> None:
        """Go on from a state of `get`."""

    def seed(self, seed: int) -> None:
        """Start over from a number of 63 bits."""

    def to_plain(self, state: State) -> Plain:
        """A state as JSON holds it."""

    def from_plain(self, plain: Plain) -> State:
        """The state again. ValueError, TypeError or KeyError for what `to_plain` did not write for such a stream."""


class PythonStream:
    """The module `random` or a `random.Random`."""

    kind = "python"

    def __init__(self, source: Any = random) -> None:  # noqa: ANN401 - the module or an instance
        self._source = source

    def get(self) -> State:
        """As `RandomStream.get`."""
        return self._source.getstate()

    def restore(self, state: State) -> None:
        """As `RandomStream.restore`."""
        self._source.setstate(state)

    def seed(self, seed: int) -> None:
        """As `RandomStream.seed`."""
        self._source.seed(seed)

    def to_plain(self, state: State) -> Plain:
        """As `RandomStream.to_plain`.

        Version, the numbers of the Mersenne twister, the Gaussian number that is left over.
        """
        version, numbers, gauss = state
        return {"version": version, "numbers": list(numbers), "gauss": gauss}

    def from_plain(self, plain: Plain) -> State:
        """As `RandomStream.from_plain`."""
        state = (plain["version"], tuple(plain["numbers"]), plain["gauss"])
        random.Random().setstate(state)  # noqa: S311 - no secret: refuses what it could not go on from
        return state


class NumpyStream:
    """numpy's global generator (the module ``numpy.random``) or a ``RandomState``.

    The numbers are a list: numpy takes a list back 25 times faster than the array that it gives (measured, 2.4).
    """

    kind = "numpy"

    def __init__(self, source: Foreign) -> None:
        self._source = source

    def get(self) -> State:
        """As `RandomStream.get`."""
        return _lists(self._source.get_state(legacy=False))

    def restore(self, state: State) -> None:
        """As `RandomStream.restore`."""
        self._source.set_state(state)

    def seed(self, seed: int) -> None:
        """As `RandomStream.seed`."""
        self._source.seed([seed & MASK32, seed >> 32 & MASK32])

    def to_plain(self, state: State) -> Plain:
        """As `RandomStream.to_plain`."""
        return state

    def from_plain(self, plain: Plain) -> State:
        """As `RandomStream.from_plain`."""
        kind = self._source.get_state(legacy=False)["bit_generator"]
        if plain["bit_generator"] != kind:
            raise ValueError(f"it is of a {plain['bit_generator']}, and this one is a {kind}")
        if kind == "MT19937":
            sys.modules["numpy"].random.RandomState().set_state(plain)  # refuses what it could not go on from
        return plain


class NumpyGeneratorStream:
    """A ``numpy.random.Generator``."""

    kind = "numpy generator"

    def __init__(self, source: Foreign) -> None:
        self._bits = source.bit_generator

    def get(self) -> State:
        """As `RandomStream.get`."""
        return self._bits.state

    def restore(self, state: State) -> None:
        """As `RandomStream.restore`."""
        self._bits.state = state

    def seed(self, seed: int) -> None:
        """As `RandomStream.seed`."""
        self._bits.state = type(self._bits)(seed).state

    def to_plain(self, state: State) -> Plain:
        """As `RandomStream.to_plain`."""
        return _lists(state)

    def from_plain(self, plain: Plain) -> State:
        """As `RandomStream.from_plain`."""
        present = self._bits.state
        if plain["bit_generator"] != present["bit_generator"]:
            raise ValueError(f"it is of a {plain['bit_generator']}, and this one is a {present['bit_generator']}")
        state = _arrays(plain, present)
        type(self._bits)(0).state = state
        return state


class TorchStream:
    """A ``torch.Generator``, also torch's global one of the CPU (``torch.default_generator``)."""

    kind = "torch"

    def __init__(self, source: Foreign) -> None:
        self._source = source

    def get(self) -> State:
        """As `RandomStream.get`."""
        return self._source.get_state()

    def restore(self, state: State) -> None:
        """As `RandomStream.restore`."""
        self._source.set_state(state)

    def seed(self, seed: int) -> None:
        """As `RandomStream.seed`."""
        self._source.manual_seed(seed)

    def to_plain(self, state: State) -> Plain:
        """As `RandomStream.to_plain`: the bytes of the state in base 64."""
        return bytes_of(state)

    def from_plain(self, plain: Plain) -> State:
        """As `RandomStream.from_plain`."""
        state = tensor_of(plain)
        try:
            sys.modules["torch"].Generator(self._source.device).set_state(state)
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[0]) from None
        return state


def bytes_of(tensor: Foreign) -> str:
    """The bytes of a CPU tensor of uint8 in base 64; numpy, which torch does without, is not needed for it."""
    return base64.b64encode(ctypes.string_at(tensor.data_ptr(), tensor.numel())).decode()


def tensor_of(text: str) -> Foreign:
    """The tensor again.

    Raises:
        ValueError: `text` is not base 64, or nothing.
        TypeError: It is no text.
    """
    torch = sys.modules["torch"]
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8).clone()


def _lists(value: Plain) -> Plain:
    """Arrays and numpy's numbers as Python's."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _arrays(plain: Plain, like: State) -> State:
    """`plain` with arrays where `like` has them: the setters of some bit generators ask for arrays."""
    if isinstance(like, dict):
        return {key: _arrays(plain[key], item) for key, item in like.items()}
    return sys.modules["numpy"].asarray(plain, dtype=like.dtype) if hasattr(like, "dtype") else plain


def global_streams() -> dict[str, RandomStream]:
    """The streams that everybody in this process shares, of the libraries that are loaded."""
    streams: dict[str, RandomStream] = {"python": PythonStream()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        streams["numpy"] = NumpyStream(numpy.random)
    if torch is not None:
        streams["torch"] = TorchStream(torch.default_generator)
    return streams


def stream_of(value: object) -> RandomStream | None:
    """`value` as a stream when it is a random generator whose state can be read."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else PythonStream(value)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return NumpyGeneratorStream(value)
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return NumpyStream(value)
    if torch is not None and isinstance(value, torch.Generator):
        return TorchStream(value)
    return None


def streams_inside(owners: Iterable[tuple[str, object]]) -> dict[str, RandomStream]:
    """The generators that are attributes of `owners` (name, object), by ``name.attribute``; one that is shared once."""
    found: dict[str, RandomStream] = {}
    seen: set[int] = set()
    for name, owner in owners:
        for attribute, value in sorted(getattr(owner, "__dict__", {}).items()):
            stream = None if id(value) in seen else stream_of(value)
            if stream is not None:
                seen.add(id(value))
                found[f"{name}.{attribute}"] = stream
    return found


def get_all(streams: Mapping[str, RandomStream]) -> dict[str, State]:
    """The states of `streams`."""
    return {name: stream.get() for name, stream in streams.items()}


def restore_all(streams: Mapping[str, RandomStream], states: Mapping[str, State]) -> None:
    """Put each state back into its stream; a state without its stream stays out."""
    for name, state in states.items():
        stream = streams.get(name)
        if stream is not None:
            stream.restore(state)


def plain_all(streams: Mapping[str, RandomStream], states: Mapping[str, State]) -> dict[str, Plain]:
    """States as JSON holds them."""
    return {name: streams[name].to_plain(state) for name, state in states.items()}


def unplain_all(streams: Mapping[str, RandomStream], plain: Mapping[str, Plain]) -> dict[str, State]:
    """The states again, of the streams that are there.

    Raises:
        ValueError: One is not a state of its stream; the message names it.
    """
    states = {}
    for name, value in plain.items():
        stream = streams.get(name)
        if stream is None:
            continue
        try:
            states[name] = stream.from_plain(value)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            raise ValueError(f"the state of the random numbers of {name} is not usable: {error}") from None
    return states


def derive_seed(label: str, plain: Plain) -> int:
    """A seed of 63 bits from a state and a label; the same ones give the same seed on every machine."""
    text = json.dumps([label, plain], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class IsolatedRandomness:
    """A block that draws from global streams of its own and leaves those of everybody else as they were.

    Each library's stream begins with a seed derived from that library's global state and a label: ranks whose states
    agree go on to agree, and the epochs differ. About 0.1 ms for each block when numpy is loaded (its state is slow to
    read), 0.02 ms without.
    """

    def __init__(self, seeds: Mapping[str, int]) -> None:
        self._seeds = dict(seeds)
        self._own: dict[str, State] | None = None
        self._outside: dict[str, State] = {}

    @classmethod
    def derived(cls, label: str) -> IsolatedRandomness:
        """Streams that begin with seeds from the present global states."""
        return cls(derived_seeds(label))

    def __enter__(self) -> None:
        streams = global_streams()
        self._outside = get_all(streams)
        if self._own is not None:
            restore_all(streams, self._own)
            return
        for name, seed in self._seeds.items():
            if name in streams:
                streams[name].seed(seed)

    def __exit__(self, *_: object) -> None:
        streams = global_streams()
        self._own = get_all(streams)
        restore_all(streams, self._outside)


def derived_seeds(label: str) -> dict[str, int]:
    """A seed for each global stream from its present state and `label`."""
    return {name: derive_seed(label, stream.to_plain(stream.get())) for name, stream in global_streams().items()}
