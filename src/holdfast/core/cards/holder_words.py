"""Sentences for people about one process on a card: who it is, and what to do about it."""

from __future__ import annotations

from holdfast.model.gpu import GpuProcess, HolderKind
from holdfast.model.units import format_bytes, format_duration

NEEDS_ADVICE = frozenset({HolderKind.OTHER_NAMESPACE, HolderKind.GHOST, HolderKind.UNKNOWN})
"""Holders about whom somebody who sees only this box would do the wrong thing."""

KINDS = {
    HolderKind.UNMANAGED: "no holdfast run",
    HolderKind.OTHER_NAMESPACE: "in another container (PID namespace)",
    HolderKind.GHOST: "ghost: in no process table of this box",
    HolderKind.UNKNOWN: "whether it exists cannot be told from here",
}


def describe_process(process: GpuProcess) -> str:
    """One process of a card for people; a holder without a name is called a ghost only when it is one."""
    size = "memory unknown" if process.used_bytes is None else format_bytes(process.used_bytes)
    age = "" if process.age_s is None else f", started {format_duration(process.age_s)} ago"
    who = f"pid {process.pid}, {process.user or 'user unknown'}, {size}{age}: {process.command or 'command unknown'}"
    return f"{who} [{KINDS.get(process.kind) or f'holdfast run {process.run_id}'}]"


def advise_on_process(process: GpuProcess, *, own: bool) -> str:
    """What to do about one process that holds a card's memory: one sentence."""
    if process.kind is HolderKind.MANAGED:
        return f"it belongs to run {process.run_id}: `holdfast stop {process.run_id}`"
    if process.kind is HolderKind.OTHER_NAMESPACE:
        return "restart the container that it runs in, or ask its owner to; its pid means nothing here"
    if process.kind is HolderKind.GHOST:
        return "nobody can end it any more: ask for a reset of the card (`holdfast gpus reset-request`)"
    if process.kind is HolderKind.UNKNOWN:
        return "look as root, or outside this container, before anything is done"
    return "end it yourself when it is not needed" if own else f"ask {process.user or 'its owner'} about it"
