from __future__ import annotations

import hashlib
import io

import pytest

from holdfast.core.code import stream

pytestmark = pytest.mark.pure

MANIFEST = b"a manifest"
CONTENT = b"x" * 400_000


def _pack(*, deflate: bool = False, end: bytes = stream.END) -> bytes:
    digest = hashlib.sha256(CONTENT).hexdigest()
    frames = [stream.head_manifest(len(MANIFEST)) + MANIFEST, stream.head_file(digest, len(CONTENT)), CONTENT, end]
    return b"".join(stream.pack(frames, deflate=deflate))


def _read_all(data: bytes) -> tuple[bytes, bytes]:
    reader = stream.StreamReader(io.BytesIO(data).read)
    manifest, contents = reader.manifest(), b""
    while (head := reader.next_file()) is not None:
        contents += b"".join(reader.content(head[1]))
    return manifest, contents


@pytest.mark.parametrize("deflate", [False, True])
def test_what_is_packed_is_read(deflate: bool) -> None:
    assert _read_all(_pack(deflate=deflate)) == (MANIFEST, CONTENT)


@pytest.mark.parametrize("deflate", [False, True])
def test_a_stream_that_ends_early_is_cut(deflate: bool) -> None:
    data = _pack(deflate=deflate)
    for end in (30, len(data) // 2, len(data) - 6):
        with pytest.raises(stream.StreamCut):
            _read_all(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 1000,
        b"holdfast-code-stream 2 plain\n",
        stream.MAGIC + b"plain\nfile " + b"a" * 64 + b" 1\nx",
        stream.MAGIC + b"plain\nmanifest 99999999999\n",
        stream.MAGIC + b"deflate\nnot zlib at all",
        _pack(end=b"something\n"),
        _pack(end=b"manifest 1\nx"),
    ],
)
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    with pytest.raises(stream.StreamError):
        _read_all(data)
