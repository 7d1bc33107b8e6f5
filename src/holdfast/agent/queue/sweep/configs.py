"""Where the resolved configurations of a sweep's jobs lie, each under its hash, never changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.host.files import files
from holdfast.host.files.claims import open_directory
from holdfast.model.errors import StorageError
from holdfast.store.queue.queue import queue_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.sweep import ResolvedConfig

CONFIGS = "configs"


def find_configs(claims: str | None) -> str:
    """Where they lie: with the queue; for jobs that boxes share, beside their claims.

    The path is a part of the job's hash, and each box has a queue of its own.
    """
    return f"{claims or queue_directory()}/{CONFIGS}"


def store_configs(claims: str | None, configs: Iterable[ResolvedConfig]) -> None:
    """Write each resolved configuration once, named by its hash, where `find_configs` says.

    Raises:
        NotPermitted: the directory of claims could be written by others.
        StorageError: one cannot be written.
    """
    found = list(configs)
    if not found:
        return
    if claims is not None:
        # Before anything is written there: whoever else may write in it could have planted a link.
        open_directory(claims)
    place = find_configs(claims)
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        for config in found:
            path = f"{place}/{config.file_name}"
            if not _holds(path, config.data):
                files.commit(path, config.data, mode=0o400)
    except OSError as error:
        raise StorageError(f"{place}: {error.strerror}", hint="see df and the directory's owner") from error


def _holds(path: str, data: bytes) -> bool:
    try:
        return files.read_bytes(path) == data
    except FileNotFoundError:
        return False
