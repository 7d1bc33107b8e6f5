"""Zip archives and what results are kept in them: torch's own, numpy's, and plain ones.

Every member is read to its end, so that its CRC-32 is compared; nothing is unpacked onto the disk. Of a torch archive
the pickle is walked (`pickles`), each storage that it names must be there in full, and floats must be finite. Sources:
torch/csrc/jit/serialization/pickler.h, torch/serialization.py (`_save`), caffe2/serialize/inline_container.cc, which
looks its members up whatever the case of their letters.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from collections import Counter
from typing import IO

from holdfast.model.record import replace

from . import finite
from .arrays import MAGIC, check_array
from .pickled import STORAGES, WIDTHS, join, judge, read_storage, walk_or_refuse
from .pickles import Pickle, Steps
from .tried import Checked, Damage, Untested, limit_unpacked, read_to_end

_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of the other ways a few bytes may unpack to gigabytes in one piece (zipfile, `_read1`)."""


def check_archive(path: str) -> Checked:
    """Read a zip archive, and what is in it.

    Raises:
        Damage, Untested: it cannot be loaded; or nobody here can tell.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _check_members(archive, os.stat(path).st_size)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError) as error:
        if isinstance(error, (Damage, Untested)):
            raise
        if isinstance(error, NotImplementedError):
            raise Untested(f"packed in a way that is not known here: {error}") from error
        raise Damage(f"no whole zip archive: {error}") from error
    except RuntimeError as error:  # encrypted
        raise Untested(str(error)) from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Damage("no whole zip archive: a member is said to be outside of it") from error


def _check_members(archive: zipfile.ZipFile, size: int) -> Checked:
    members = [member for member in archive.infolist() if not member.is_dir()]
    names = [member.filename for member in members]
    if not members:
        raise Damage("an empty archive")
    if len(set(names)) < len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise Damage(f"two members have the name {twice!r}")
    if any(member.compress_type not in _PACKED for member in members):
        raise Untested("packed in a way that is not looked into")
    if sum(member.file_size for member in members) > limit_unpacked(size):
        raise Untested("it unpacks to more than is looked at")
    if any(f"/{name.lower()}".endswith("/data.pkl") for name in names):
        return _check_torch(archive, members)
    return _check_arrays(archive, members)


def _check_arrays(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> Checked:
    """Arrays by how they begin, as numpy takes them; of anything else the checksum."""
    steps, untested, arrays, array_bytes = Steps(), list[Untested](), 0, 0
    for member in members:
        is_array = _begin(archive, member) == MAGIC
        arrays += is_array
        with archive.open(member) as file:
            try:
                if is_array:
                    array_bytes += check_array(file, member.file_size, member.filename, steps).array_bytes
            except Untested as error:  # another may be damaged
                untested.append(error)
            _drain(file)
    if untested:
        raise untested[0]
    return Checked(whole=arrays == len(members), array_bytes=array_bytes)


def _begin(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    with archive.open(member) as file:
        return file.read(len(MAGIC))


def _drain(file: IO[bytes]) -> None:
    for _ in read_to_end(file):
        pass


def _check_torch(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> Checked:
    by_name = {member.filename.lower(): member for member in members}
    if len(by_name) < len(members):
        raise Damage("two members have the same name but for the case of its letters")
    found, wanted = _walk_pickles(archive, by_name)
    bad = 0
    for name, (kind, count, code, big) in wanted.items():
        there = by_name.get(name)
        if there is None:
            raise Damage(f"the storage {name} is not in it")
        if kind in WIDTHS and there.file_size != count * WIDTHS[kind]:
            raise Damage(f"the storage {name} has {there.file_size} bytes, {count * WIDTHS[kind]} are expected")
        with archive.open(there) as file:
            bad += finite.count_not_finite(code, read_to_end(file), big_endian=big)
            _drain(file)
    for name in by_name.keys() - wanted.keys():
        with archive.open(by_name[name]) as file:
            _drain(file)
    return judge(replace(found, not_finite=found.not_finite + bad))


def _walk_pickles(
    archive: zipfile.ZipFile, by_name: dict[str, zipfile.ZipInfo]
) -> tuple[Pickle, dict[str, tuple[str, int, str, bool]]]:
    """What all pickles come to, for a second one may be what torch takes.

    Of storages: their kind, how many elements, the code of their floats, whether their bytes are the other way round.
    """
    found, wanted, steps = Pickle(None, (), (), (), 0), dict[str, tuple[str, int, str, bool]](), Steps()
    for name, member in by_name.items():
        if not name.endswith(".pkl"):
            continue
        with archive.open(member) as file:
            one = walk_or_refuse(file, member.file_size, steps)
        found = join(found, one)
        top, _, last = name.rpartition("/")
        order = by_name.get(f"{top}/byteorder")
        big = order is not None and _begin(archive, order) == b"big"
        for ident in one.stored if last in ("data.pkl", "constants.pkl") else ():
            kind, key, count = read_storage(ident)
            code = one.codes.get(key, STORAGES.get(kind, ""))
            storage = f"{name.removesuffix('.pkl')}/{key}".lower()
            if wanted.setdefault(storage, (kind, count, code, big)) != (kind, count, code, big):
                raise Damage(f"the storage {storage:.80} is said to be two things")
    return found, wanted
