"""Pickles are loaded in thought alone: what they would name is known, or it is said; nothing is run, and all ends."""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import io
import os
import pathlib
import pickle
import struct
import uuid
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.host.formats.trial.pickles import MOST_OPCODES
from tests.host.formats.trial.test_loading import call, judge, make, numpy_file, torch_archive
from tests.host.formats.trial.test_truncation import MAGIC, old_torch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


class Own:
    """A class of somebody's own."""


def text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_only_known_constructors_are_loaded(tmp_path: Path) -> None:
    plain: dict[str, Any] = {
        "ordered": collections.OrderedDict(a=1), "counter": collections.Counter("ab"), "id": uuid.UUID(int=1),
        "when": dt.datetime.now(dt.timezone.utc), "default": collections.defaultdict(list, a=[1]),
        "queue": collections.deque([1]), "path": pathlib.PurePosixPath("a"), "number": decimal.Decimal(1), "set": {1},
        "complex": 1j, "range": range(3), "array": array.array("d", [1.0]), "bytes": bytearray(b"x"),
    }  # fmt: skip
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert judge(make(tmp_path / "plain.pkl", pickle.dumps(plain, protocol))) == "loaded"
        own = judge(make(tmp_path / "own.pkl", pickle.dumps({"a": Own()}, protocol)))
        assert own == f"untested: holds code of {__name__}.Own: not loaded"
    for module, name in (
        ("functools", "partial"),
        ("builtins", "globals"),
        ("numpy", "load"),
        ("collections", "_sys.exit"),
    ):
        assert (
            judge(make(tmp_path / "x.pkl", call(module, name)))
            == f"untested: holds code of {module}.{name}: not loaded"
        )
    assert judge(make(tmp_path / "own.npy", numpy_file("|O", (1,), pickle.dumps([Own()])))).startswith(
        "untested: holds"
    )


EVASIONS = {
    "computed name": (b"\x80\x04" + text("os") + b"cbuiltins\nstr\n" + text("system") + b"\x85R\x93.", "it computes"),
    "inst": (b"(S'true'\nios\nsystem\n.", "run os.system"),
    "obj": (b"(cos\nsystem\nS'true'\no.", "run os.system"),
    "extension": (b"\x80\x02\x82\x05)R.", "untested: holds code of extension.5"),
    "memo": (b"\x80\x04" + text("os") + b"\x94" + text("system") + b"\x940h\x00h\x01\x93.", "run os.system"),
    "popped": (b"\x80\x04cos\nsystem\nS'true'\n\x85R0N.", "run os.system"),
    "attribute of a class": (
        b"\x80\x04ctorch\nTensor\nN}" + text("x") + b"K\x01s\x86b.", "untested: holds code of torch.Tensor",
    ),
    "buffers elsewhere": (b"\x80\x05\x97.", "untested: its buffers lie outside of it"),
    "before the magic number": (
        call("evil", "load")[:-1] + b"0" + pickle.dumps(MAGIC, 2)[2:] + old_torch()[len(pickle.dumps(MAGIC, 2)) :],
        "untested: holds code of evil.load",
    ),
    "as bytes, before it": (
        call("torch.storage", "_load_from_bytes", call("evil", "load")[:-1] + b"0" + pickle.dumps(MAGIC, 2)[2:]),
        "no whole",
    ),
}  # fmt: skip


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_what_hides_its_code_is_not_loaded(tmp_path: Path) -> None:
    wrong = {}
    for what, (data, words) in EVASIONS.items():
        said = judge(make(tmp_path / "x.pkl", data))
        if words not in said or not said.startswith(("damaged", "untested")):
            wrong[what] = said
    assert not wrong


