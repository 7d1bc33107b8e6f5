"""Arrays of every kind land in the snapshot as they are written without one, whichever way they are copied."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.errors import CannotSave
from holdfast.training.storage import arrays, tree
from holdfast.training.storage.write import snapshot
from tests.each import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

pytestmark = pytest.mark.files


class Wrapped(torch.Tensor):  # type: ignore[misc, name-defined]  # torch is a value here
    """A subclass, whose numbers might lie elsewhere."""


KINDS: dict[str, tuple[Callable[[], Any], bool]] = {
    "contiguous": (lambda: torch.arange(12.0).view(3, 4), True),
    "parameter": (lambda: torch.nn.Parameter(torch.rand(5, 2)), True),
    "a part of a storage": (lambda: torch.arange(20)[3:9], True),
    "bfloat16": (lambda: torch.rand(7).bfloat16(), True),
    "bool": (lambda: torch.tensor([True, False]), True),
    "no dimension": (lambda: torch.tensor(3.5), True),
    "transposed": (lambda: torch.arange(12.0).view(3, 4).t(), False),
    "every second": (lambda: torch.arange(20)[::2], False),
    "channels last": (lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), False),
    "expanded": (lambda: torch.rand(3, 1).expand(3, 4), False),
    "complex": (lambda: torch.tensor([1 + 2j, 3 - 4j]), False),
    "conjugate": (lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(), False),
    "negated view": (lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag, False),
    "subclass": (lambda: torch.rand(4).as_subclass(Wrapped), False),
    "empty": (lambda: torch.empty(0, 3), False),
    "numpy": (lambda: numpy.arange(6.0).reshape(2, 3), True),
    "numpy, Fortran order": (lambda: numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)), False),
    "numpy, big-endian": (lambda: numpy.arange(5, dtype=">i4"), False),
    "numpy, read-only": (lambda: numpy.frombuffer(b"12345678", dtype="u2"), True),
}


@pytest.fixture
def taken() -> Iterator[snapshot.StateSnapshot]:
    made = snapshot.StateSnapshot()
    yield made
    made.close()


def plan(states: dict[str, Any], layouts: snapshot.Layouts | None = None) -> list[snapshot.PlannedFile]:
    flat = {name: tree.flatten_described(value, name) for name, value in states.items()}
    found, described = {k: v[1] for k, v in flat.items()}, {k: v[2] for k, v in flat.items()}
    return snapshot.plan_files("", found, b"{}", described, layouts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.requirement("CKPT-17")
def test_the_copy_is_what_would_be_written_without_one(kind: str, taken: snapshot.StateSnapshot) -> None:
    value = KINDS[kind][0]()
    planned = plan({"model": {"x": value, "y": torch.ones(3)}})
    taken.fill(planned)
    for file in planned:
        assert os.pread(taken.fd, file.nbytes, file.offset) == b"".join(file.pieces())


@each("kind", KINDS)
def test_only_plain_bytes_in_one_piece_are_copied_as_memory(kind: str) -> None:
    make, plain = KINDS[kind]
    value = make()
    assert (arrays.address_of(value, arrays.describe_array(value, "x")) is not None) is plain


@each("kind", KINDS)
def test_what_was_described_before_is_described_the_same_or_asked_again(kind: str) -> None:
    value = KINDS[kind][0]()
    if isinstance(value, torch.Tensor):
        arrays.describe_array(torch.zeros(value.shape, dtype=value.dtype), "alike")
    what = arrays.describe_array(value, "x")
    assert arrays.describe_alike(value) in (what, None)
    plain = torch.zeros(3, 4)
    assert arrays.describe_array(plain, "x") is arrays.describe_alike(plain), "this one is asked no more"


REFUSED: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.eye(4).to_sparse(),
    "meta": lambda: torch.empty(4, 4, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(4), torch.zeros(4)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(4, 4), 0.1, 0, torch.qint8),
    "given back": lambda: _give_back(torch.zeros(4, 4)),
}


def _give_back(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.filterwarnings("ignore::UserWarning")
@each("kind", REFUSED)
def test_what_cannot_be_saved_is_refused_also_when_one_like_it_was_saved(kind: str) -> None:
    arrays.describe_array(torch.zeros(4, 4), "alike")
    value = REFUSED[kind]()
    assert arrays.describe_alike(value) is None
    with pytest.raises(CannotSave):
        arrays.describe_array(value, "x")


def test_a_layout_is_known_again_until_a_shape_a_type_or_a_name_changes() -> None:
    layouts = snapshot.Layouts()
    state = {"a": torch.zeros(3), "b": torch.zeros(2, 2)}
    first = plan({"m": state}, layouts)[0]
    state["a"] = torch.ones(3)
    again = plan({"m": state}, layouts)[0]
    assert again.head is first.head
    assert again.items[0][0] is state["a"]
    for change in ({"a": torch.zeros(4)}, {"a": torch.zeros(3).double()}, {"c": torch.zeros(3)}):
        changed = plan({"m": {**state, **change}}, layouts)[0]
        assert changed.head != first.head
        assert [nbytes for _, _, _, nbytes in changed.items] == [what.nbytes for _, what, _, _ in changed.items]
        assert changed.nbytes == len(changed.head) + sum(nbytes for _, _, _, nbytes in changed.items)
    assert plan({"m": state}, layouts)[0].head == first.head
