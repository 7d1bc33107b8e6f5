"""Arrays of torch, numpy and Python come back bit for bit, in every number type, from any memory layout."""

from __future__ import annotations

import os
import sys
from array import array
from typing import Any

import numpy as np
import pytest

from holdfast.training.errors import CannotSave
from holdfast.training.storage import arrays, checkpoints
from tests.training.faults import support

pytestmark = pytest.mark.files
torch: Any = pytest.importorskip("torch")

TORCH = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn", "complex64", "complex128"),
]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4, 5)]


def bits(value: Any) -> bytes:
    """What an array is, down to the payload of a NaN."""
    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj().resolve_neg().contiguous()
        return bytes(value.view(torch.uint8).numpy().tobytes()) if value.dim() else bits(value.reshape(1))
    return np.ascontiguousarray(value).tobytes()


def random_tensor(name: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Any bit pattern: also NaN, infinities and denormal numbers."""
    dtype = getattr(torch, name)
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    raw = np.random.default_rng(seed).integers(0, 2 if name == "bool" else 256, count, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def through_disk(directory: Any, state: Any) -> Any:
    result = support.save(directory, 1, {"t": state})
    assert result.ok, result
    return checkpoints.load_checkpoint(result.path).states["t"]


@pytest.mark.requirement("CKPT-01")
def test_every_torch_type_and_shape_comes_back_bit_for_bit(tmp_path: Any) -> None:
    state = {f"{name} {shape}": random_tensor(name, shape) for name in TORCH for shape in SHAPES}
    back = through_disk(tmp_path, state)
    wrong = [
        key
        for key, value in state.items()
        if (back[key].dtype, back[key].shape) != (value.dtype, value.shape) or bits(back[key]) != bits(value)
    ]
    assert not wrong


NUMPY = ["?", "u1", "i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]


@pytest.mark.requirement("CKPT-01")
def test_every_numpy_type_and_shape_comes_back_bit_for_bit(tmp_path: Any) -> None:
    draw = np.random.default_rng(1)
    state = {}
    for code in NUMPY:
        for shape in SHAPES:
            count = int(np.prod(shape)) * np.dtype(code).itemsize
            raw = draw.integers(0, 2 if code == "?" else 256, count, dtype=np.uint8)
            state[f"{code} {shape}"] = raw.view(code).reshape(shape)
    back = through_disk(tmp_path, state)
    wrong = [
        key
        for key, value in state.items()
        if (back[key].dtype, back[key].shape) != (value.dtype, value.shape) or bits(back[key]) != bits(value)
    ]
    assert not wrong


def test_numbers_in_the_other_byte_order_come_back_with_their_values(tmp_path: Any) -> None:
    state = {code: np.array([1, 2, 500], code) for code in (">i2", ">f4", ">f8", ">c8")}
    back = through_disk(tmp_path, state)
    for code, value in state.items():
        assert back[code].tolist() == value.tolist(), code


def test_python_arrays_come_back_with_their_own_letter(tmp_path: Any) -> None:
    state: dict[str, Any] = {code: array(code, [1, 2, 100]) for code in "bBhHiIlLqQfd"}
    state["bytes"], state["none"] = bytearray(b"\0abc\xff"), array("d")
    back = through_disk(tmp_path, state)
    assert back == state
    assert [back[code].typecode for code in "bBhHiIlLqQfd"] == list("bBhHiIlLqQfd")
    for key, target in state.items():
        arrays.restore_into(target, back[key], key)


LAYOUTS: dict[str, Any] = {
    "transposed": lambda t: t.T,
    "every second": lambda t: t[::2, 1:],
    "expanded": lambda t: t[:1].expand(4, -1),
    "conjugated": lambda t: torch.complex(t, t + 1).conj(),
    "negative view": lambda t: torch.complex(t, t + 1).conj().imag,
    "negative and transposed": lambda t: torch.complex(t, t + 1).conj().imag.T,
    "real part": lambda t: torch.complex(t, t + 1).real,
    "parameter": torch.nn.Parameter,
    "needs gradient": lambda t: t.clone().requires_grad_() * 2,
    "channels last": lambda t: t.reshape(1, 2, 3, 2).to(memory_format=torch.channels_last),
    "offset": lambda t: t.reshape(-1)[5:],
    "inference": lambda t: torch.inference_mode()(lambda: t * 3)(),
    "numpy fortran": lambda t: np.asfortranarray(t.numpy()),
    "numpy backwards": lambda t: t.numpy()[::-1, ::-2],
    "numpy broadcast": lambda t: np.broadcast_to(t.numpy()[0], (5, 4)),
    "numpy read-only": lambda t: np.frombuffer(t.numpy().tobytes(), np.float32),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_any_layout_in_memory_comes_back_with_its_values(kind: str, tmp_path: Any) -> None:
    value = LAYOUTS[kind](torch.arange(12, dtype=torch.float32).reshape(3, 4))
    back = through_disk(tmp_path, {"x": value})["x"]
    assert type(back) is (np.ndarray if isinstance(value, np.ndarray) else torch.Tensor)
    assert tuple(back.shape) == tuple(value.shape)
    assert bits(back) == bits(value)


def test_tied_tensors_come_back_in_both_places_and_stay_tied_in_the_model(tmp_path: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    back = through_disk(tmp_path, model.state_dict())
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    other[1].weight = other[0].weight
    other.load_state_dict(back)
    assert other[1].weight is other[0].weight
    assert torch.equal(other[0].weight, model[0].weight)


def test_generators_of_all_libraries_go_on_with_the_same_numbers(tmp_path: Any) -> None:
    made: dict[str, Any] = {name: np.random.Generator(getattr(np.random, name)(5)) for name in arrays._BIT_GENERATORS}
    for generator in made.values():
        generator.normal()
        generator.integers(0, 2**31, dtype=np.int32)
    made["torch"] = torch.Generator().manual_seed(3)
    torch.rand(3, generator=made["torch"])
    back = through_disk(tmp_path, made)
    for name in arrays._BIT_GENERATORS:
        assert (
            back[name].integers(0, 2**31, 5, dtype=np.int32).tolist()
            == made[name].integers(0, 2**31, 5, dtype=np.int32).tolist()
        ), name
    assert torch.equal(torch.rand(5, generator=back["torch"]), torch.rand(5, generator=made["torch"]))


def test_scalars_of_numpy_come_back_as_what_they_were(tmp_path: Any) -> None:
    state = [np.float32(1.1), np.float64("nan"), np.int8(-3), np.bool_(True), np.complex64(1 + 2j), np.float16(65504)]
    back = through_disk(tmp_path, state)
    assert [type(item) for item in back] == [type(item) for item in state]
    assert repr(back) == repr(state)


def test_types_and_devices_of_torch_come_back(tmp_path: Any) -> None:
    state = {"dtype": torch.bfloat16, "device": torch.device("cpu"), "cuda": torch.device("cuda", 1)}
    assert through_disk(tmp_path, state) == state


class Hostile:
    def __reduce__(self) -> Any:
        return os.abort, ()


REFUSED: dict[str, tuple[Any, str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta device"),
    "half complex": (lambda: torch.empty(2, dtype=torch.complex32), "complex32"),
    "objects": (lambda: np.array([Hostile()], dtype=object), "object"),
    "text": (lambda: np.array(["text"]), "str"),
    "records": (lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), "void"),
    "dates": (lambda: np.array(["2020-01-01"], dtype="M8[D]"), "datetime64"),
    "masked": (lambda: np.ma.masked_array([1.0, 2.0], [True, False]), "masked"),
    "long number": (lambda: np.longdouble(1), "number of type"),
    "long numbers": (lambda: np.array([1], dtype=np.longdouble), "float"),
    "date": (lambda: np.datetime64("2020-01-01"), "datetime64"),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("kind", REFUSED)
def test_arrays_without_plain_numbers_are_refused_by_name(kind: str, tmp_path: Any) -> None:
    value, words = REFUSED[kind][0](), REFUSED[kind][1]
    with pytest.raises(CannotSave, match=r"^t\.deep\.x cannot be saved: ") as caught:
        support.save(tmp_path, 1, {"t": {"deep": {"x": value}}})
    assert words in str(caught.value)
    assert support.leftovers(tmp_path) == []


@pytest.mark.requirement("CKPT-01")
def test_the_safetensors_library_opens_what_was_saved(tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import load_file

    state = {f"{name} {shape}": random_tensor(name, shape) for name in TORCH[:15] for shape in SHAPES}
    result = support.save(tmp_path, 1, {"t": {**state, "number": 3}})
    back = load_file(f"{result.path}/t.safetensors")
    assert back.keys() == state.keys()
    assert all(bits(back[key]) == bits(value) for key, value in state.items())
    with safetensors.safe_open(f"{result.path}/t.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o027, 0o077])
def test_files_have_the_mode_that_the_umask_gives(mask: int, tmp_path: Any) -> None:
    old = os.umask(mask)
    try:
        result = support.save(tmp_path, 1)
    finally:
        os.umask(old)
    assert {support.mode_of(path) for path in support.data_files(result.path)} == {0o666 & ~mask}
    assert support.mode_of(result.path) == 0o777 & ~mask


def test_without_its_library_an_array_comes_in_one_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    result = support.save(tmp_path, 1, {"t": {"x": torch.ones(3), "n": np.arange(4.0)}})
    monkeypatch.delitem(sys.modules, "torch")
    assert checkpoints.load_checkpoint(result.path).states["t"]["x"].tolist() == [1, 1, 1]
    monkeypatch.delitem(sys.modules, "numpy")
    assert checkpoints.load_checkpoint(result.path).states["t"]["n"] == array("d", [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("target", "source"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (np.zeros((2, 1)), np.zeros(2)),
        (array("d", [1]), array("d", [1, 2])),
    ],
)
def test_an_array_of_another_shape_or_type_is_not_copied_over(target: Any, source: Any) -> None:
    before = bits(target)
    with pytest.raises(ValueError, match=r"^x: the checkpoint has"):
        arrays.restore_into(target, source, "x")
    assert bits(target) == before
