"""Several runs on one card: what each has reserved and uses, and whether one more fits.

Bytes and seconds. A *reservation* is what a run said that it will use of each of its cards (``gpu.memory``); what it
really uses is what the driver counts for its processes. Both are kept apart here; `core.cards.packing` counts them
together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .record import record

if TYPE_CHECKING:
    from .gpu import GpuProcess


@record
class Sharer:
    """One run that shares a device, as seen now.

    `reserved_bytes` None: it stated nothing. `used_bytes` None: the driver lists no process of it, or not how much one
    of them uses. `running_s` None: its job has not been started. `ending`: the run is over and something of it is left.
    """

    run_id: str
    user: str
    since: str
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    running_s: float | None = None
    ending: bool = False


@record
class DeviceMemory:
    """What one reading says of the memory of a card or MIG slice; None is "could not be read".

    `name` is for people (``card 2``). `processes` are those on it, each with the run that it belongs to where known.
    """

    uuid: str
    name: str
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = ()


@record
class PackingRules:
    """What holds for sharing.

    `floor_bytes` of each device are given to nobody: contexts and fragments of runs that use what they said.
    For `ramp_s` after its job's start a run that stated nothing counts as the whole rest of the device, because an
    empty card says nothing about a job that is still loading. `unstated_bytes` is the room that a run which states
    nothing must find beside runs that did.
    """

    floor_bytes: int = 512 * 1024**2
    ramp_s: float = 60.0
    unstated_bytes: int = 10 * 1024**3


@record
class SharingRoom:
    """Whether one more run fits on a device.

    `free_bytes` is what nobody has reserved or uses. `words` says who has what, for people. `shared` tells whether
    somebody is on it. `recheck_s` is when looking again can be worth while though nobody has left; None: never.
    `possible`: whether it could ever fit.
    """

    uuid: str
    free_bytes: int
    fits: bool
    words: str
    shared: bool = False
    recheck_s: float | None = None
    possible: bool = True
