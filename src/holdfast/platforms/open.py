"""The platform of a place, by its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.slurm import SLURM

from .slurm.platform import SlurmPlatform
from .ssh.platform import SshPlatform

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

    from .base import Platform


def open_platform(box: Box) -> Platform:
    """How a job comes to run at the place of this box."""
    return SlurmPlatform(box) if box.place.kind == SLURM else SshPlatform(box)
