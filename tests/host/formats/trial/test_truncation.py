"""Files that were cut off, flipped, emptied or misnamed: none is called good where its format permits to see it."""

from __future__ import annotations

import array
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.formats.trial.test_loading import judge, make, numpy_file, tensors, torch_archive, torch_pickle

pytestmark = pytest.mark.files
GOOD = ("loaded", "read")
DOUBLES = array.array("d", [1.0, 2.0, 3.0]).tobytes()
FLOATS = array.array("f", [1.0, 2.0, 3.0, 4.0]).tobytes()
MAGIC = 0x1950A86A20F9469CFC6C
ZST = "28b52ffd646800850000486c6f737320302e350a01005c54cb118e45f1b2"


def pack(**members: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return target.getvalue()


def old_torch() -> bytes:
    heads = [pickle.dumps(value, 2) for value in (MAGIC, 1001, {"little_endian": True})]
    return b"".join(heads) + torch_pickle("FloatStorage", 4) + pickle.dumps(["0"], 2) + struct.pack("<q", 4) + FLOATS


def hdf5(version: int) -> bytes:
    body, start = b"data" * 20, b"\x89HDF\r\n\x1a\n"
    size = 8 + (16 if version == 0 else 4) + 32 + len(body)
    head = bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(8) if version == 0 else bytes([version, 8, 8, 0])
    return start + head + struct.pack("<qqqq", 0, -1, size, -1) + body


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)) + chunk(b"IDAT", b"x" * 50) + chunk(b"IEND", b"")


def jpeg() -> bytes:
    """With a smaller picture inside, and a scan in two pieces."""
    small = b"\xff\xd8\xff\xda\x00\x02\x01\xff\xd9"
    scan = b"\xff\xda\x00\x04\x01\x02" + b"\x11\xff\x00\x22\xff\xd3\x33"
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(small) + 2) + small + scan + scan + b"\xff\xd9"


def gif() -> bytes:
    picture = b"\x2c" + bytes(8) + b"\x80" + bytes(6) + b"\x02" + b"\x03;;;" + b"\x01;" + b"\x00"
    return b"GIF89a" + bytes(4) + b"\x80\x00\x00" + bytes(6) + b"\x21\xf9\x04" + bytes(4) + b"\x00" + picture + b"\x3b"


def webp() -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + 8 + 12) + b"WEBPVP8L" + struct.pack("<I", 11) + bytes(12)


def tar() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name in ("a", "b"):
            entry = tarfile.TarInfo(name)
            entry.size = 100
            archive.addfile(entry, io.BytesIO(b"x" * 100))
    return target.getvalue()[: 2 * (512 + 512) + 1024]


