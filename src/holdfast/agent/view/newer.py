"""Runs that a newer holdfast wrote: how they are told, and which bundle on this box reads them.

The integer ``schema`` in a run's files is their format. A reader takes older ones; of a newer one it believes nothing
but that number, the name of the bundle, and the exit record. Who acts on such a run does it through that bundle.
"""

from __future__ import annotations

import os

from holdfast.host.files import files
from holdfast.host.files.ownership import describe_weakness
from holdfast.host.formats.own_bundle import find_reader
from holdfast.model import wire
from holdfast.model.record import record
from holdfast.model.run import SCHEMA

MOST_BYTES = 4 << 20


@record
class Newer:
    """A run of format `number` of holdfast `version`; `script` is an `hf.py` that reads it, if there is one."""

    number: int
    version: str
    script: str | None


def find_newer(run_dir: str, attempt: int) -> Newer | None:
    """What a run is when this holdfast is too old for it, or for its attempt; None when it is not."""
    run = _read(f"{run_dir}/{wire.RUN}")
    numbers = (wire.read_format(run), wire.read_format(_read(f"{wire.attempt_dir(run_dir, attempt)}/{wire.STATE}")))
    if max(numbers) <= SCHEMA:
        return None
    named = run.get("bundle")
    script = find_reader(os.path.dirname(run_dir), max(numbers), named if isinstance(named, str) else "")
    if script is not None and describe_weakness(os.path.dirname(script)):
        script = None
    return Newer(max(numbers), str(run.get("version"))[:40], script)


def _read(path: str) -> dict[str, object]:
    try:
        return wire.parse_object(files.read_bytes(path, limit=MOST_BYTES), path)
    except (OSError, wire.WireError):
        return {}
