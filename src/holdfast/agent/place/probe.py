"""The entry ``probe``: what this box is and has, as `model.place.BoxFacts`, within about a second and without a hang.

What may block (a driver, a network file system, a lock on one) is asked in children of ours with a deadline; what does
not answer is unknown, with a warning. Nothing is left behind. The desk adds how far this clock is from its own.

With paths as words it answers ``disks``, those behind the paths, and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import platform
import pwd
import resource
import shutil
import sys
import tempfile
import time
from functools import partial
from typing import Any

from holdfast.host.box import read_box
from holdfast.host.clock import utc_now
from holdfast.host.contain.containment import choose_level
from holdfast.host.contain.tree import read_effective
from holdfast.host.files.disks import DiskUnreadable, measure_space
from holdfast.host.files.files import read_text_or_none
from holdfast.host.files.filesystems import NETWORK_FILESYSTEMS
from holdfast.host.formats.own_bundle import find_own_bundle
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.process import pidfd
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.processes import user_name
from holdfast.model.gpu import Inventory, InventorySource
from holdfast.model.place import MISSING, UNREADABLE, BoxFacts, CardFacts, DiskFacts
from holdfast.model.record import replace
from holdfast.model.runs_root import bundles_dir
from holdfast.model.units import format_count
from holdfast.store.paths import default_root

from .answer import answer

LIMIT_S = 0.9
"""All of it; what has no answer by then is unknown."""
CARDS_LIMIT_S = 0.8
TOOLS = (
    *("tar", "rsync", "git", "tmux", "nvidia-smi", "docker", "podman", "apptainer", "sbatch", "srun", "kubectl"),
    *("uv", "conda", "gcc", "systemd-run"),
)
LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "virtual memory": resource.RLIMIT_AS,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "file size": resource.RLIMIT_FSIZE,
    "cpu time": resource.RLIMIT_CPU,
}
FEW_FILES = 1024
LITTLE_BYTES = 1 << 30
FEW_INODES = 10_000


def main(words: list[str]) -> int:
    """Print the facts of this box, or those of the disks behind the paths `words`."""
    return answer((lambda: {"disks": _measure_paths(words)}) if words else read_facts)


def _measure_paths(paths: list[str]) -> list[dict[str, Any]]:
    """The disks behind paths, of which ``~`` is the home; what does not answer in time is unknown."""
    expanded = [os.path.expanduser(path) for path in paths]
    asked = [(path, Offload(partial(_measure_if_there, path))) for path in expanded]
    began, found = time.monotonic(), []
    for path, work in asked:
        found.append(_wait(work, began, path, []) or {"path": path, "type": UNREADABLE})
    return found


def _measure_if_there(path: str) -> dict[str, Any]:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"path": path, "type": MISSING}
    except OSError:
        return {"path": path, "type": UNREADABLE}
    return _measure(path)


def read_facts() -> BoxFacts:
    """What this box is and has, now."""
    began = time.monotonic()
    root, home = default_root(), os.path.expanduser("~")
    disks = Offload(lambda: [_measure(path) for path in _list_paths(root, home)])
    lock = Offload(lambda: try_lock(root))
    level = Offload(_choose_level)
    inventory = read_inventory(CARDS_LIMIT_S)
    warnings: list[str] = []
    found_disks = _wait(disks, began, "the disks", warnings) or []
    flock = _wait(lock, began, f"a lock below {root}", warnings) or ""
    containment = _wait(level, began, "containment", warnings) or ""
    user = user_name(os.geteuid())
    held = read_effective()
    warnings += [f"{path} cannot be read: it may limit what a job may use" for path in held.unreadable]
    facts = BoxFacts(
        measured_at=utc_now(),
        uid=os.geteuid(),
        user=user,
        home=home,
        root=root,
        python=sys.executable,
        python_version=platform.python_version(),
        bundle=find_own_bundle() or "",
        box=read_box(),
        clock_epoch_s=time.time(),
        kernel=os.uname().release,
        shell=_read_shell(),
        flock=flock,
        pidfd=_read_pidfd_mode(),
        containment=containment,
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=_read_memory(),
        cpu_limit=held.cpu_quota,
        memory_limit_bytes=held.memory_bytes,
        task_limit=held.tasks,
        driver=inventory.driver_version,
        cards=_list_cards(inventory),
        disks=tuple(DiskFacts(**entry) for entry in found_disks),
        tools={name: path for name in TOOLS if (path := shutil.which(name)) is not None},
        limits={name: _read_limit(number) for name, number in LIMITS.items()},
    )
    return _with_warnings(facts, inventory, warnings)


def try_lock(root: str) -> str:
    """``taken`` when a lock on the runs root's file system keeps a second one out, else ``unlockable``.

    Two descriptions of one file are two owners (flock(2)), so one process can see it.
    """
    base = bundles_dir(root, os.geteuid())
    with tempfile.NamedTemporaryFile(dir=base if os.path.isdir(base) else root, prefix=".lock-") as file:
        second = os.open(file.name, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "taken"
        except OSError:
            return "unlockable"
        finally:
            os.close(second)
    return "unlockable"


def _wait(work: Offload, began: float, what: str, warnings: list[str]) -> Any:  # noqa: ANN401 - JSON
    try:
        return work.wait(max(0.05, LIMIT_S - (time.monotonic() - began)))
    except OffloadFailed as failure:
        warnings.append(f"{what}: {failure}")
        return None


def _list_paths(root: str, home: str) -> list[str]:
    return list(dict.fromkeys([root, home, os.environ.get("TMPDIR") or "/tmp", "/dev/shm"]))  # noqa: S108 - only looked at


def _measure(path: str) -> dict[str, Any]:
    try:
        space = measure_space(path)
    except DiskUnreadable:
        return {"path": path, "type": UNREADABLE}
    return {
        "path": path,
        "type": space.kind,
        "free_bytes": space.free_bytes,
        "total_bytes": space.total_bytes,
        "free_inodes": space.free_inodes,
        "writable": os.access(space.real_path, os.W_OK | os.X_OK) and not space.read_only,
    }


def _choose_level() -> str:
    level = choose_level().level
    return level.value if level is not None else ""


def _read_pidfd_mode() -> str:
    held = pidfd.hold(os.getpid())
    if held is None:
        return "none"
    try:
        if held.descriptor is None:
            return "none"
        return "native" if hasattr(os, "pidfd_open") else "syscall"
    finally:
        held.close()


def _read_shell() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        return os.environ.get("SHELL", "")


def _read_memory() -> int | None:
    for line in (read_text_or_none("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _read_limit(number: int) -> int | None:
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft


def _list_cards(inventory: Inventory) -> tuple[CardFacts, ...]:
    simulated = inventory.source is InventorySource.SIMULATED
    return tuple(CardFacts(card.index, card.name, card.memory_total_bytes, simulated) for card in inventory.cards)


def _with_warnings(facts: BoxFacts, inventory: Inventory, warnings: list[str]) -> BoxFacts:
    if not inventory.complete:
        warnings.append(f"cards: {inventory.reason}")
    if facts.flock == "unlockable":
        warnings.append(f"{facts.root}: its file system takes no locks, so two supervisors cannot be kept apart by one")
    if facts.pidfd == "none":
        warnings.append("this kernel has no pidfds: processes are named by pid and start time")
    for disk in facts.disks:
        if disk.type in NETWORK_FILESYSTEMS and disk.path == facts.root:
            warnings.append(f"{disk.path} is on a network file system ({disk.type})")
        if disk.writable is False:
            warnings.append(f"{disk.path} cannot be written")
        if disk.free_bytes is not None and disk.free_bytes < LITTLE_BYTES and disk.path != "/dev/shm":  # noqa: S108
            warnings.append(f"{disk.path}: {disk.free_bytes >> 20} MiB are free")
        if disk.free_inodes is not None and disk.free_inodes < FEW_INODES:
            warnings.append(f"{disk.path}: {format_count(disk.free_inodes, 'inode is', 'inodes are')} free")
    most = facts.limits["open files"]
    if most is not None and most < FEW_FILES:
        warnings.append(f"only {most} open files are allowed")
    return replace(facts, warnings=tuple(warnings))
