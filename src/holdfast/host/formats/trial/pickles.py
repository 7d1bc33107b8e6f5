"""What a pickle would build, told from its opcodes: nothing is imported, and no code of it is ever run.

The stack machine of pickle is walked with stand-ins: a function or class is its name, what it would have returned is
the name with its arguments. So storages of tensors and arrays are found, and what would run code is named. Source:
Lib/pickletools.py, "The documentation of the pickle machine".
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from typing import IO, Any

from holdfast.model.record import field, record

from .pickle_names import ALLOWED, is_dangerous

MOST_OPCODES = 2_000_000
"""Of one file, with all pickles in it."""
MOST_ITEMS = 200_000
"""Of containers, so many items are kept."""
LONGEST_NAME = 1000


class BadPickle(ValueError):
    """It is no whole pickle; the message says why."""


@record
class Name:
    """A class or function, by module and name."""

    full: str


@record
class Made:
    """What calling `maker` with these arguments would have given; `state` is what was set on it afterwards."""

    maker: object
    arguments: object
    state: list[object] = field(default_factory=list)


@record
class Stored:
    """A storage that lies beside the pickle: what stands for it."""

    ident: object


@record
class Pickle:
    """What one pickle is: its value as far as it is kept, names that it would call, storages, floats not finite.

    `nested` are the arguments of calls that would load their bytes as another file of torch. `array_bytes` is how much
    of it are tensors and arrays, `codes` how the floats are coded of storages that do not say it themselves, by key,
    and `unread` why something of it was not looked into.
    """

    value: object
    names: tuple[str, ...]
    stored: tuple[object, ...]
    made: tuple[Made, ...]
    not_finite: int
    nested: tuple[object, ...] = ()
    array_bytes: int = 0
    codes: dict[str, str] = field(default_factory=dict)
    unread: str = ""

    @property
    def dangerous(self) -> tuple[str, ...]:
        """What would run code of somebody's choice."""
        return tuple(name for name in self.names if is_dangerous(name))

    @property
    def unknown(self) -> tuple[str, ...]:
        """What it would need to be loaded, beside `ALLOWED`."""
        return tuple(name for name in self.names if name not in ALLOWED)


class Bounded:
    """A file that is never asked for more than it has: a length in a pickle may be any number."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        """`size` is what is left of the file."""
        self._file, self._left = file, size

    def read(self, size: int) -> bytes:
        """As of a file."""
        data = self._file.read(max(0, min(size, self._left)))
        self._left -= len(data)
        return data

    def readline(self) -> bytes:
        """As of a file."""
        data = self._file.readline(self._left)
        self._left -= len(data)
        return data


_MARK = object()
_WITH_BYTES_BEHIND = "numpy_pickle.NumpyArrayWrapper"
"""Of joblib: the bytes of an array follow, between two opcodes."""


class _Machine:
    """The stack machine. Containers are kept up to `MOST_ITEMS` items."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.names: dict[str, None] = {}
        self.stored: list[object] = []
        self.made: list[Made] = []
        self.nested: list[object] = []
        self.not_finite = 0

    def pop_mark(self) -> list[Any]:
        items: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    def name(self, module: object, attribute: object) -> Name:
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise TypeError("a name that it computes")  # it may be a tuple of tuples without an end, in words
        full = f"{module}.{attribute}"
        if len(full) > LONGEST_NAME:
            raise ValueError(f"a name of {len(full)} characters")
        self.names[full] = None
        return Name(full)

    def make(self, maker: object, arguments: object) -> Made:
        made = Made(maker, arguments)
        if isinstance(maker, Name) and maker.full.endswith("._load_from_bytes"):
            self.nested.append(arguments)
        if len(self.made) >= MOST_ITEMS:
            raise Unwalked("a pickle of more objects than are looked at")
        self.made.append(made)
        return made

    def extend(self, target: object, items: list[Any]) -> None:
        if isinstance(target, list) and len(target) < MOST_ITEMS:
            target.extend(items)
        elif isinstance(target, Made):
            target.state.append(items)


class Steps:
    """How many opcodes may be walked yet, of one file with all that is in it."""

    def __init__(self) -> None:
        """All of them."""
        self.left = MOST_OPCODES

    def take(self) -> None:
        """One more.

        Raises:
            Unwalked: that were too many.
        """
        self.left -= 1
        if self.left < 0:
            raise Unwalked("a pickle that is longer than is walked")


class Unwalked(Exception):
    """A pickle that cannot be followed to its end, though nothing of it is wrong; the message says why."""


