"""Results are tried by loading them, without their libraries and without running anything of them."""

from __future__ import annotations

import array
import io
import json
import math
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.formats.trial.finite import count_not_finite
from holdfast.host.formats.trial.loading import try_file
from holdfast.host.formats.trial.pickled import LEGACY_MAGIC
from holdfast.host.formats.trial.tried import Checked, Damage, Untested

pytestmark = pytest.mark.files
NAN, INF = float("nan"), float("inf")


class Bomb:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/never",)


class Hidden:
    """The same through a name that looks harmless."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (1, "real")


def judge(path: Path, *, live: bool = False) -> str:
    """``loaded``, ``read``, or why not."""
    try:
        checked = try_file(str(path), live=live)
    except Damage as error:
        return f"damaged: {error}"
    except Untested as error:
        return f"untested: {error}"
    return "loaded" if checked.whole else "read"


def make(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def numpy_file(kind: str, shape: tuple[int, ...], data: bytes) -> bytes:
    header = repr({"descr": kind, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def tensors(entries: dict[str, Any], data: bytes) -> bytes:
    head = json.dumps(entries).encode()
    return struct.pack("<Q", len(head)) + head + data


def text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def numbers(*values: int) -> bytes:
    """A tuple of them, pickled."""
    return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", value) for value in values) + b"t"


def torch_pickle(
    kind: str,
    count: int,
    *,
    begin: int = 0,
    shape: tuple[int, ...] = (2,),
    steps: tuple[int, ...] = (1,),
    dtype: str = "",
) -> bytes:
    """A state of one tensor as torch pickles it, written by hand: no torch is needed. `dtype`: of the third version."""
    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text("0") + text("cpu")
    storage += b"J" + struct.pack("<i", count) + b"tQ"
    view = b"J" + struct.pack("<i", begin) + numbers(*shape) + numbers(*steps)
    maker = f"ctorch._utils\n_rebuild_tensor_v{3 if dtype else 2}\n(".encode()
    tensor = maker + storage + view + b"\x89ccollections\nOrderedDict\n)R"
    tensor += (f"ctorch\n{dtype}\n".encode() if dtype else b"") + b"tR"
    return b"\x80\x02}" + text("weight") + tensor + b"s."


def array_pickle(kind: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """An array as numpy pickles it, written by hand."""
    dtype = b"cnumpy\ndtype\n" + text(kind) + b"\x85R"
    begin = b"\x80\x04cnumpy._core.multiarray\n_reconstruct\n)R(K\x01" + numbers(*shape) + dtype
    return begin + b"\x89B" + struct.pack("<I", len(data)) + data + b"tb."


def torch_archive(
    kind: str, data: bytes, count: int, *, members: dict[str, bytes] | None = None, pickled: bytes = b""
) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("model/data.pkl", pickled or torch_pickle(kind, count))
        for name, content in (members if members is not None else {"model/data/0": data}).items():
            archive.writestr(name, content)
        archive.writestr("model/version", b"3\n")
    return target.getvalue()


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_torch_archives(tmp_path: Path) -> None:
    good = array.array("f", [1.0, 3e38, -3e38, 0.0]).tobytes()
    assert judge(make(tmp_path / "good.pt", torch_archive("FloatStorage", good, 4))) == "loaded"
    bad = array.array("f", [1.0, NAN, -INF, 0.0]).tobytes()
    assert (
        judge(make(tmp_path / "nan.pt", torch_archive("FloatStorage", bad, 4)))
        == "damaged: 2 values are NaN or infinite"
    )
    short = torch_archive("FloatStorage", good[:12], 4)
    assert (
        judge(make(tmp_path / "short.pt", short)) == "damaged: the storage model/data/0 has 12 bytes, 16 are expected"
    )
    lacking = torch_archive("FloatStorage", b"", 4, members={})
    assert "is not in it" in judge(make(tmp_path / "lacking.ckpt", lacking))
    whole = torch_archive("FloatStorage", good, 4)
    assert judge(make(tmp_path / "cut.pth", whole[:-30])).startswith("damaged: no whole zip archive")
    at = whole.index(good)
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    assert "Bad CRC-32" in judge(make(tmp_path / "flipped.pt", flipped))
    assert judge(make(tmp_path / "empty.pt", b"")) == "damaged: it is empty"
    assert "begins neither" in judge(make(tmp_path / "page.pt", "<html>not found</html>"))
    assert judge(make(tmp_path / "weights.bin", b"\x01\x02\x03")) == "untested: neither an archive nor a pickle"


def test_two_members_of_one_name_are_damage(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("a.txt", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.txt", b"2")
    assert "two members" in judge(tmp_path / "twice.zip")
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("a.txt", b"1")
    assert judge(tmp_path / "plain.zip") == "read"


@pytest.mark.requirement("VRFY-03")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_VRFY_03_no_code_of_a_pickle_runs(tmp_path: Path, protocol: int) -> None:
    for name, value in (("bomb", Bomb()), ("hidden", Hidden()), ("deep", {"a": [1, (Bomb(),)]})):
        found = judge(make(tmp_path / f"{name}.pkl", pickle.dumps(value, protocol)))
        assert found.startswith("damaged: to load it would run "), name
    assert not Path("/tmp/never").exists()
    whole = pickle.dumps({"a": [1.5, 2], "b": (b"x", "y", None, True), "c": {1, 2}, 3: frozenset("a")}, protocol)
    assert judge(make(tmp_path / "good.pkl", whole)) == "loaded"
    assert judge(make(tmp_path / "cut.pkl", whole[:-2])).startswith("damaged: no whole pickle")
    assert "NaN" in judge(make(tmp_path / "nan.pkl", pickle.dumps({"loss": [1.0, NAN]}, protocol)))
    far = b"ctorch\nserialization.os.system\n(S'true'\ntR."
    assert "torch.serialization.os.system" in judge(make(tmp_path / "far.pkl", far))
    own = pickle.dumps(Checked(whole=True), protocol)
    assert judge(make(tmp_path / "own.pkl", own)).startswith("untested: holds code of holdfast.")
    assert judge(make(tmp_path / "several.pkl", whole + whole)) == "loaded"


def call(module: str, attribute: str, argument: bytes = b"true") -> bytes:
    """A pickle that calls something with one text."""
    texts = [b"\x8d" + struct.pack("<Q", len(text)) + text for text in (module.encode(), attribute.encode())]
    return b"\x80\x04" + b"".join(texts) + b"\x93B" + struct.pack("<I", len(argument)) + argument + b"\x85R."


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("random", "_os.system"),
        ("collections", "_sys.modules.get"),
        ("collections", "__builtins__.get"),
        ("types", "FunctionType"),
        ("torch", "hub.load"),
        ("joblib", "load"),
        ("pandas", "read_pickle"),
        ("_posixsubprocess", "os.fork"),
    ],
)
def test_VRFY_03_what_leads_to_code_by_another_name(tmp_path: Path, module: str, attribute: str) -> None:
    found = judge(make(tmp_path / "x.pkl", call(module, attribute)))
    assert found in (
        f"damaged: to load it would run {module}.{attribute}: do not load it",
        f"untested: holds code of {module}.{attribute}: not loaded",
    )


def test_VRFY_03_code_that_lies_deeper(tmp_path: Path) -> None:
    bomb = call("os", "system")
    far = call("torch", "nn.functional.torch." * 60 + "os.system")
    assert judge(make(tmp_path / "far.pkl", far)).startswith("damaged: no whole pickle: a name of")
    inner = pickle.dumps(LEGACY_MAGIC) + pickle.dumps(1) * 3 + bomb
    assert "run os.system" in judge(make(tmp_path / "in.pkl", call("torch.storage", "_load_from_bytes", inner)))
    for kind in ("|O", "|O8", "O", "object"):
        size = -(-len(bomb) // 8)
        assert "run os.system" in judge(make(tmp_path / "x.npy", numpy_file(kind, (size,), bomb.ljust(8 * size))))
    archive = torch_archive("FloatStorage", bytes(8), 2, members={"model/data/0": bytes(8), "other/data.pkl": bomb})
    assert "run os.system" in judge(make(tmp_path / "x.pt", archive))


def test_what_is_made_to_break_a_parser_is_a_damaged_file_and_no_more(tmp_path: Path) -> None:
    twice = b"2\x86" * 60  # a tuple of itself, so often: without an end in words
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a", b"1" * 99)
    torn = bytearray(archive.getvalue())
    torn[32] ^= 0x55
    shape = '{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,0]}}'
    for name, data in {
        "name.pkl": b"\x80\x04)" + twice + b"\x8c\x01a\x93.",
        "kind.npy": numpy_file(f"<f{'9' * 5000}", (1,), b""),
        "shape.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", 33) + b"{'descr':'<f4','shape':(1e999,),}",
        "x.safetensors": struct.pack("<Q", len(shape)) + shape.encode(),
        "x.zip": bytes(torn),
        "x.json": b'{"loss": 1e999}',
        "x.csv": b"loss\n1e999\n",
    }.items():
        assert judge(make(tmp_path / name, data)).startswith("damaged: "), name
    with zipfile.ZipFile(tmp_path / "ident.pt", "w") as made:
        made.writestr("a/data.pkl", b"\x80\x02)" + twice + b"Q.")
    assert "a storage that torch does not write" in judge(tmp_path / "ident.pt")
    assert judge(make(tmp_path / "long.csv", b"a\n" + b"x" * 140_000 + b"\n")).startswith("untested")


@pytest.mark.parametrize(
    "data",
    [b"\x80\x04\x8e" + b"\xff" * 8, b"\x80\x04\x8b\xff\xff\xff\x7f", b"\x80\x04.", b"\x80\x04\x94.", b"\x80\x04\x85."],
)
def test_lengths_and_stacks_that_lie_cost_nothing(tmp_path: Path, data: bytes) -> None:
    assert judge(make(tmp_path / "x.pkl", data)).startswith(("damaged", "loaded"))


@pytest.mark.parametrize("end", [b"\x8c\x01a\x93.", b"Q."], ids=["name", "storage"])
def test_a_value_that_would_be_endless_in_words_is_not_put_into_words(tmp_path: Path, end: bytes) -> None:
    doubled = b"\x80\x04)" + b"2\x86" * 60  # DUP, TUPLE2
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", doubled + end)
    assert judge(tmp_path / "x.pt").startswith("damaged")


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_arrays(tmp_path: Path) -> None:
    doubles = array.array("d", [1.0, 2.0]).tobytes()
    assert judge(make(tmp_path / "a.npy", numpy_file("<f8", (2,), doubles))) == "loaded"
    assert "promises" in judge(make(tmp_path / "short.npy", numpy_file("<f8", (2,), doubles[:-1])))
    assert "promises" in judge(make(tmp_path / "long.npy", numpy_file("<f8", (2,), doubles + b"x")))
    bad = array.array("d", [1.0, INF]).tobytes()
    assert "1 value is" in judge(make(tmp_path / "inf.npy", numpy_file("<f8", (2,), bad)))
    swapped = array.array("d", [1.0, NAN])
    swapped.byteswap()
    assert "1 value is" in judge(make(tmp_path / "big.npy", numpy_file(">f8", (2,), swapped.tobytes())))
    assert judge(make(tmp_path / "ints.npy", numpy_file("<i4", (2,), bytes(8)))) == "loaded"
    assert judge(make(tmp_path / "text.npy", numpy_file("<U3", (2,), bytes(24)))) == "loaded"
    assert judge(make(tmp_path / "rows.npy", numpy_file("[('a', '<f4')]", (2,), bytes(8)))).startswith("untested")
    assert "would run" in judge(make(tmp_path / "o.npy", numpy_file("|O", (1,), pickle.dumps([Bomb()]))))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", numpy_file("<f8", (2,), bad))
    assert "a.npy: 1 value is" in judge(tmp_path / "a.npz")


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_safetensors(tmp_path: Path) -> None:
    floats = array.array("f", [1.0, 2.0]).tobytes()
    one = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    assert judge(make(tmp_path / "a.safetensors", tensors(one, floats))) == "loaded"
    for data in (floats[:-1], floats + b"x"):
        assert judge(make(tmp_path / "b.safetensors", tensors(one, data))).startswith("damaged")
    overlapping = {**one, "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}
    assert "not where they should be" in judge(make(tmp_path / "c.safetensors", tensors(overlapping, floats)))
    head = (
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
    )
    twice = struct.pack("<Q", len(head)) + head + floats
    assert "there twice" in judge(make(tmp_path / "d.safetensors", twice))
    bad = array.array("f", [NAN, 2.0]).tobytes()
    assert judge(make(tmp_path / "e.safetensors", tensors(one, bad))) == "damaged: 1 value is NaN or infinite, in a"
    assert judge(make(tmp_path / "f.safetensors", b"\xff" * 20)).startswith("damaged: its header")


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_records(tmp_path: Path) -> None:
    assert judge(make(tmp_path / "a.json", '{"a": 1e10}')) == "loaded"
    nan = judge(make(tmp_path / "b.json", '{"a": [1], "val": {"loss": [0.5, NaN]}}'))
    assert nan == "damaged: it holds NaN, which is no number, in val.loss.1"
    wide = judge(make(tmp_path / "wide.json", json.dumps({"k" * 1_000_000: [0] * 100_000, "v": float("inf")})))
    assert wide.endswith("in v")  # a name for each of them would be 100 GB
    assert "there twice" in judge(make(tmp_path / "c.json", '{"a": 1, "a": 2}'))
    assert judge(make(tmp_path / "d.json", '{"a": ')).startswith("damaged: no JSON")
    assert judge(make(tmp_path / "deep.json", "[" * 100_000)).startswith("damaged")
    assert judge(make(tmp_path / "a.jsonl", '{"a": 1}\n{"b": 2}\n')) == "loaded"
    assert judge(make(tmp_path / "b.jsonl", '{"a": 1}\n{"b"')) == "damaged: line 2 has no end: the write was cut off"
    assert judge(tmp_path / "b.jsonl", live=True) == "loaded"
    infinite = judge(make(tmp_path / "c.jsonl", '{"a": 1}\n{"a": -Infinity}\n'))
    assert infinite == "damaged: line 2: it holds -Infinity, which is no number, in a"
    assert judge(make(tmp_path / "a.csv", "step,loss,name\n1,0.5,a\n2,,nan\n")) == "loaded"
    assert "row 3 has 2 cells" in judge(make(tmp_path / "b.csv", "step,loss,name\n1,0.5,a\n2,0.4\n"))
    assert "not finite, in column 2 (loss)" in judge(make(tmp_path / "c.csv", "step;loss\n1;0.5\n2;nan\n"))
    long = make(tmp_path / "long.csv", f"step,text\n1,{'x' * 200_000}\n")
    assert judge(long).startswith("untested: row 2 has a cell")
    assert judge(make(tmp_path / "notes.txt", "x")).startswith("untested")


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_images_by_their_frame(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)) + chunk(b"IDAT", b"x" * 50) + chunk(b"IEND", b"")
    assert judge(make(tmp_path / "a.png", png)) == "read"
    assert "no IEND" in judge(make(tmp_path / "b.png", png[:-12]))
    assert "checksum" in judge(make(tmp_path / "c.png", png.replace(b"xx", b"xy", 1)))
    assert "begins as no" in judge(make(tmp_path / "d.png", b"<html>"))


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_a_tensor_lies_in_its_storage(tmp_path: Path) -> None:
    """What torch refuses to load: it looks at what a tensor needs of its storage."""
    for begin, shape, steps, expected in (
        (0, (4,), (1,), "loaded"),
        (1, (3,), (1,), "loaded"),
        (0, (2, 2), (2, 1), "loaded"),
        (0, (0, 9), (9, 1), "loaded"),
        (3, (), (), "loaded"),
        (0, (9,), (0,), "loaded"),  # expanded
        (0, (5,), (1,), "beyond"),
        (1, (4,), (1,), "beyond"),
        (0, (2, 2), (3, 1), "beyond"),
        (4, (), (), "beyond"),
        (0, (-1,), (1,), "a shape that no array has"),
        (0, (2,), (1, 1), "a shape that no array has"),
    ):
        pickled = torch_pickle("FloatStorage", 4, begin=begin, shape=shape, steps=steps)
        found = judge(make(tmp_path / "x.pt", torch_archive("", bytes(16), 4, pickled=pickled)))
        assert expected in found, (begin, shape, steps)


def test_a_storage_that_is_said_to_be_two_things_is_damage(tmp_path: Path) -> None:
    """The second one would have been looked for in place of the first."""
    members = {"model/data/0": bytes(8), "MODEL/data.pkl": torch_pickle("FloatStorage", 2)}
    assert judge(make(tmp_path / "same.pt", torch_archive("FloatStorage", b"", 2, members=members))) != "loaded"
    one = torch_pickle("FloatStorage", 2)
    both = one[:-2] + torch_pickle("IntStorage", 2)[3:]
    found = judge(make(tmp_path / "two.pt", torch_archive("", bytes(8), 2, pickled=both)))
    assert found == "damaged: the storage model/data/0 is said to be two things"


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_numbers_that_are_not_known_here_are_not_called_loaded(tmp_path: Path) -> None:
    def judge_torch(kind: str, data: bytes, count: int, dtype: str = "") -> str:
        pickled = torch_pickle(kind, count, dtype=dtype)
        return judge(make(tmp_path / "x.pt", torch_archive("", data, count, pickled=pickled)))

    nan = struct.pack("<2f", 0, NAN)
    assert "1 value is NaN" in judge_torch("ComplexFloatStorage", nan + bytes(8), 2)
    assert judge_torch("OtherStorage", bytes(2), 2).startswith("untested")
    assert judge_torch("storage.UntypedStorage", b"\x00\x38", 2, "float8_e4m3fn") == "loaded"
    assert "1 value is NaN" in judge_torch("storage.UntypedStorage", b"\x00\x7f", 2, "float8_e4m3fn")
    assert "kind bool is not looked into" in judge_torch("storage.UntypedStorage", bytes(2), 2, "bool")
    assert judge_torch("storage.UntypedStorage", bytes(4), 4, "uint16") == "loaded"
    assert "beyond" in judge_torch("storage.UntypedStorage", bytes(3), 3, "uint16")
    for kind in ("<f16", "<c32", "|V4", "<x8"):
        width = int(kind[2:])
        assert f"kind {kind[1:]}" in judge(make(tmp_path / "x.npy", numpy_file(kind, (1,), bytes(width)))), kind
        assert f"kind {kind[1:]}" in judge(make(tmp_path / "x.pkl", array_pickle(kind[1:], (1,), bytes(width)))), kind
    for code, expected in (("F8_E4M3", "NaN"), ("F8_E5M2", "NaN"), ("F8_E8M0", "loaded"), ("F5", "kind 'F5' are not")):
        one = {"a": {"dtype": code, "shape": [2], "data_offsets": [0, 2]}}
        assert expected in judge(make(tmp_path / "x.safetensors", tensors(one, b"\x00\x7f"))), code
    lying = {"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}
    assert "a shape that no array has" in judge(make(tmp_path / "y.safetensors", tensors(lying, bytes(8))))


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_an_array_in_a_pickle_has_the_bytes_of_its_shape(tmp_path: Path) -> None:
    assert judge(make(tmp_path / "a.pkl", array_pickle("f8", (2, 1), bytes(16)))) == "loaded"
    assert judge(make(tmp_path / "b.pkl", array_pickle("U2", (2,), bytes(16)))) == "loaded"
    assert "an array has 8 bytes" in judge(make(tmp_path / "c.pkl", array_pickle("f8", (2,), bytes(8))))
    assert "an array has 24 bytes" in judge(make(tmp_path / "d.pkl", array_pickle("f8", (2,), bytes(24))))
    many = array_pickle("f8", (1 << 62,) * 65, bytes(8))
    assert "a shape that no array has" in judge(make(tmp_path / "e.pkl", many))


@pytest.mark.parametrize("code", ["F16", "BF16", "F32", "F64"])
def test_floats_that_are_not_finite_are_counted_however_they_come(code: str) -> None:
    values = [0.0, 1.0, -1.5, 60_000.0, NAN, INF, -INF, 1e-7] * 100
    if code == "BF16":
        data = b"".join(struct.pack("<f", value)[2:] for value in values)
    else:
        data = struct.pack(f"<{len(values)}{ {'F16': 'e', 'F32': 'f', 'F64': 'd'}[code] }", *values)
    expected = sum(not math.isfinite(value) for value in values)
    for size in (1, 3, 7, 64, len(data)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert count_not_finite(code, pieces) == expected


@pytest.mark.slow
def test_what_torch_and_numpy_write_is_read_as_they_read_it(tmp_path: Path) -> None:
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 10)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "numpy": numpy.random.get_state(),
        "half": torch.ones(3).half(),
        "brain": torch.ones(3, dtype=torch.bfloat16),
    }
    bad = {"x": torch.tensor([1.0, NAN])}
    for name, value, expected in (("good", state, "loaded"), ("bad", bad, "damaged: 1 value is NaN or infinite")):
        torch.save(value, tmp_path / f"{name}.pt")
        torch.save(value, tmp_path / f"{name}-old.pt", _use_new_zipfile_serialization=False)
        assert judge(tmp_path / f"{name}.pt") == judge(tmp_path / f"{name}-old.pt") == expected
    cut = (tmp_path / "good-old.pt").read_bytes()
    assert judge(make(tmp_path / "cut.pt", cut[:-5])).startswith("damaged")
    torch.save({"a": Bomb()}, tmp_path / "bomb.pt")
    assert "would run" in judge(tmp_path / "bomb.pt")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps({"a": numpy.array([1.0, NAN]), "b": numpy.float32(INF)}, protocol)
        assert judge(make(tmp_path / "numpy.pkl", data)) == "damaged: 2 values are NaN or infinite"
    numpy.savez_compressed(tmp_path / "x.npz", a=numpy.ones(3), b=numpy.zeros((2, 2), dtype=">f4"))
    assert judge(tmp_path / "x.npz") == "loaded"
