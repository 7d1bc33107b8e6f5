"""Reads what a person wrote: a file, perhaps through a link; never a pipe, which might stay silent, or a device."""

from __future__ import annotations

import errno
import os
import stat

from holdfast.desk.toml import MAX_BYTES
from holdfast.host.files.ownership import describe_weakness
from holdfast.model.errors import NotPermitted, StorageError, UsageError


def read_regular(path: str, limit: int) -> bytes:
    """The first `limit` bytes of a file.

    Raises:
        OSError: it cannot be read; EINVAL for what is no file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a file", path)
        data = b""
        while len(data) < limit and (piece := os.read(descriptor, limit - len(data))):
            data += piece
        return data
    finally:
        os.close(descriptor)


def read_own_text(path: str, says: str) -> str:
    """The text of a file of this account's own configuration; empty when there is none. `says` what it decides.

    Raises:
        NotPermitted: others may write it, or a directory on the way to it.
        StorageError: it cannot be read.
        UsageError: it is too large, or is not UTF-8.
    """
    try:
        if weakness := _describe_weakness(path):
            raise _distrust(path, weakness, says)
        data = read_regular(path, MAX_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see that it is yours to read") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: is larger than 1 MiB, which is far more than it can say")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: is not UTF-8 text (byte 0x{data[error.start]:02x})") from error


def _describe_weakness(path: str) -> str:
    """Why others could have written it, as words; a sticky bit, which saves a directory, says nothing of a file."""
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode) and mode & stat.S_ISVTX and mode & (stat.S_IWOTH | stat.S_IWGRP):
        return f"{path} can be written by others (mode {stat.S_IMODE(mode):04o})"
    return describe_weakness(path)


def _distrust(path: str, weakness: str, says: str) -> NotPermitted:
    part, is_open, _ = weakness.partition(" can be written by others")
    hint = (
        f"see that it says what you want, then: chmod go-w {part}" if is_open else "let XDG_CONFIG_HOME name your own"
    )
    return NotPermitted(f"{path} says {says}, and others could have written it: {weakness}", hint=hint)
