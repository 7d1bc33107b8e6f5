"""Where a job may ask for several nodes: at a scheduler's place, and without a container. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import Unsupported

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec


def refuse_nodes(spec: JobSpec, scheduler: str) -> None:
    """Refuse a job of several nodes that nobody would start on all of them; `scheduler` is empty without one.

    Raises:
        Unsupported: it asks for more nodes than one, and that cannot be had so.
    """
    if spec.nodes == 1:
        return
    if not scheduler:
        hint = "holdfast run --on PLACE with a place of kind slurm, or leave `nodes` out; holdfast's docs/slurm.md"
        raise Unsupported(f"{spec.nodes} nodes: only a place of kind slurm has several", hint=hint)
    if spec.container.image is not None:
        hint = "run it on one node, or start the container in the command itself: apptainer exec IMAGE ..."
        raise Unsupported(f"{spec.nodes} nodes: `container` is for one node so far", hint=hint)
