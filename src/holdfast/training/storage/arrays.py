"""Arrays of torch, numpy, jax and plain Python as bytes, without importing any of them.

The names of the element types are those of the safetensors format (F32, BF16, I64, ...; source: its README). What the
format has no name for is stored as another type and marked with a view: complex numbers as pairs of reals.
"""

from __future__ import annotations

import random
import sys
from array import array
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from holdfast.model.record import record
from holdfast.training.errors import CannotSave

if TYPE_CHECKING:
    from mmap import mmap

    Buffer = memoryview | bytearray | mmap

SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element."""
_TORCH = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
    "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16",
    "int32": "I32", "uint32": "U32", "float32": "F32",
    "int64": "I64", "uint64": "U64", "float64": "F64",
}  # fmt: skip
_FROM_CODE = {code: name for name, code in _TORCH.items()}
_NUMPY_RAW = {"BF16": "uint16", "F8_E5M2": "uint8", "F8_E4M3": "uint8"}
"""What numpy, which has no such numbers of its own, sees instead: the bits."""
_COMPLEX = {"complex64": "F32", "complex128": "F64"}
_PYTHON = {
    "b": "I8",
    "B": "U8",
    "h": "I16",
    "H": "U16",
    "i": "I32",
    "I": "U32",
    "q": "I64",
    "Q": "U64",
    "f": "F32",
    "d": "F64",
}
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_PYTHON_CODES = {code: letter for letter, code in _PYTHON.items()}


@record
class DescribedArray:
    """One array: which library's, element type, shape in elements, and the view that gives its own type back."""

    library: str
    code: str
    shape: tuple[int, ...]
    view: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return prod(self.shape) * SIZES[self.code]


@lru_cache(maxsize=1 << 14)
def _describe_as(library: str, code: str, shape: tuple[int, ...], view: str = "") -> DescribedArray:
    """One object for all arrays that are alike: layouts are compared at each save, and so mostly by identity."""
    return DescribedArray(library, code, shape, view)


_TORCH_ALIKE: dict[tuple[Any, tuple[int, ...]], DescribedArray] = {}
"""What plain tensors are stored as, by element type and shape: a state has thousands of them, of a few kinds."""
MOST_ALIKE = 1 << 14


