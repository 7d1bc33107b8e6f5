"""Naming a process so that nothing else can answer to the name: pid, start time and boot.

A bare pid is reused (the limit is 32768 on many boxes); pid plus start time plus boot id is not (PROC-08, B-69).
"""

from __future__ import annotations

from .record import record


@record
class ProcessId:
    """One process for all time on this host.

    `start_ticks` is field 22 of ``/proc/PID/stat`` (clock ticks since boot; Source: proc(5)), `boot_id` the content of
    ``/proc/sys/kernel/random/boot_id``. `pid` is as seen in the PID namespace of whoever recorded it.
    """

    pid: int
    start_ticks: int
    boot_id: str


@record
class BoxIdentity:
    """Where something was recorded, so that nobody takes another box for it: two may have one host name.

    `machine_id` is empty where none names this machine alone (a container, an image that was never booted), `boot_id`
    where the kernel tells none; `pid_namespace` is the link ``/proc/self/ns/pid``. What is empty equals nothing.
    """

    host: str
    machine_id: str = ""
    boot_id: str = ""
    pid_namespace: str = ""


@record
class JobProcess:
    """The job's leader as it reported itself before exec: session and group are its own (sid = pgid = pid)."""

    process: ProcessId
    sid: int
    pgid: int
    inner_pid: int


@record
class LostOutput:
    """What the disk refused of an attempt's output: `lost_bytes` in all (0: not known), the first of them `since`.

    `offset` is how long the log was then: up to there it is the job's own. `error` is what the system said.
    """

    since: str
    offset: int
    lost_bytes: int
    error: str

    def describe(self) -> str:
        """For people."""
        if not self.lost_bytes:
            return f"output may be lost: the disk did not take the end of the log at {self.since}: {self.error}"
        return (
            f"{self.lost_bytes:,} bytes of output were lost, from byte {self.offset:,} of the log on, "
            f"since {self.since}: {self.error}"
        )


ABANDONED = "abandoned"
"""The `WaitStatus.source` of a job that was never let go: its supervisor died first, so it never ran."""


@record
class WaitStatus:
    """What the kernel said when the job's leader ended: exactly one of `code` (0..255) and `signal` is set.

    Resource usage is that of the leader and its reaped descendants: seconds of CPU, peak resident bytes of the
    largest process. `source` says who was told: the keeper, the supervisor, or the kernel's pidfd record; or, of a
    container whose client told nobody, that it was written inside.
    `asked`: its keeper had signalled it before, because its supervisor was gone.
    """

    code: int | None
    signal: int | None
    core_dumped: bool = False
    ended_at: str = ""
    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_bytes: int = 0
    source: str = "keeper"
    asked: bool = False

    @property
    def exit_code(self) -> int:
        """The shell's convention: the code itself, or 128 + the signal's number."""
        return self.code if self.code is not None else 128 + (self.signal or 0)

    def describe(self) -> str:
        """For people: ``exit code 3`` or ``signal 9 (core dumped)``."""
        if self.code is not None:
            return f"exit code {self.code}"
        return f"signal {self.signal}" + (" (core dumped)" if self.core_dumped else "")
