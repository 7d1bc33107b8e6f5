"""What a sweep was made from, kept with the queue for `holdfast sweep add`: its text as it was, not the file.

What the recipe only names, the job file's configuration and overlays, is known by its hash: jobs that are added to a
sweep must be made from the same, else they could not be compared with the others.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import NoSuchName, StorageError, UsageError
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.core.queue.submit_options import SubmitOptions
    from holdfast.model.job import JobSpec
    from holdfast.model.sweep import BuiltSweep

RECORDS = "sweeps"


@record
class Recipe:
    """What a sweep was made from: the text of its file, what the command line said, the encoded job, hashes by path."""

    group: str
    path: str
    text: str
    job_file: str | None
    settings: dict[str, str]
    arguments: tuple[str, ...]
    shared: tuple[str, ...]
    claims: str | None
    after: tuple[str, ...]
    priority: int
    base: dict[str, object]
    files: dict[str, str]


@record
class SweepPlan:
    """A sweep that could be handed in. `source` is the file that it was made from, None for a command line's."""

    spec: JobSpec
    built: BuiltSweep
    wishes: SubmitOptions
    recipe: Recipe
    source: str | None

    @property
    def group(self) -> str:
        """The group's name."""
        return self.wishes.group


def write_recipe(directory: str, recipe: Recipe) -> None:
    """Keep it with the queue in `directory`.

    Raises:
        StorageError: it cannot be written; the jobs are in the queue.
    """
    try:
        os.makedirs(f"{directory}/{RECORDS}", mode=0o700, exist_ok=True)
        files.commit(f"{directory}/{RECORDS}/{recipe.group}.json", wire.to_bytes(recipe))
    except OSError as error:
        message = f"{directory}/{RECORDS}: {error.strerror}; the jobs are in the queue, `sweep add` will not work"
        raise StorageError(message, hint="make room and hand the sweep in again: it adds nothing twice") from error


def read_recipe(directory: str, name: str) -> Recipe:
    """What a sweep was made from.

    Raises:
        NoSuchName: no sweep of this name was handed in here.
        StorageError: it cannot be read.
    """
    path = f"{directory}/{RECORDS}/{name.rstrip('/')}.json"
    try:
        return wire.from_bytes(Recipe, files.read_bytes(path), path)
    except FileNotFoundError:
        raise NoSuchName(
            f"there is no sweep {name!r} in this queue that was handed in on this box",
            hint="`holdfast queue ls` lists the groups",
        ) from None
    except (OSError, wire.WireError) as error:
        raise StorageError(f"{path} cannot be read: {error}", hint="hand the sweep file in again") from error


def hash_files(paths: Sequence[str]) -> dict[str, str]:
    """The hash of each file; empty where one cannot be read, which differs from whatever it is later."""
    return {path: _hash(path) for path in paths}


def _hash(path: str) -> str:
    try:
        return hashlib.sha256(files.read_bytes(path)).hexdigest()
    except OSError:
        return ""


def refuse_changes(known: Mapping[str, str]) -> None:
    """Refuse to go on from files that are not what they were.

    Raises:
        UsageError: some have changed, or cannot be read.
    """
    changed = [path for path, sha256 in known.items() if not sha256 or _hash(path) != sha256]
    if changed:
        raise UsageError(
            f"changed since the sweep was handed in: {', '.join(changed)}; new jobs would differ from the old ones",
            hint="say --accept-changes if that is meant, or hand the sweep in under another --name",
        )
