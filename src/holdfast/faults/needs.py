"""Tests whether this box can do a fault, each need tried for real in a throw-away child."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from holdfast.host.contain import create
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model.job import Limits

from .spec import Fault, Need
from .stages import enter_mount_namespace

TRY_S = 10.0
PROBE_LIMIT_BYTES = 64 << 20


class NeedTests:
    """Answers for one command; each need is tried once."""

    def __init__(self, nvml_library: str | None = None) -> None:
        self._nvml_library = nvml_library
        self._known: dict[Need, str] = {}

    def lacking(self, fault: Fault) -> str:
        """Why the fault is not possible here; empty when it is."""
        reasons = (self.why_not(need) for need in fault.needs)
        return "; ".join(reason for reason in reasons if reason)

    def why_not(self, need: Need) -> str:
        """Why this box does not have `need`; empty when it has."""
        if need not in self._known:
            self._known[need] = self._look(need)
        return self._known[need]

    def _look(self, need: Need) -> str:
        if need is Need.NVML_LIBRARY:
            return _check_library(self._nvml_library)
        tries: dict[Need, Callable[[], str]] = {
            Need.MOUNT_NAMESPACE: lambda: _in_child(_try_namespace),
            Need.FUSE: _try_fuse,
            Need.LOOP_EXT4: _try_loop,
            Need.MEMORY_CGROUP: lambda: _in_child(_try_memory_group),
            Need.TORCH: _try_torch,
            Need.USER_MODE_LINUX: _try_user_mode_linux,
        }
        return tries[need]()


def _in_child(work: Callable[[], str]) -> str:
    try:
        return str(Offload(work).wait(TRY_S))
    except OffloadFailed as error:
        return str(error)


def _try_namespace() -> str:
    try:
        enter_mount_namespace()
    except OSError as error:
        return f"no mount namespace of one's own: {error.strerror or error}"
    return ""


def _try_fuse() -> str:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    return ""


def _try_loop() -> str:
    if os.geteuid() != 0:
        return "a file system on a loop device is for root"
    missing = [tool for tool in ("mkfs.ext4", "mount") if _find_tool(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if os.path.exists("/dev/loop-control") else "no /dev/loop-control"


def _find_tool(name: str) -> str | None:
    # The tools of the administrator are not on everybody's PATH.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _try_memory_group() -> str:
    try:
        group = create.create_group(f"fault-probe-{os.getpid()}", Limits(memory_bytes=PROBE_LIMIT_BYTES))
    except OSError as error:
        return f"no control group can be made: {error.strerror or error}"
    if group is None:
        return "no control group can be made"
    held = "memory" in group.enforced
    group.remove()
    return "" if held else f"no control group holds a memory limit: {group.refused.get('memory', 'refused')}"


def _try_torch() -> str:
    import importlib.util

    return "" if importlib.util.find_spec("torch") is not None else "torch is not installed beside this holdfast"


def _try_user_mode_linux() -> str:
    if shutil.which("linux.uml") is None:
        return "needs user-mode Linux (linux.uml)"
    return "only in the project's own tests (tests/uml), which have a guest system for it"


def _check_library(path: str | None) -> str:
    if path is None:
        return "give --nvml-library PATH: a stand-in for libnvidia-ml.so.1 that reads FAKE_NVML_STATE"
    if os.path.basename(path) != "libnvidia-ml.so.1":
        return f"{path}: the loader looks for the name libnvidia-ml.so.1"
    return "" if os.path.isfile(path) else f"{path}: there is no such file"
