"""The control group of a run's newest attempt, from its manifest, and the memory of its tree now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.contain import create
from holdfast.host.contain.limits import read_tree_memory
from holdfast.host.process import processes
from holdfast.model import wire

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView


def open_run_group(view: RunView) -> create.ControlGroup | None:
    """The group; None where it has none, or that is gone."""
    facts = view.manifest.get("cgroup")
    if not isinstance(facts, dict):
        return None
    try:
        group = wire.decode(create.ControlGroup, facts)
    except wire.WireError:
        return None
    return create.open_group(group.name, group.unified, group.v1, group.controllers)


def read_run_memory(view: RunView) -> int:
    """Bytes of a live run that cannot be given back, as its supervisor counts them."""
    group = open_run_group(view)
    used = None if group is None else group.usage().memory_anon_bytes
    if used is not None:
        return used
    return read_tree_memory(process.pid for process in processes.find_marked(view.run_id)).memory_bytes