def walk(file: IO[bytes], size: int, steps: Steps) -> Pickle:
    """Walk one pickle, which begins here; the file stands behind it afterwards.

    Raises:
        BadPickle: it is none, or is not whole.
        Unwalked: it is longer than is walked, or of a form that is not known here.
        OSError: it cannot be read.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(Bounded(file, size)):  # type: ignore[arg-type]
            steps.take()
            _step(machine, opcode.name, argument)
        value = machine.stack[-1] if machine.stack else None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise BadPickle(f"no whole pickle: {str(error) or type(error).__name__}") from error
    return Pickle(
        value,
        tuple(machine.names),
        tuple(machine.stored),
        tuple(machine.made),
        machine.not_finite,
        tuple(machine.nested),
    )


def _step(machine: _Machine, name: str, argument: Any) -> None:  # noqa: ANN401
    if name in _PUSHES:
        machine.stack.append(argument)
        if isinstance(argument, float) and not math.isfinite(argument):
            machine.not_finite += 1
        return
    if name in _FIXED:
        machine.stack.append(_FIXED[name]())
        return
    action = _ACTIONS.get(name)
    if action is None:
        raise ValueError(f"opcode {name}")
    action(machine, argument)


_VALUES = (
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE "
    "SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
)
_PUSHES = frozenset(_VALUES.split())
_FIXED: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,
    "MARK": lambda: _MARK,
}


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _argument: object) -> None:
        machine.stack[-count:] = [tuple(machine.stack[-count:])]

    return act


def _append(machine: _Machine, _argument: object) -> None:
    item = machine.stack.pop()
    machine.extend(machine.stack[-1], [item])


def _appends(machine: _Machine, _argument: object) -> None:
    items = machine.pop_mark()
    machine.extend(machine.stack[-1], items)


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, Made):
        target.state.append(items[1::2])
    elif isinstance(target, dict):
        for key, value in zip(items[0::2], items[1::2], strict=True):
            if len(target) < MOST_ITEMS and isinstance(key, (str, int, bytes)):
                target[key] = value


def _set_item(machine: _Machine, _argument: object) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set_items(machine, [key, value])


def _reduce(machine: _Machine, _argument: object) -> None:
    arguments, maker = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.make(maker, arguments))


def _new_ex(machine: _Machine, _argument: object) -> None:
    _keywords, arguments, maker = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.make(maker, arguments))


def _build(machine: _Machine, _argument: object) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(target, Name):
        machine.name(target.full, "<changed>")  # a class or function of its own, for all that is loaded afterwards
    if not isinstance(target, Made):
        return
    target.state.append(state)
    if isinstance(target.maker, Name) and target.maker.full.endswith(_WITH_BYTES_BEHIND):
        raise Unwalked(f"holds code of {target.maker.full}: not loaded")


def _next_buffer(_machine: _Machine, _argument: object) -> None:
    raise Unwalked("its buffers lie outside of it")


def _persistent(machine: _Machine, ident: object) -> None:
    machine.stored.append(ident)
    machine.stack.append(Stored(ident))


def _global(machine: _Machine, argument: Any) -> None:  # noqa: ANN401
    module, _, attribute = str(argument).partition(" ")
    machine.stack.append(machine.name(module, attribute))


def _stack_global(machine: _Machine, _argument: object) -> None:
    attribute, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.name(module, attribute))


def _inst(machine: _Machine, argument: Any) -> None:  # noqa: ANN401
    module, _, attribute = str(argument).partition(" ")
    arguments = tuple(machine.pop_mark())
    machine.stack.append(machine.make(machine.name(module, attribute), arguments))


def _obj(machine: _Machine, _argument: object) -> None:
    items = machine.pop_mark()
    machine.stack.append(machine.make(items[0], tuple(items[1:])))


def _extension(machine: _Machine, argument: object) -> None:
    machine.stack.append(machine.name("extension", f"{argument}"))


def _put(machine: _Machine, argument: Any) -> None:  # noqa: ANN401
    machine.memo[int(argument)] = machine.stack[-1]


def _pop_mark(machine: _Machine, _argument: object) -> None:
    machine.pop_mark()


def _dict(machine: _Machine, _argument: object) -> None:
    items = machine.pop_mark()
    machine.stack.append({})
    _set_items(machine, items)


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda _machine, _argument: None,
    "FRAME": lambda _machine, _argument: None,
    "STOP": lambda _machine, _argument: None,
    "READONLY_BUFFER": lambda _machine, _argument: None,
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": _pop_mark,
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "LIST": lambda machine, _: machine.stack.append(machine.pop_mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_mark())),
    "FROZENSET": lambda machine, _: machine.stack.append(tuple(machine.pop_mark())),
    "DICT": _dict,
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "ADDITEMS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: _set_items(machine, machine.pop_mark()),
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_ex,
    "BUILD": _build,
    "NEXT_BUFFER": _next_buffer,
    "BINPERSID": lambda machine, _: _persistent(machine, machine.stack.pop()),
    "PERSID": _persistent,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "INST": _inst,
    "OBJ": _obj,
    "EXT1": _extension,
    "EXT2": _extension,
    "EXT4": _extension,
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": lambda machine, _: machine.memo.__setitem__(len(machine.memo), machine.stack[-1]),
    "GET": lambda machine, argument: machine.stack.append(machine.memo[int(argument)]),
    "BINGET": lambda machine, argument: machine.stack.append(machine.memo[int(argument)]),
    "LONG_BINGET": lambda machine, argument: machine.stack.append(machine.memo[int(argument)]),
}