def library_of(value: object) -> str | None:
    """``torch``, ``numpy``, ``jax`` or ``python`` when `value` is an array of theirs, else None."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return "numpy"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        return "jax"
    if isinstance(value, bytearray) or (type(value).__module__, type(value).__name__) == ("array", "array"):
        return "python"
    return None


def is_jax_key(value: Any) -> bool:  # noqa: ANN401 - a jax array
    """Whether these are typed random keys (``jax.random.key``), whose elements are no numbers but hold some."""
    return str(value.dtype).startswith("key<")


def describe_array(value: Any, place: str) -> DescribedArray:  # noqa: ANN401 - an array of any library
    """What `value`, which stands at `place` in the state, is stored as.

    Raises:
        CannotSave: its elements are no plain numbers, or its memory cannot be read.
    """
    library = library_of(value)
    assert library is not None, place
    if library == "python":
        if isinstance(value, bytearray):
            return DescribedArray(library, "U8", (len(value),), "bytearray")
        letter = {"l": "q", "L": "Q"}.get(value.typecode, value.typecode)
        if letter not in _PYTHON or value.itemsize != SIZES[_PYTHON[letter]]:
            raise CannotSave(place, f"an array of typecode {value.typecode!r}", "use an array of numbers")
        # An array takes elements only from one of the same letter, whatever their sizes.
        return DescribedArray(library, _PYTHON[letter], (len(value),), value.typecode if value.typecode in "lL" else "")
    given = value
    if library == "torch":
        value = _local(value, place)
        name = str(value.dtype).removeprefix("torch.")
    else:
        if library == "jax" and is_jax_key(value):
            value = sys.modules["jax"].random.key_data(value)
        name = value.dtype.name
        if hasattr(value, "mask"):
            raise CannotSave(place, "a masked array", "track its .data and its .mask")
    shape = tuple(int(size) for size in value.shape)
    if name in _COMPLEX:
        return _describe_as(library, _COMPLEX[name], (*shape, 2), name)
    if name not in _TORCH:
        raise CannotSave(place, f"its elements are {name}", "convert it to numbers, or keep it out of what is tracked")
    what = _describe_as(library, _TORCH[name], shape)
    if library == "torch" and _is_plain(given) and len(_TORCH_ALIKE) < MOST_ALIKE:
        _TORCH_ALIKE[value.dtype, shape] = what
    return what


def describe_alike(value: Any) -> DescribedArray | None:  # noqa: ANN401 - an array of any library
    """As `describe_array` for an ordinary tensor in memory, if one like it was described before; else None.

    A save asks for each tensor of the state while the loop stands still. What `_local` refuses or converts never gets
    an answer here: it has another class, layout or element type, or no data.
    """
    torch = sys.modules.get("torch")
    if torch is None or not _is_plain(value):
        return None
    if not value.is_cpu or value.layout is not torch.strided or value.is_nested or not value.data_ptr():
        return None
    return _TORCH_ALIKE.get((value.dtype, value.shape))


def _local(tensor: Any, place: str) -> Any:  # noqa: ANN401 - a torch.Tensor
    """The part of a tensor that this process holds, if it is one whose bytes can be copied."""
    torch = sys.modules["torch"]
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # a DTensor: each rank saves its own shard
    if tensor.is_nested:
        raise CannotSave(place, "a nested tensor", "save its parts, or its .values() and .offsets()")
    if tensor.layout is not torch.strided:
        raise CannotSave(place, f"a tensor of layout {tensor.layout}", "convert it with .to_dense()")
    if tensor.is_quantized:
        raise CannotSave(place, "a quantized tensor", "save its .int_repr() and its scale")
    if tensor.device.type == "meta":
        raise CannotSave(
            place, "a tensor on the meta device, which has no data", "materialise it first (to_empty, load)"
        )
    if (
        _is_plain(tensor)
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.numel()
        and not tensor.untyped_storage().nbytes()
    ):
        # Reading it would end the process. Wrappers that shard a model free the memory of what they gather this way.
        raise CannotSave(place, "a tensor whose memory was given back (resize_(0))", "save it while it has its data")
    return tensor


def _is_plain(tensor: Any) -> bool:  # noqa: ANN401 - a torch.Tensor
    """Whether it is no subclass, which may hold its numbers elsewhere, or nowhere."""
    torch = sys.modules["torch"]
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


def address_of(value: Any, what: DescribedArray) -> int | None:  # noqa: ANN401 - an array of any library
    """Where the bytes of `value` lie, if that is in this process's memory, in one piece, and as they are stored.

    None for everything else, which `copy_into` can copy.
    """
    if what.view or sys.byteorder != "little":
        return None
    if what.library == "torch":
        if _is_plain(value) and value.is_cpu and value.is_contiguous() and not value.is_neg():
            return value.data_ptr() or None
    elif what.library == "numpy" and value.size and value.flags.c_contiguous and value.dtype.isnative:
        return int(value.__array_interface__["data"][0])
    return None


def copy_into(value: Any, what: DescribedArray, buffer: Buffer, offset: int) -> bool:  # noqa: ANN401 - an array of any library
    """Copy the bytes of `value` into `buffer` at `offset`; True if a device still copies and must be waited for."""
    if what.nbytes == 0:
        return False
    if what.library == "torch":
        return _copy_torch(value, what, buffer, offset)
    if what.library == "python":
        memoryview(buffer)[offset : offset + what.nbytes] = memoryview(value).cast("B")
        return False
    np = sys.modules.get("numpy")
    assert np is not None, "jax brings numpy"
    if what.library == "jax" and is_jax_key(value):
        value = sys.modules["jax"].random.key_data(value)
    source = np.asarray(value)
    if what.view:
        target = np.frombuffer(buffer, source.dtype.newbyteorder("<"), prod(what.shape[:-1]), offset)
    elif what.code in _NUMPY_RAW:
        source = np.ascontiguousarray(source).view(_NUMPY_RAW[what.code])
        target = np.frombuffer(buffer, source.dtype, source.size, offset)
    else:
        target = np.frombuffer(buffer, source.dtype.newbyteorder("<"), source.size, offset)
    np.copyto(target.reshape(source.shape), source)
    return False


def _copy_torch(value: Any, what: DescribedArray, buffer: Buffer, offset: int) -> bool:  # noqa: ANN401 - a torch.Tensor
    torch = sys.modules["torch"]
    source = value.detach()
    if hasattr(source, "to_local"):
        source = source.to_local()
    if what.view:
        source = torch.view_as_real(source.resolve_conj())
    if source.is_neg():
        source = source.resolve_neg()
    target = torch.frombuffer(buffer, dtype=source.dtype, count=source.numel(), offset=offset).view(source.shape)
    on_device = source.device.type != "cpu"
    target.copy_(source, non_blocking=on_device)
    return bool(on_device)


def synchronize() -> None:
    """Wait for the copies that devices still make."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch is not None and hasattr(torch, "accelerator") and torch.accelerator.is_available():
        torch.accelerator.synchronize()


