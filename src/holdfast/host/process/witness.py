"""How a process ended, told by the kernel to somebody who is not its parent: the record that a pidfd keeps.

Source: the PIDFD_GET_INFO ioctl, PIDFD_INFO_EXIT (Linux 6.15); the pidfd must have been opened before the process was
reaped. Older kernels tell nothing here, and nothing is then claimed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.host.clock import utc_now
from holdfast.model.identity import WaitStatus

from . import libc

if TYPE_CHECKING:
    from .pidfd import HeldProcess


def awaits_reaping(process: HeldProcess) -> bool:
    """Whether a dead process is still somebody's zombie: its status can be read once that one has reaped it."""
    info = _ask(process)
    return info is not None and info.wait_status is None


def read_kernel_record(process: HeldProcess) -> WaitStatus | None:
    """The exit status of a process that was reaped; None where the kernel does not tell, or not yet."""
    info = _ask(process)
    raw = None if info is None else info.wait_status
    if raw is None:
        return None
    code = os.WEXITSTATUS(raw) if os.WIFEXITED(raw) else None
    number = os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else None
    return WaitStatus(code, number, os.WCOREDUMP(raw), ended_at=utc_now(), source="pidfd")


def _ask(process: HeldProcess) -> libc.PidfdInfo | None:
    return None if process.descriptor is None else libc.read_pidfd_info(process.descriptor)
