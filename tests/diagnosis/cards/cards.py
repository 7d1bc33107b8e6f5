"""Readings of a card for tests: idle and well unless said otherwise."""

from __future__ import annotations

from typing import Any

from holdfast.model.gpu import Card
from holdfast.model.record import replace

GIB = 1024**3


def make_card(**values: Any) -> Card:
    """An idle A100 that is well; `values` override."""
    well = Card(
        index=0,
        uuid="GPU-1",
        name="A100",
        pci_bus_id="00000000:3B:00.0",
        memory_total_bytes=80 * GIB,
        memory_used_bytes=0,
        memory_free_bytes=80 * GIB,
        utilisation_pct=0,
        temperature_c=31,
        power_w=61.0,
        ecc_uncorrectable=0,
        minor=0,
        sm_clock_mhz=210,
        sm_clock_max_mhz=1410,
        memory_utilisation_pct=0,
        power_limit_w=400.0,
        slowdown_c=89,
        gpu_max_c=85,
        clock_reasons=0x1,
        thermal_violation_ns=0,
        pcie_generation=4,
        pcie_generation_max=4,
        pcie_width=16,
        pcie_width_max=16,
        ecc_corrected=0,
        remapped_uncorrected=0,
        recovery_action=0,
    )
    return replace(well, **values)


def make_busy(**values: Any) -> Card:
    """The same at full load."""
    busy = make_card(utilisation_pct=99, power_w=392.0, sm_clock_mhz=1380, memory_utilisation_pct=60, temperature_c=68)
    return replace(busy, clock_reasons=0, **values) if "clock_reasons" not in values else replace(busy, **values)
