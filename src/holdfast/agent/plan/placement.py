"""Where an attempt may run beyond what its job says: read by its supervisor, before anything of it is decided."""

from __future__ import annotations

import os

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.record import replace
from holdfast.model.requeue import AttemptPlacement


def read_placement(directory: str) -> AttemptPlacement | None:
    """Where the attempt in this directory may run; None when nothing was said.

    What was said and cannot be read counts as "alone", the narrowest that is always possible.
    """
    path = f"{directory}/{wire.PLACEMENT}"
    if not os.path.lexists(path):
        return None
    try:
        return wire.from_bytes(AttemptPlacement, files.read_bytes(path), path)
    except (OSError, wire.WireError) as error:
        return AttemptPlacement(alone=True, why=f"{wire.PLACEMENT} cannot be read ({error})")


def apply_placement(spec: JobSpec, placement: AttemptPlacement) -> JobSpec:
    """The job as it is given cards under a placement. Only that: what is recorded and hashed stays as it was."""
    gpu = spec.gpu
    if placement.alone:
        gpu = replace(gpu, share=False)
    if placement.min_total_bytes is not None:
        # More free than the other card had in all: only a larger card can have that.
        gpu = replace(gpu, min_free_bytes=max(gpu.min_free_bytes or 0, placement.min_total_bytes + 1))
    return replace(spec, gpu=gpu)
