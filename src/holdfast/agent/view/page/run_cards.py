"""The cards of one run, from its own files: which devices it leases or had, and whether they were simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model import wire

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView


def name_cards(view: RunView) -> str:
    """The cards of a run in words, simulated ones marked; empty when it has none."""
    devices = devices_of(view)
    if not devices:
        return ""
    names = ", ".join(f"{device.get('index')} ({device.get('name')})" for device in devices)
    mark = " SIMULATED" if is_simulated(view) else ""
    return f"card{'s' if len(devices) > 1 else ''}{mark} {names}"


def devices_of(view: RunView) -> list[dict[str, object]]:
    """The leased devices of a run as JSON objects: from its state, else from its manifest or exit record."""
    state = view.state.state if view.state is not None else None
    held = getattr(state, "devices", ())
    if held:
        return [wire.encode(device) for device in held]
    for source in (view.manifest, view.exit):
        for key in ("devices", "cards", "gpus"):
            value = source.get(key)
            if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
                return value
    return []


def is_simulated(view: RunView) -> bool:
    """Whether the run's cards were simulated ones."""
    for source in (view.manifest, view.exit):
        inventory = source.get("inventory")
        marks = [source.get("simulated"), source.get("gpu_source"), source.get("inventory_source")]
        marks.append(inventory.get("source") if isinstance(inventory, dict) else inventory)
        if any(mark is True or mark == "simulated" for mark in marks):
            return True
    names = [str(device.get("name")) for device in devices_of(view)]
    return any("simulated" in name.lower() for name in names)
