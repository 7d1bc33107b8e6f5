"""The record of a sweep that a scheduler runs: ``sweep.json``, one commit of which makes all of its jobs known.

It lies below the runs root, ``.sweeps-<uid>/<name>/``, with a directory for each array. What it names and is not there
(a run directory, the files of an array) can be made again from it at any time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.ids import is_name
from holdfast.model.queue import NewJob, Submission
from holdfast.model.record import field, record
from holdfast.model.runs_root import sweeps_dir

SWEEP = "sweep.json"
LARGEST_BYTES = 512 << 20
"""50,000 jobs, the most of a sweep, with 10 KiB each."""


@record
class HandIn:
    """One order of jobs: its `submission` without jobs, the options of the scheduler, `env_from` as in `Order`."""

    submission: Submission
    native: dict[str, str] = field(default_factory=dict)
    env_from: str = "none"


@record
class SweepJob:
    """One job of a sweep and its run: `given` is what was handed in, `order` the place of its `HandIn`.

    `array` and `task` say where it was handed in last; array 0: it is to be handed in.
    """

    run_id: str
    given: NewJob
    order: int
    array: int = 0
    task: int = 0


@record
class ArraySweep:
    """The content of ``sweep.json``. `arrays` counts the numbers that were given to arrays, none of them twice."""

    name: str
    orders: tuple[HandIn, ...] = ()
    jobs: tuple[SweepJob, ...] = ()
    arrays: int = 0
    format: int = 1


@record
class FoundSweep:
    """A sweep that was found below a runs root."""

    root: str
    directory: str


def find_sweep(word: str, roots: Iterable[str]) -> FoundSweep | None:
    """The sweep of this account below `roots` that is called so, with or without a slash at the end; None without."""
    name = word.rstrip("/")
    if not is_name(name):
        return None
    for root in roots:
        directory = f"{sweeps_dir(root, os.geteuid())}/{name}"
        if os.path.exists(f"{directory}/{SWEEP}"):
            return FoundSweep(root, directory)
    return None


def list_sweeps(roots: Iterable[str]) -> list[str]:
    """The names of this account's sweeps below `roots`."""
    found: set[str] = set()
    for root in roots:
        directory = sweeps_dir(root, os.geteuid())
        with contextlib.suppress(OSError):
            found |= {name for name in os.listdir(directory) if os.path.exists(f"{directory}/{name}/{SWEEP}")}
    return sorted(found)


def read_sweep(directory: str) -> ArraySweep | None:
    """The sweep in a directory; None where none was committed.

    Raises:
        StorageError: it cannot be read.
    """
    path = f"{directory}/{SWEEP}"
    try:
        found = wire.from_bytes(ArraySweep, files.read_bytes(path, limit=LARGEST_BYTES), path)
    except FileNotFoundError:
        return None
    except (OSError, wire.WireError) as error:
        hint = f"its runs go on, each by itself (holdfast ls); for its name to be free again: mv {path} {path}.damaged"
        raise StorageError(f"{path} cannot be read: {error}", hint=hint) from error
    if found.format != 1:
        raise StorageError(f"{path} is of format {found.format}", hint="use a newer holdfast")
    return found
