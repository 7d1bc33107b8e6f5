"""Builds the bundle: our package, click and the licences as a tar stream that is the same for the same files.

    hf.py                what the box starts (`transfer.bundle.hf`)
    lib/holdfast/        the package, data files and all; jobs get ``lib`` on their search path
    vendor/click/        for the command line alone
    LICENSES/            holdfast's, where this installation has it, and click's
    bundle.json          each file's SHA-256, and the format of the records that this holdfast writes

The hash of a bundle is over names, modes and bytes of all files but ``bundle.json``, so the same files make the same
bundle, whether they come from a wheel, an editable install or a bundle. To know it without reading four megabytes it is
remembered in the user's cache, under a key made from every file's path, size and time; whoever sends a bundle reads all
files anyway, and the box checks the hash.
"""

from __future__ import annotations

import io
import json
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec

import holdfast
from holdfast import __version__
from holdfast.core.digest import sha256_hex
from holdfast.host.files import files
from holdfast.model.errors import StorageError
from holdfast.model.run import SCHEMA

PACKAGE = os.path.dirname(os.path.abspath(holdfast.__file__))
SKIPPED = "__pycache__"
MODE = 0o444
LEVEL = 6
"""Of zlib: 9 takes three times as long for one percent."""
HASH_LENGTH = 16
MOST_FILE_BYTES = 16 << 20
"""No file of ours or click's is near this size."""
CACHE_NAME = "box-bundle"
LARGEST_NOTE = 100

Source = tuple[str, str, int, int]
"""Name in the bundle, path here, bytes, modification time in nanoseconds."""


class Bundle:
    """What is pushed to a box. `hash` is 16 hexadecimal digits; the bytes are read and packed when they are asked for.

    `data` is the tar stream, compressed as gzip(1) does.

    Raises (`data`):
        StorageError: a file cannot be read, or was changed since the hash was made.
    """

    def __init__(self, hash_: str, sources: tuple[Source, ...], contents: dict[str, bytes] | None = None) -> None:
        """`contents` by name where they have been read already."""
        self.hash = hash_
        self._sources = sources
        self._contents = contents

    @cached_property
    def data(self) -> bytes:
        """See the class."""
        contents = self._contents or _read_all(self._sources)
        self._contents = None
        digests = _digest_all(contents)
        if compute_hash(digests) != self.hash:
            raise StorageError(
                f"holdfast's own files below {PACKAGE} were changed while a bundle was made of them",
                hint="repeat the command",
            )
        return _pack({**contents, "bundle.json": _describe(digests)})


def build_bundle(environ: Mapping[str, str] = os.environ) -> Bundle:
    """The bundle of this very installation.

    Raises:
        StorageError: a file of it cannot be read, or click is not to be found.
    """
    sources = tuple(sorted(_list_sources()))
    note = _note_path(sources, environ)
    remembered = _read_note(note)
    if remembered:
        return Bundle(remembered, sources)
    contents = _read_all(sources)
    made = compute_hash(_digest_all(contents))
    _write_note(note, made)
    return Bundle(made, sources, contents)


_OWN: list[Bundle] = []
_OWN_LOCK = threading.Lock()


def get_own_bundle() -> Bundle:
    """As `build_bundle`, looked at once in a process: a list of twenty places would look at each file twenty times.

    Raises:
        StorageError: as of `build_bundle`.
    """
    with _OWN_LOCK:
        if not _OWN:
            _OWN.append(build_bundle())
        return _OWN[0]


def compute_hash(digests: Mapping[str, str], mode: int = MODE) -> str:
    """The name of a bundle with these files (name to SHA-256)."""
    lines = "".join(f"{mode:04o} {digests[name]} {name}\n" for name in sorted(digests))
    return sha256_hex(lines.encode())[:HASH_LENGTH]


def _list_sources() -> Iterator[Source]:
    yield _look_at("hf.py", f"{PACKAGE}/transfer/bundle/hf.py")
    yield _look_at("LICENSES/click", f"{PACKAGE}/transfer/bundle/LICENSE.click")
    licence = _find_licence()
    if licence is not None:
        yield _look_at("LICENSES/holdfast", licence)
    yield from _walk("lib/holdfast", PACKAGE)
    yield from _walk("vendor/click", _find_click())