def from_buffer(what: DescribedArray, buffer: Buffer, offset: int) -> Any:  # noqa: ANN401 - an array of any library
    """The array in `buffer` at `offset`, in the library that it came from if that is loaded, else in one that is.

    Torch and numpy arrays share the buffer's memory. Without both, numbers come as an ``array.array`` of one dimension.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    library, code, shape, view = what.library, what.code, what.shape, what.view
    count = prod(shape)
    if library == "python" or (torch is None and numpy is None):
        return _python_array(code, count, view, buffer, offset)
    if torch is not None and (library == "torch" or numpy is None):
        dtype = getattr(torch, _FROM_CODE[code])
        if count == 0:
            flat = torch.empty(0, dtype=dtype)
        else:
            flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
        tensor = flat.view(shape)
        return torch.view_as_complex(tensor) if view in _COMPLEX else tensor
    assert numpy is not None
    if code in _NUMPY_RAW:
        raw = numpy.frombuffer(buffer, _NUMPY_RAW[code], count, offset).reshape(shape)
        return raw if library != "jax" else _jax_bits(raw, _FROM_CODE[code])
    array = numpy.frombuffer(buffer, numpy.dtype(_FROM_CODE[code]).newbyteorder("<"), count, offset).reshape(shape)
    return array.view(view).reshape(shape[:-1]) if view in _COMPLEX else array


def _jax_bits(raw: Any, name: str) -> Any:  # noqa: ANN401 - a numpy array
    """Numbers that only ml_dtypes, which jax brings, can name to numpy."""
    types = sys.modules.get("ml_dtypes")
    return raw if types is None else raw.view(getattr(types, name))


def _python_array(code: str, count: int, view: str, buffer: Buffer, offset: int) -> Any:  # noqa: ANN401
    data = bytes(memoryview(buffer)[offset : offset + count * SIZES[code]])
    if view == "bytearray":
        return bytearray(data)

    return array(view if view in ("l", "L") else _PYTHON_CODES.get(code, "B"), data)


def can_be_overwritten(value: Any) -> bool:  # noqa: ANN401 - an array of any library
    """Whether its elements can be set: not those of a view that repeats them, nor of a read-only array."""
    library = library_of(value)
    if library == "torch":
        repeats = value.layout is sys.modules["torch"].strided and any(
            step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True)
        )
        return not repeats and not value.is_inference()
    return library == "python" or (library == "numpy" and bool(value.flags.writeable))


def check_alike(target: Any, source: Any, place: str) -> None:  # noqa: ANN401 - arrays of the same library
    """See that `source` may take the place of `target`.

    Raises:
        ValueError: the shapes or the element types differ; the message names both.
    """
    there, here = (tuple(source.shape), _type_of(source)), (tuple(target.shape), _type_of(target))
    if there != here:
        raise ValueError(f"{place}: the checkpoint has {_words(there)}, the script {_words(here)}")


def restore_into(target: Any, source: Any, place: str) -> None:  # noqa: ANN401 - arrays of the same library
    """Copy `source` over the elements of `target`, in place.

    Raises:
        ValueError: the shapes or the element types differ; the message names both.
    """
    if library_of(target) == "python":
        if len(target) != len(source):
            raise ValueError(f"{place}: the checkpoint has {len(source)} elements, the script {len(target)}")
        target[:] = source
        return
    check_alike(target, source, place)
    if library_of(target) == "torch":
        torch = sys.modules["torch"]
        with torch.no_grad():
            target.copy_(source)
    else:
        target[...] = source


def _type_of(array: Any) -> str:  # noqa: ANN401 - an array of any library
    """The name of the element type; numpy's without the byte order, which assignment converts."""
    return str(getattr(array.dtype, "name", array.dtype))


def _words(what: tuple[tuple[int, ...], str]) -> str:
    return f"shape {list(what[0])} of {what[1].removeprefix('torch.')}"


def capture_generator(value: Any) -> dict[str, Any] | None:  # noqa: ANN401 - anything
    """The state of a random generator object of Python, numpy or torch in plain values; None if it is none."""
    if type(value) is random.Random:
        version, words, gauss = value.getstate()
        return {"library": "python", "state": [version, list(words), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return {"library": "numpy", "state": _plain(value.bit_generator.state)}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Generator):
        return {"library": "torch", "device": str(value.device), "state": bytes(value.get_state().tolist())}
    return None


def _plain(state: Any) -> Any:  # noqa: ANN401 - numpy's nested dictionaries
    if isinstance(state, dict):
        return {key: _plain(item) for key, item in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


def make_generator(state: dict[str, Any]) -> Any:  # noqa: ANN401 - a generator object
    """A generator object in the captured state; the state itself when its library is not loaded."""
    if state["library"] == "python":
        made: Any = random.Random()  # noqa: S311 - not for secrets
    elif state["library"] == "numpy" and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        kind = state["state"]["bit_generator"]
        if kind not in _BIT_GENERATORS:
            raise ValueError(
                f"numpy's random state names the generator {kind!r}; known are {', '.join(_BIT_GENERATORS)}"
            )
        made = numpy.random.Generator(getattr(numpy.random, kind)())
    elif state["library"] == "torch" and "torch" in sys.modules:
        made = sys.modules["torch"].Generator(device=state["device"])
    else:
        return state
    restore_generator(made, state)
    return made


def restore_generator(target: Any, state: dict[str, Any]) -> None:  # noqa: ANN401 - a generator object
    """Put a generator object into the captured state, in place."""
    if state["library"] == "python":
        version, words, gauss = state["state"]
        target.setstate((version, tuple(words), gauss))
    elif state["library"] == "numpy":
        target.bit_generator.state = state["state"]
    else:
        torch = sys.modules["torch"]
        target.set_state(torch.tensor(list(state["state"]), dtype=torch.uint8))
