"""A box with NVIDIA cards, made of a small C library and a state file (`fake_nvml.c`).

`build_library` compiles the library; `FakeNvml` describes the box and writes the state file atomically on every
change, so a probe that is already running sees the next state.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_nvml.c")
GIB = 1024**3
GPU_IS_LOST = 15
LIBRARY_MISMATCH = 18
UNKNOWN_ERROR = 999


def build_library(directory: str, *, old_driver: bool = False) -> str:
    """Compile libnvidia-ml.so.1 into a directory for ``LD_LIBRARY_PATH``; its path. Needs a C compiler.

    `old_driver` leaves out the symbols that drivers before 535 lack.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "no C compiler: install gcc and libc6-dev"
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "libnvidia-ml.so.1")
    warnings = ["-Wall", "-Wextra", "-Werror"]
    flags = ["-O1", *warnings, "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"]
    variant = ["-DOLD_DRIVER"] if old_driver else []
    subprocess.run([compiler, *flags, *variant, "-o", path, SOURCE], check=True)
    return path


@dataclass(slots=True)
class FakeCard:
    """One card's values under the state file's keys; a value of None is one that the card does not support."""

    values: dict[str, object]
    slices: list[dict[str, object]] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        """The card's UUID."""
        return str(self.values["uuid"])


def make_card(index: int, **values: object) -> FakeCard:
    """An idle, healthy 80 GiB card; `values` override (dots written as two underscores: ``memory__used=5``)."""
    healthy: dict[str, object] = {
        "uuid": f"GPU-fa4e0000-0000-4000-8000-{index:012d}",
        "name": "NVIDIA A100-SXM4-80GB",
        "pci": f"00000000:{0x3A + index:02X}:00.0",
        "minor": index,
        "memory.total": 80 * GIB,
        "memory.used": 0,
        "memory.reserved": 600 * 1024**2,
        "utilisation": 0,
        "temperature": 31,
        "power_mw": 61250,
        "clock_reasons": 0x1,
        "ecc.volatile.uncorrected": 0,
        "ecc.aggregate.uncorrected": 0,
        "ecc.volatile.corrected": 0,
        "remapped": "0 0 0 0",
        "mig": 0,
        "utilisation.memory": 0,
        "power_limit_mw": 400_000,
        "clock.sm": 210,
        "clock_max.sm": 1410,
        "clock.memory": 1593,
        "limit.slowdown": 89,
        "limit.gpu_max": 85,
        "violation.thermal": 0,
        "pcie_generation": 4,
        "pcie_generation_max": 4,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "field.230": 0,
    }
    healthy.update({key.replace("__", "."): value for key, value in values.items()})
    return FakeCard(healthy)


class FakeNvml:
    """The box. Every method rewrites the state file; after changing `cards` or `system` directly call `write`."""

    def __init__(self, library: str, state_path: str, cards: int = 0) -> None:
        """A box of `cards` idle cards, written at once."""
        self.library = library
        self.state_path = state_path
        self.cards = [make_card(index) for index in range(cards)]
        self.system: dict[str, object] = {"driver": "550.54.15", "cuda": 12040}
        self.faults: dict[str, object] = {}
        self.write()

    @property
    def events_path(self) -> str:
        """The file in which Xids wait to be taken."""
        return f"{self.state_path}.events"

    def environment(self) -> dict[str, str]:
        """What a process needs so that the binding loads this library."""
        return {
            "LD_LIBRARY_PATH": os.path.dirname(self.library),
            "FAKE_NVML_STATE": self.state_path,
            "FAKE_NVML_EVENTS": self.events_path,
        }

    def report_xid(self, card: int, code: int, *, gpu_instance: int | None = None) -> None:
        """The driver reports a Xid to every process that listens to the card by now."""
        with open(self.events_path, "a", encoding="ascii") as file:
            file.write(f"{card} {code}{'' if gpu_instance is None else f' {gpu_instance}'}\n")

    def add_cards(self, count: int) -> None:
        """Add idle, healthy cards."""
        self.cards += [make_card(len(self.cards) + number) for number in range(count)]
        self.write()

    def set(self, card: int, **values: object) -> None:
        """Change values of a card (dots as two underscores)."""
        self.cards[card].values.update({key.replace("__", "."): value for key, value in values.items()})
        self.write()

    def run_on(self, card: int, *processes: tuple[int, int | None]) -> None:
        """Put (pid, bytes or None for N/A) on a card, and count the bytes as its used memory."""
        listed = " ".join(f"{pid}:{'N/A' if used is None else used}" for pid, used in processes)
        self.set(card, processes=listed, memory__used=sum(used or 0 for _, used in processes))

    def slice(self, card: int, *uuids: str, memory_mb: int = 9856) -> None:
        """Turn MIG on with one instance for each UUID."""
        parts: list[dict[str, object]] = [
            {
                "uuid": uuid,
                "name": "slice",
                "memory_mb": memory_mb,
                "gpu_slices": 1,
                "gpu_instance": slot,
                "memory.total": memory_mb * 1024**2,
                "memory.used": 0,
            }
            for slot, uuid in enumerate(uuids)
        ]
        self.cards[card].slices = parts
        self.set(card, mig=1, mig__slots=7)

    def lose(self, card: int) -> None:
        """The card falls off the bus: every call on it answers GPU_IS_LOST."""
        self.fault("rc.*", GPU_IS_LOST, card)

    def fail(self, function: str, code: int, card: int | None = None) -> None:
        """A function answers an NVML return code."""
        self.fault(f"rc.{function}", code, card)

    def hang(self, function: str, card: int | None = None) -> None:
        """A function does not return until `heal`."""
        self.fault(f"hang.{function}", 1, card)

    def crash(self, function: str, card: int | None = None) -> None:
        """A function takes its process down."""
        self.fault(f"crash.{function}", 1, card)

    def slow(self, function: str, milliseconds: int, card: int | None = None) -> None:
        """A function takes its time."""
        self.fault(f"slow.{function}", milliseconds, card)

    def fault(self, name: str, value: object, card: int | None) -> None:
        """Add a fault line."""
        self.faults[name if card is None else f"{name}.{card}"] = value
        self.write()

    def heal(self) -> None:
        """Take every fault away; calls that hang return."""
        self.faults.clear()
        self.write()

    def write(self) -> None:
        """Replace the state file."""
        lines = {**self.system, "cards": len(self.cards), **self.faults}
        for index, card in enumerate(self.cards):
            lines.update({f"{index}.{key}": value for key, value in card.values.items()})
            for slot, part in enumerate(card.slices):
                lines.update({f"{index}.mig.{slot}.{key}": value for key, value in part.items()})
        temporary = f"{self.state_path}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(f"{key}={value}\n" for key, value in lines.items() if value is not None)
        os.replace(temporary, self.state_path)