ONE = {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
SAMPLES: dict[str, Callable[[], bytes]] = {
    "new.pt": lambda: torch_archive("FloatStorage", FLOATS, 4),
    "old.pt": old_torch,
    "x.pkl": lambda: pickle.dumps({"a": [1.5, 2], "b": (b"x", "y", None)}),
    "x.npy": lambda: numpy_file("<f8", (3,), DOUBLES),
    "x.npz": lambda: pack(a=numpy_file("<f8", (3,), DOUBLES), b=numpy_file("<i8", (3,), DOUBLES)),
    "x.safetensors": lambda: tensors(ONE, FLOATS),
    "x.json": lambda: json.dumps({"a": [1, 2.5, "x"], "b": None}).encode(),
    "x.png": png,
    "x.jpg": jpeg,
    "x.gif": gif,
    "x.webp": webp,
    "x.gz": lambda: gzip.compress(b"loss 0.5\n" * 20, mtime=0),
    "x.zst": lambda: bytes.fromhex(ZST),
    "x.h5": lambda: hdf5(0),
    "x.hdf5": lambda: hdf5(3),
    "x.parquet": lambda: b"PAR1" + b"data" * 9 + b"meta" + struct.pack("<I", 4) + b"PAR1",
    "x.tar": tar,
}


def list_cuts(path: Path, data: bytes) -> list[tuple[int, str]]:
    """What each shorter file is called good as."""
    found = []
    make(path, data)
    for size in range(len(data) - 1, -1, -1):
        os.truncate(path, size)
        if (said := judge(path)) in GOOD:
            found.append((size, said))
    return found


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_a_file_that_was_cut_off_anywhere_is_never_good(tmp_path: Path) -> None:
    wrong = {}
    for name, build in SAMPLES.items():
        data = build()
        assert judge(make(tmp_path / name, data)) in GOOD, name
        if found := list_cuts(tmp_path / name, data):
            wrong[name] = found
    assert not wrong


def test_a_tar_of_a_file_above_8_gib_is_followed_by_its_extended_header(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("model.safetensors")
    entry.size = 9 << 30
    head = entry.tobuf(tarfile.PAX_FORMAT)
    path = make(tmp_path / "x.tar", head + b"weights")
    os.truncate(path, len(head) + entry.size + 1024)  # holes: no disk is filled
    assert judge(path) == "read"
    os.truncate(path, len(head) + entry.size)
    assert judge(path) == "damaged: it ends before its end mark"


def test_lines_show_a_cut_that_is_not_at_their_end(tmp_path: Path) -> None:
    for name, data in (("x.jsonl", b'{"a": 1}\n{"a": 2}\n'), ("x.csv", b"a,b\n1,2.5\n3,4.5\n")):
        ends = [size for size in range(len(data)) if data[size - 1 : size] == b"\n"]
        loaded = [size for size, said in list_cuts(tmp_path / name, data) if said == "loaded"]
        assert loaded == ends[::-1]
    assert judge(make(tmp_path / "y.csv", b"a,b\n1,2.5\n3,4.")) == "read"


def test_a_flipped_bit_is_damage_or_not_seen_and_never_a_failure_of_ours(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    for name, build in SAMPLES.items():
        data = bytearray(build())
        for at in range(0, len(data), 11):
            data[at] ^= 0x10
            said = judge(make(tmp_path / name, bytes(data)))
            seen[name] = seen.get(name, 0) + said.startswith("damaged")
            data[at] ^= 0x10
    assert min(seen.values()) > 0
    flipped = png().replace(b"xx", b"xy", 1)
    assert judge(make(tmp_path / "f.png", flipped)).startswith("damaged")


def test_a_file_of_another_kind_or_of_none_is_not_good(tmp_path: Path) -> None:
    strict = [
        name for name in SAMPLES if name.endswith(("npy", "safetensors", "json", "png", "gz", "zst", "h5", "tar"))
    ]
    for name in strict:
        kind = Path(name).suffix
        assert judge(make(tmp_path / f"empty{kind}", b"")) == "damaged: it is empty"
        for other, build in SAMPLES.items():
            images = kind == ".png" and other.endswith(("jpg", "gif", "webp"))
            if Path(other).suffix != kind and not images and (kind, other) != (".h5", "x.hdf5"):
                assert judge(make(tmp_path / f"x{kind}", build())).startswith("damaged"), (kind, other)


def test_what_would_unpack_without_an_end_is_not_unpacked(tmp_path: Path) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.npy", bytes(1 << 20))
    assert judge(make(tmp_path / "x.npz", bomb.getvalue())) == "untested: packed in a way that is not looked into"
    data = bytearray(pack(a=numpy_file("<f8", (3,), DOUBLES)))
    at = data.rindex(b"PK\x01\x02") + 24
    data[at : at + 4] = b"\xf0\xff\xff\xff"
    assert judge(make(tmp_path / "y.npz", bytes(data))).startswith(("damaged", "untested"))
    many = gzip.compress(bytes(1 << 20), mtime=0)
    assert judge(make(tmp_path / "x.gz", many)) == "read"
