"""HDF5 and Parquet by what their headers promise: whether a file was closed, and is all there. No value is read.

Sources: HDF5 File Format Specification, II.A "Disk Format: Level 0A - Format Signature and Superblock"; Apache Parquet,
"File Format".
"""

from __future__ import annotations

import os

from .tried import Checked, Damage, Untested

HDF5 = b"\x89HDF\r\n\x1a\n"
MOST_BEFORE = 1 << 30
"""A block of the user's own may stand before the signature: 512 bytes, or twice that, and so on."""
PARQUET, ENCRYPTED = b"PAR1", b"PARE"
AGREES = Checked(whole=False, why="its header agrees with its size, its values were not read")


def check_hdf5(path: str) -> Checked:
    """The file is as long as the superblock says.

    Raises:
        Damage, Untested: it is cut off, was not closed, or is none; or its version is not known here.
        OSError: it cannot be read.
    """
    size, at = os.stat(path).st_size, 0
    with open(path, "rb") as file:
        while file.read(8) != HDF5:
            at = 2 * at or 512
            if at >= min(size, MOST_BEFORE):
                raise Damage("it begins as no HDF5 file does")
            file.seek(at)
        block = file.read(100)
    version = block[0] if block else -1
    if version in (0, 1):
        wide, addresses, flags = block[5:6], 16 if version == 0 else 20, 0
    elif version in (2, 3):
        wide, addresses, flags = block[1:2], 4, block[3] if len(block) > 3 else 0
    else:
        raise Untested("a version of HDF5 that is not known here")
    width = wide[0] if wide else 0
    base, _, end = (block[addresses + width * part :][:width] for part in range(3))
    if width not in (2, 4, 8, 16) or len(end) < width:
        raise Damage("its superblock cannot be read")
    if version == 3 and flags & 1:
        raise Damage("it was not closed by what wrote it")
    promised = int.from_bytes(end, "little")
    if size < promised:
        raise Damage(f"it has {size} bytes, its header promises {promised}")
    if int.from_bytes(base, "little") not in (0, at):
        raise Damage("its superblock does not know where it is")
    return AGREES


def check_parquet(path: str) -> Checked:
    """Both ends are there, and the footer fits between them.

    Raises:
        Damage: it is cut off, or none.
        OSError: it cannot be read.
    """
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    if head not in (PARQUET, ENCRYPTED):
        raise Damage("it begins as no Parquet file does")
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != head or not 0 < length <= size - 12:
        raise Damage("it ends before its end: no footer")
    return AGREES