def test_storages_that_are_pickled_by_themselves_are_looked_into(tmp_path: Path) -> None:
    whole = old_torch()
    assert judge(make(tmp_path / "a.pkl", call("torch.storage", "_load_from_bytes", whole))) == "loaded"
    bad = whole[:-4] + struct.pack("<f", float("nan"))
    assert "1 value is NaN" in judge(make(tmp_path / "b.pkl", call("torch.storage", "_load_from_bytes", bad)))
    cut = judge(make(tmp_path / "c.pkl", call("torch.storage", "_load_from_bytes", whole[:-1])))
    assert cut.startswith("damaged: 1 bytes are missing")


def test_a_second_pickle_of_an_archive_is_found_whatever_the_case_of_its_name(tmp_path: Path) -> None:
    bomb = call("os", "system")
    for name in ("a/DATA.PKL", "other/x.PKL"):
        members = {"model/data/0": bytes(8), name: bomb}
        assert "run os.system" in judge(make(tmp_path / "x.pt", torch_archive("FloatStorage", b"", 2, members=members)))
    with zipfile.ZipFile(tmp_path / "y.pt", "w") as archive:
        archive.writestr("a/DATA.pkl", bomb)
    assert "run os.system" in judge(tmp_path / "y.pt")
    zipped = io.BytesIO(bomb)
    zipped.seek(0, os.SEEK_END)
    with zipfile.ZipFile(zipped, "a") as archive:  # numpy takes it for a pickle, by how it begins
        archive.writestr("a.npy", numpy_file("<f8", (0,), b""))
    assert "run os.system" in judge(make(tmp_path / "z.npz", zipped.getvalue()))
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:  # numpy goes by how a member begins, not by its name
        archive.writestr("a", numpy_file("|O", (1,), bomb))
    assert "run os.system" in judge(tmp_path / "w.npz")


def test_what_is_made_to_take_for_ever_ends(tmp_path: Path) -> None:
    deep = b"\x80\x04" + b"(" * 20_000 + b"t" * 20_000 + b"."
    assert judge(make(tmp_path / "deep.pkl", deep)) == "loaded"
    # The same bytes as the content of very many arrays: they are read once.
    array_of = b"cnumpy._core.multiarray\n_reconstruct\n)R(K\x01)cnumpy\ndtype\n" + text("f8") + b"\x85RK\x00h\x00tb0"
    array_of = array_of.replace(b"(K\x01)", b"(K\x01J" + struct.pack("<i", 1 << 17) + b"\x85")
    many = b"\x80\x04B" + struct.pack("<I", 1 << 20) + bytes(1 << 20) + b"\x940" + array_of * 300 + b"N."
    assert judge(make(tmp_path / "many.pkl", many)) == "loaded"
    assert MOST_OPCODES <= 2_000_000


@pytest.mark.slow
def test_what_joblib_writes_is_not_called_damaged(tmp_path: Path) -> None:
    joblib, numpy = pytest.importorskip("joblib"), pytest.importorskip("numpy")
    joblib.dump({"a": numpy.ones(1000)}, tmp_path / "a.pkl")
    assert judge(tmp_path / "a.pkl").startswith("untested: holds code of joblib.numpy_pickle.NumpyArrayWrapper")
    joblib.dump({"a": numpy.ones(1000)}, tmp_path / "b.pkl", compress=3)
    assert judge(tmp_path / "b.pkl") == "untested: packed in a way that is not looked into"


@pytest.mark.slow
def test_what_torch_takes_for_harmless_is_taken_here(tmp_path: Path) -> None:
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    state = {
        "tensor": torch.ones(2), "parameter": torch.nn.Parameter(torch.ones(2)), "size": torch.Size([1]),
        "dtype": torch.bfloat16, "device": torch.device("cpu"), "sparse": torch.eye(2).to_sparse(),
        "generator": numpy.random.default_rng(1), "scalar": numpy.float32(1),
        "float8": torch.ones(2).to(torch.float8_e4m3fn),
    }  # fmt: skip
    torch.save(state, tmp_path / "x.pt")
    assert judge(tmp_path / "x.pt") == "loaded"
    (tmp_path / "y.pkl").write_bytes(pickle.dumps({"a": torch.ones(3)}))
    assert judge(tmp_path / "y.pkl") == "loaded"