def _look_at(name: str, path: str) -> Source:
    try:
        facts = os.stat(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="install holdfast anew") from error
    return name, path, facts.st_size, facts.st_mtime_ns


def _walk(name: str, directory: str) -> Iterator[Source]:
    """The files below a directory, without what Python or an editor leaves there."""
    try:
        entries = list(os.scandir(directory))
    except OSError as error:
        raise StorageError(
            f"{directory}: {error.strerror}", hint="a bundle can be made of an unpacked installation only"
        ) from error
    for entry in entries:
        if entry.name.startswith(".") or entry.name == SKIPPED:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(f"{name}/{entry.name}", entry.path)
        elif entry.is_file(follow_symlinks=True) and not entry.name.endswith((".pyc", ".pyo")):
            facts = entry.stat(follow_symlinks=True)
            yield f"{name}/{entry.name}", entry.path, facts.st_size, facts.st_mtime_ns


def _find_click() -> str:
    """The directory of the package click, which is not imported for it."""
    found = find_spec("click")
    if found is None or not found.origin:
        raise StorageError("click is not installed beside holdfast", hint="install holdfast with its requirements")
    return os.path.dirname(os.path.abspath(found.origin))


def _find_licence() -> str | None:
    """Our licence: in a checkout beside ``src``, in a bundle, or in the metadata of an installed wheel."""
    above = os.path.dirname(PACKAGE)
    places = [f"{above}/holdfast-{__version__}.dist-info/licenses/LICENSE"]
    if os.path.basename(above) == "lib":
        places.append(f"{os.path.dirname(above)}/LICENSES/holdfast")
    if os.path.basename(above) == "src":
        places.append(f"{os.path.dirname(above)}/LICENSE")
    return next((path for path in places if os.path.isfile(path)), None)


def _read_all(sources: tuple[Source, ...]) -> dict[str, bytes]:
    contents = {}
    for name, path, size, _ in sources:
        try:
            with open(path, "rb") as file:
                contents[name] = file.read(MOST_FILE_BYTES)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}", hint="install holdfast anew") from error
        if max(size, len(contents[name])) >= MOST_FILE_BYTES:
            raise StorageError(f"{path} is larger than any file of holdfast", hint="move it out of the package")
    return contents


def _digest_all(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256_hex(data) for name, data in contents.items()}


def _describe(digests: Mapping[str, str]) -> bytes:
    files_of = dict(sorted(digests.items()))
    record = {"schema": 1, "format": SCHEMA, "version": __version__, "mode": MODE, "files": files_of}
    return json.dumps(record, indent=0).encode()


def _pack(contents: Mapping[str, bytes]) -> bytes:
    import tarfile  # lazy: only who pushes a bundle packs one, and every call to a place loads this module

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(contents):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(contents[name]), MODE, 0
            archive.addfile(member, io.BytesIO(contents[name]))
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)  # 16 + 15: with a gzip header, whose time is zero
    return packer.compress(buffer.getvalue()) + packer.flush()


# ------------------------------------------------------------------------------------------------- remembered hashes


def _note_path(sources: tuple[Source, ...], environ: Mapping[str, str]) -> str | None:
    """Where the hash of exactly these files is remembered; None without a cache."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    text = "\0".join(f"{name}\0{path}\0{size}\0{modified}" for name, path, size, modified in sources)
    data = os.fsencode(text)
    return f"{base}/holdfast/{CACHE_NAME}-{zlib.crc32(data):08x}{zlib.crc32(data[::-1]):08x}"


def _read_note(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        text = files.read_bytes(path, limit=LARGEST_NOTE, owners={os.geteuid()}).decode("ascii", "replace")
    except OSError:
        return None
    usable = len(text) == HASH_LENGTH and not set(text) - set("0123456789abcdef")
    return text if usable else None


def _write_note(path: str | None, made: str) -> None:
    """Remember it; a cache that cannot be written costs the reading, each time."""
    if path is None:
        return
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        files.commit(path, made.encode(), durable=False)
    except OSError:
        return
