"""How an internal entry answers a desk: one JSON object on standard output, an error as one with its exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from holdfast.model import wire
from holdfast.model.errors import HoldfastError, StorageError, UsageError, describe
from holdfast.model.run import SCHEMA

MOST_INPUT_BYTES = 8 << 20


def answer(work: Callable[[], object]) -> int:
    """Print what `work` returns (a record or a dict) with ``schema``, or what it raised; the exit code.

    An operating system's refusal is a `StorageError`; what nobody foresaw is left to Python: a traceback, exit code 1.
    """
    try:
        return _print({"schema": SCHEMA, **wire.encode(work())}, 0)
    except HoldfastError as error:
        return print_error(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return print_error(StorageError(f"{where}{error.strerror or error}"))


def print_error(error: HoldfastError) -> int:
    """Print an error as an entry's answer; its exit code."""
    return _print({"schema": SCHEMA, "error": describe_error(error)}, error.exit_code)


def describe_error(error: HoldfastError) -> dict[str, object]:
    """An error as it crosses to the desk, with what its details hold."""
    described: dict[str, object] = wire.encode(describe(error))
    return described


def read_input(what: str, most: int = MOST_INPUT_BYTES) -> dict[str, Any]:
    """The JSON object on standard input.

    Raises:
        UsageError: there is none, or it is larger than any that a desk sends.
    """
    chunks, total = [], 0
    while chunk := os.read(0, 1 << 16):
        chunks.append(chunk)
        total += len(chunk)
        if total > most:
            raise UsageError(f"{what} is larger than {most} bytes")
    try:
        return wire.parse_object(b"".join(chunks), what)
    except wire.WireError as error:
        raise UsageError(f"{what} cannot be read: {error}") from error


def _print(value: dict[str, object], code: int) -> int:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
    return code
