"""A torn file is told from a whole one, by structure alone."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest

from holdfast.host.formats.readable import find_damage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("POST-05")]


def build_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"x" * 5000)


def build_npy(path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10, 100), }".ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 4000)


def build_safetensors(path: Path) -> None:
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}, "__metadata__": {}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4000)


def build_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(range(256)) * 40))


BUILDERS = {
    "r.json": lambda path: path.write_text(json.dumps({"accuracy": [0.5] * 1000})),
    "r.jsonl": lambda path: path.write_text('{"step": 1}\n{"step": 2}\n' * 200),
    "r.zip": build_zip,
    "r.npz": build_zip,
    "r.pt": build_zip,
    "r.npy": build_npy,
    "r.safetensors": build_safetensors,
    "r.pkl": lambda path: path.write_bytes(pickle.dumps(["x" * 5000])),
    "r.csv.gz": build_gzip,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_POST_05_a_whole_file_is_whole_and_a_torn_one_is_not(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    BUILDERS[name](path)
    assert find_damage(str(path)) is None
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    assert find_damage(str(path))


@pytest.mark.parametrize("name", ["r.json", "r.npz", "r.npy", "r.safetensors", "r.gz", "r.pkl"])
def test_POST_05_other_content_is_damage(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"<html>quota exceeded</html>\n" * 10)
    assert find_damage(str(tmp_path / name))


def test_a_safetensors_file_with_bytes_too_many_is_damaged(tmp_path: Path) -> None:
    build_safetensors(tmp_path / "r.safetensors")
    with (tmp_path / "r.safetensors").open("ab") as file:
        file.write(b"x")
    assert "its header promises" in (find_damage(str(tmp_path / "r.safetensors")) or "")


def test_unknown_formats_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "r.bin").write_bytes(b"x")
    assert find_damage(str(tmp_path / "r.bin")) is None
    (tmp_path / "legacy.pt").write_bytes(pickle.dumps([1]) + b"raw tensor bytes")
    assert find_damage(str(tmp_path / "legacy.pt")) is None
