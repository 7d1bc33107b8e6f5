"""One pretended card, for a stand-in of the NVIDIA library that reads its state from a file.

The library is named with ``--nvml-library`` and is not part of holdfast: it is the one of the project's tests
(tests/fakes/nvml), or any other that reads ``FAKE_NVML_STATE``: lines ``key=value``, keys ``<card>.<name>``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

GIB = 1 << 30
HEALTHY = {
    "driver": "550.54.15",
    "cuda": "12040",
    "cards": "1",
    "0.uuid": "GPU-fa170000-0000-4000-8000-000000000000",
    "0.name": "NVIDIA A100-SXM4-80GB",
    "0.pci": "00000000:3A:00.0",
    "0.minor": "0",
    "0.memory.total": str(80 * GIB),
    "0.memory.used": "0",
    "0.memory.reserved": str(600 << 20),
    "0.utilisation": "0",
    "0.temperature": "31",
    "0.power_mw": "61250",
    "0.clock_reasons": "1",
    "0.ecc.volatile.uncorrected": "0",
    "0.ecc.aggregate.uncorrected": "0",
    "0.remapped": "0 0 0 0",
    "0.mig": "0",
    "0.ecc.volatile.corrected": "0",
    "0.utilisation.memory": "0",
    "0.power_limit_mw": "400000",
    "0.clock.sm": "210",
    "0.clock_max.sm": "1410",
    "0.clock.memory": "1593",
    "0.limit.slowdown": "89",
    "0.limit.gpu_max": "85",
    "0.violation.thermal": "0",
    "0.pcie_generation": "4",
    "0.pcie_generation_max": "4",
    "0.pcie_width": "16",
    "0.pcie_width_max": "16",
    "0.field.230": "0",
}


class PretendedCard:
    """The state file of the stand-in, in the sandbox."""

    def __init__(self, box: str, library: str | None) -> None:
        self._path, self._library = f"{box}/card", library

    def environment(self) -> dict[str, str]:
        """What a process needs so that it loads the stand-in."""
        directory = os.path.dirname(os.path.abspath(self._library)) if self._library else ""
        before = os.environ.get("LD_LIBRARY_PATH")
        return {
            "LD_LIBRARY_PATH": f"{directory}:{before}" if before else directory,
            "FAKE_NVML_STATE": self._path,
        }

    def write(self, *changes: Mapping[str, str]) -> None:
        """Replace the state: a healthy idle card and `changes` of it."""
        values = dict(HEALTHY)
        for change in changes:
            values.update(change)
        with open(f"{self._path}.new", "w", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())
        os.replace(f"{self._path}.new", self._path)
