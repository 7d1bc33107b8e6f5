"""What takes the room: known caches first, links resolved to the disk that they really fill (STOR-02).

Walking a tree of a hundred million files never ends, and one on a dead server hangs: so the walk happens in a
disposable child, is bounded in entries and seconds for each place, and says of each figure whether it is the whole.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from holdfast.diagnosis.evidence import Reading
from holdfast.host.clock import monotonic_s
from holdfast.host.files.filesystems import Mount, find_mount, read_mounts
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.record import record, replace

MOST_ENTRIES = 200_000
"""Entries looked at for one place."""
WITHIN_S = 8.0
"""Seconds for all places together; the child is given up a little later."""

# Variable, place below the home directory without it. Source: the documentation of each program.
_CACHES = (
    ("HF_HOME", ".cache/huggingface"),
    ("HF_HUB_CACHE", ""),
    ("HF_DATASETS_CACHE", ""),
    ("TRANSFORMERS_CACHE", ""),
    ("TORCH_HOME", ".cache/torch"),
    ("TORCHINDUCTOR_CACHE_DIR", ""),
    ("TRITON_CACHE_DIR", ".triton"),
    ("CUDA_CACHE_PATH", ".nv/ComputeCache"),
    ("PIP_CACHE_DIR", ".cache/pip"),
    ("UV_CACHE_DIR", ".cache/uv"),
    ("CONDA_PKGS_DIRS", ".conda/pkgs"),
    ("WANDB_CACHE_DIR", ".cache/wandb"),
    ("WANDB_DIR", ""),
    ("APPTAINER_CACHEDIR", ".apptainer/cache"),
    ("KERAS_HOME", ".keras"),
)
_ADVICE = {
    "HF_HOME": "huggingface-cli delete-cache, or move it: export HF_HOME=/data/you/hf",
    "PIP_CACHE_DIR": "pip cache purge",
    "UV_CACHE_DIR": "uv cache prune",
    "CONDA_PKGS_DIRS": "conda clean --all",
    "WANDB_CACHE_DIR": "wandb artifact cache cleanup 10GB",
}


@record
class MeasuredPath:
    """Somewhere to measure: what it is, its path as written, and what a person could do about it."""

    name: str
    path: str
    advice: str = ""


@record
class Consumer:
    """How much one place takes, on the disk on which it really lies.

    `linked` is True when the path leads there through a link. Sizes count blocks, each file once. `whole` is False
    when the walk was cut short: the figures are then the least. `unread` says what could not be looked at.
    """

    name: str
    path: str
    real_path: str
    mount_point: str
    linked: bool
    size_bytes: int
    files: int
    whole: bool = True
    unread: str = ""
    advice: str = ""


def list_caches(environ: Mapping[str, str]) -> tuple[MeasuredPath, ...]:
    """The caches of this environment: where their variables say, else at their usual places, if there is anything."""
    home = environ.get("HOME") or os.path.expanduser("~")
    found = []
    for name, usual in _CACHES:
        stated = environ.get(name, "").split(":")[0].split(",")[0]
        path = os.path.expanduser(stated) if stated else (f"{home}/{usual}" if usual else "")
        if path and os.path.isabs(path):
            found.append(MeasuredPath(name, path, _ADVICE.get(name, f"move it: export {name}=/data/you/cache")))
    return tuple(found)


def find_consumers(
    places: Sequence[MeasuredPath], *, within_s: float = WITHIN_S, most_entries: int = MOST_ENTRIES
) -> Reading[tuple[Consumer, ...]]:
    """Measure places: those behind a link first, then the largest. Those that do not exist are left out.

    A place inside of one that was measured is told too; its room is counted in both.
    """
    chosen = [(place.name, place.path, place.advice) for place in places]

    def work() -> object:
        deadline, mounts = monotonic_s() + within_s, read_mounts()
        found = []
        for index, (name, path, advice) in enumerate(chosen):
            # What one place leaves of its share, the later ones get.
            now = monotonic_s()
            share = now + max(deadline - now, 0.0) / (len(chosen) - index)
            one = _measure(MeasuredPath(name, path, advice), mounts, share, most_entries)
            if one is not None:
                found.append(one)
        return wire.encode(found)

    try:
        answer = Offload(work).wait(within_s + 2.0)
        consumers = [wire.decode(Consumer, value) for value in answer]
    except (OffloadFailed, wire.WireError, OSError) as error:
        return Reading(unread=f"the places could not be measured: {error}")
    return Reading(tuple(sorted(consumers, key=lambda one: (not one.linked, -one.size_bytes, one.path))))


def _measure(place: MeasuredPath, mounts: tuple[Mount, ...], until_s: float, most: int) -> Consumer | None:
    if not os.path.lexists(place.path):
        return None
    real = os.path.realpath(place.path)
    mount = find_mount(real, mounts)
    linked = real != os.path.abspath(place.path)
    point = "?" if mount is None else mount.mount_point
    blank = Consumer(place.name, place.path, real, point, linked, 0, 0, advice=place.advice)
    try:
        top = os.stat(real)
    except OSError as error:
        return replace(blank, whole=False, unread=error.strerror or "unreadable")
    if not stat.S_ISDIR(top.st_mode):
        return replace(blank, size_bytes=top.st_blocks * 512, files=1)
    return _walk(blank, top, until_s, most)


def _walk(blank: Consumer, top: os.stat_result, until_s: float, most: int) -> Consumer:
    size, files, entries, unread = top.st_blocks * 512, 0, 0, ""
    seen: set[int] = set()
    pending = [blank.real_path]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(directory) as listed:
                for entry in listed:
                    entries += 1
                    if entries > most or (entries % 256 == 0 and monotonic_s() > until_s):
                        return replace(blank, size_bytes=size, files=files, whole=False, unread=unread)
                    facts = entry.stat(follow_symlinks=False)
                    if facts.st_dev != top.st_dev or (facts.st_nlink > 1 and facts.st_ino in seen):
                        continue
                    size += facts.st_blocks * 512
                    files += 1
                    if stat.S_ISDIR(facts.st_mode):
                        pending.append(entry.path)
                    elif facts.st_nlink > 1:
                        seen.add(facts.st_ino)
        except OSError as error:
            unread = unread or f"{directory}: {error.strerror}"
    return replace(blank, size_bytes=size, files=files, whole=not unread, unread=unread)
