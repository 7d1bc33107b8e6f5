"""Tries a result by loading it, without the library that wrote it and without running anything of it.

What a file is, is told by its name and by how it begins. Where values can be read they must be finite. What is not
known here is `Untested`, and that is said: it is no success.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .archives import check_archive
from .arrays import MAGIC, check_array_file, check_safetensors
from .headers import HDF5, check_hdf5, check_parquet
from .images import check_image
from .pickled import check_pickle
from .streams import check_gzip, check_tar, check_zstandard
from .tables import check_csv, check_json, check_json_lines
from .tried import Checked, Damage, Untested

_PACKED = (b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x78")
"""How bzip2, xz, Zstandard, LZ4 and zlib (as joblib packs) begin."""
WEIGHTS = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".npz", ".npy", ".pkl", ".pickle", ".bin"})
"""Names of files that a checkpoint is made of."""
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})
TEXT = frozenset({".json", ".jsonl", ".ndjson", ".csv", ".tsv"})


def try_file(path: str, *, live: bool = False) -> Checked:
    """Load a file as what its name says; `live`: its run had not ended.

    Raises:
        Damage: it cannot be loaded, or holds what no result may.
        Untested: it is of no kind that is known here.
        OSError: it cannot be read.
    """
    check = _CHECKS.get(os.path.splitext(path)[1].lower())
    if check is None:
        raise Untested("a format that is not known here")
    if not os.stat(path).st_size:
        raise Damage("it is empty")
    try:
        return check_json_lines(path, live=live) if check is check_json_lines else check(path)
    except (Damage, Untested, OSError):
        raise
    except MemoryError as error:
        raise Untested("it needs more memory than there is here") from error
    except Exception as error:  # a stranger wrote it: whatever it does to a parser is said of it, and of no other file
        raise Damage(f"cannot be read: {type(error).__name__}: {error}") from error


def _check_by_beginning(path: str) -> Checked:
    """What torch and others write under the same names: an archive, or a pickle, as they tell it."""
    with open(path, "rb") as file:
        head = file.read(512)
    name = path.lower()
    if head.startswith(b"PK\x03\x04"):
        return check_archive(path)
    if head.startswith(MAGIC):
        return check_array_file(path)
    if head.startswith(HDF5):
        return check_hdf5(path)
    if head.startswith(b"\x1f\x8b"):
        return check_gzip(path)
    if head.startswith(_PACKED):
        raise Untested("packed in a way that is not looked into")
    if head[257:262] == b"ustar":
        raise Untested("a tar archive, as torch wrote them before 0.1.10")
    if head[:1] == b"\x80" or name.endswith((".pkl", ".pickle")):
        return check_pickle(path)
    if name.endswith((".pt", ".pth", ".npz")):
        raise Damage("it begins neither as an archive nor as a pickle does")
    raise Untested("neither an archive nor a pickle")


_CHECKS: dict[str, Callable[[str], Checked]] = {
    ".json": check_json,
    ".jsonl": check_json_lines,
    ".ndjson": check_json_lines,
    ".csv": check_csv,
    ".tsv": check_csv,
    ".zip": check_archive,
    ".npz": _check_by_beginning,
    ".pt": _check_by_beginning,
    ".pth": _check_by_beginning,
    ".ckpt": _check_by_beginning,
    ".bin": _check_by_beginning,
    ".pkl": _check_by_beginning,
    ".pickle": _check_by_beginning,
    ".npy": check_array_file,
    ".safetensors": check_safetensors,
    **dict.fromkeys(IMAGES, check_image),
    ".gz": check_gzip,
    ".tgz": check_gzip,
    ".tar": check_tar,
    ".zst": check_zstandard,
    ".h5": check_hdf5,
    ".hdf5": check_hdf5,
    ".keras": check_archive,
    ".parquet": check_parquet,
}
