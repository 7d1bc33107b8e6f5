"""One look at a process tree: every thread of every process, with what could not be read and why.

Theory. All of it is read from /proc, which never stops the target, with two exceptions that are avoided: the command
line and the environment are read through the target's memory map, whose lock a thread in uninterruptible sleep may
hold, so they are left out for a process with such a thread; and links in ``fd`` are read, never followed, because the
file behind one may lie on a server that does not answer. A process or thread that vanishes between two reads is normal
and named in `gone`; a pid that was reused is told by its start time.

Costs: five small files for each thread. Source: proc_pid_stat(5), proc_pid_status(5), proc_pid_io(5) and the kernel's
Documentation/scheduler/sched-stats.rst for schedstat.
"""

from __future__ import annotations

import os
import re
import time

from holdfast.core.job.redact import redact_argv
from holdfast.diagnosis.evidence import NOT_LOOKED, Reading
from holdfast.host.process.processes import MOST_ENVIRONMENT
from holdfast.model.pattern import compile_later

from .snapshot import IoCounters, OpenFile, ProcessFacts, ThreadFacts, TreeSnapshot

MOST_PROCESSES = 512
MOST_FILES = 512
MOST_COMMAND_BYTES = 4096
_READ_BYTES = 16384
WANTED_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}
)
"""The variables that diagnosis needs; nothing else of an environment is kept."""


def take_snapshot(pids: tuple[int, ...] | list[int], *, details: bool = True, proc: str = "/proc") -> TreeSnapshot:
    """Look at these processes, at most `MOST_PROCESSES` of them.

    Without `details` command line, environment and open files are left out. `proc` is another /proc for tests.
    """
    begun = time.monotonic()
    found, gone = [], []
    own = os.geteuid()
    for pid in pids[:MOST_PROCESSES]:
        facts = _read_process(f"{proc}/{pid}", pid, own, details=details)
        if facts is None:
            gone.append(pid)
        else:
            found.append(facts)
    took = time.monotonic() - begun
    return TreeSnapshot(begun, tuple(found), tuple(gone), took, max(0, len(pids) - MOST_PROCESSES))


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ_BYTES)
    finally:
        os.close(descriptor)


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _split_stat(data: bytes) -> tuple[str, list[bytes]]:
    """Name and the fields after it; the name may hold blanks and parentheses, so the last one ends it."""
    head, _, tail = data.rpartition(b")")
    return head.partition(b"(")[2].decode("utf-8", "replace"), tail.split()


def _read_process(base: str, pid: int, own: int, *, details: bool) -> ProcessFacts | None:
    try:
        name, fields = _split_stat(_read(f"{base}/stat"))
        names = os.listdir(f"{base}/task")
        uid = os.stat(base).st_uid
        status = _read(f"{base}/status")
    except OSError:
        return None
    if len(fields) < 20:
        return None
    read = [_read_thread(f"{base}/task/{tid}", int(tid)) for tid in sorted(names, key=int)]
    threads = tuple(thread for thread in read if thread is not None)
    if not threads:
        return None
    # Sorted by number, which is not the order of birth once numbers have wrapped: the leader goes first.
    main = next((thread for thread in threads if thread.tid == pid), threads[0])
    threads = (main, *(thread for thread in threads if thread is not main))
    stuck = any(thread.state == "D" for thread in threads)
    values = _parse_status(status)
    return ProcessFacts(
        pid=pid,
        ppid=int(fields[1]),
        start_ticks=int(fields[19]),
        name=name,
        state=fields[0].decode("ascii", "replace"),
        threads=threads,
        command=_read_command(base, stuck=stuck) if details else Reading(unread=NOT_LOOKED),
        environment=_read_environment(base, stuck=stuck) if details else Reading(unread=NOT_LOOKED),
        io=_read_io(base),
        files=_read_files(base) if details else Reading(unread=NOT_LOOKED),
        tracer=int(values.get("TracerPid", "0")),
        own=uid == own,
        files_open=_count_files(base) if details else None,
        files_limit=_read_files_limit(base) if details else None,
    )


_STATUS_LINE = compile_later(rb"^(VmRSS|SigCgt|TracerPid):\s*(.*)$", re.MULTILINE)
_FILES_LIMIT = compile_later(rb"^Max open files\s+(\d+)", re.MULTILINE)
_SWITCHES = compile_later(rb"voluntary_ctxt_switches:\s*(\d+)")


def _parse_status(data: bytes) -> dict[str, str]:
    return {key.decode(): value.decode("ascii", "replace").strip() for key, value in _STATUS_LINE.findall(data)}


def _read_thread(base: str, tid: int) -> ThreadFacts | None:
    try:
        name, fields = _split_stat(_read(f"{base}/stat"))
    except OSError:
        return None
    if len(fields) < 20:
        return None
    unread: dict[str, str] = {}
    wchan = _read_wchan(base, unread)
    syscall, arguments = _read_syscall(base, unread)
    run_ns, queue_ns = _read_schedstat(base, unread)
    voluntary, forced = _read_switches(base, unread)
    return ThreadFacts(
        tid=tid,
        name=name,
        state=fields[0].decode("ascii", "replace"),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        major_faults=int(fields[9]),
        start_ticks=int(fields[19]),
        wchan=wchan,
        syscall=syscall,
        arguments=arguments,
        run_ns=run_ns,
        queue_ns=queue_ns,
        voluntary=voluntary,
        forced=forced,
        unread=unread,
    )


def _read_wchan(base: str, unread: dict[str, str]) -> str | None:
    try:
        text = _read(f"{base}/wchan").decode("ascii", "replace").strip()
    except OSError as error:
        unread["wchan"] = _why(error)
        return None
    # "0" is a thread on a CPU, or one that we may not ask about.
    return text if text not in ("", "0") else None


def _read_syscall(base: str, unread: dict[str, str]) -> tuple[int | None, tuple[int, ...]]:
    try:
        words = _read(f"{base}/syscall").split()
    except OSError as error:
        unread["syscall"] = _why(error)
        return None, ()
    if len(words) < 9 or words[0] in (b"running", b"-1"):
        return None, ()
    return int(words[0]), tuple(int(word, 16) for word in words[1:7])


def _read_schedstat(base: str, unread: dict[str, str]) -> tuple[int | None, int | None]:
    try:
        words = _read(f"{base}/schedstat").split()
        return int(words[0]), int(words[1])
    except OSError as error:
        unread["schedstat"] = _why(error)
    except (ValueError, IndexError):
        unread["schedstat"] = "not in the form that proc(5) describes"
    return None, None


def _read_switches(base: str, unread: dict[str, str]) -> tuple[int | None, int | None]:
    try:
        found = _SWITCHES.findall(_read(f"{base}/status"))
    except OSError as error:
        unread["switches"] = _why(error)
        return None, None
    if len(found) != 2:
        unread["switches"] = "this kernel does not count them"
        return None, None
    return int(found[0]), int(found[1])


_STUCK = "left out: a thread is in uninterruptible sleep, and this read could wait for it"


def _read_command(base: str, *, stuck: bool) -> Reading[str]:
    if stuck:
        return Reading(unread=_STUCK)

    try:
        data = _read(f"{base}/cmdline")[:MOST_COMMAND_BYTES]
    except OSError as error:
        return Reading(unread=_why(error))
    words = data.rstrip(b"\0").decode("utf-8", "replace").split("\0")
    return Reading(" ".join(redact_argv(words)[0]))


def _read_environment(base: str, *, stuck: bool) -> Reading[dict[str, str]]:
    if stuck:
        return Reading(unread=_STUCK)
    try:
        with open(f"{base}/environ", "rb", buffering=0) as file:
            data = file.read(MOST_ENVIRONMENT) or b""
    except OSError as error:
        return Reading(unread=_why(error))
    if not data:
        # So it looks for a moment in every exec, and in a process that has wiped it: no claim may rest on it.
        return Reading(unread="it is empty")
    found = {}
    for entry in data.split(b"\0", 1 << 16):
        key, _, value = entry.partition(b"=")
        name = key.decode("utf-8", "replace")
        if name in WANTED_NAMES:
            found[name] = value[:100].decode("utf-8", "replace")
    return Reading(found)


def _read_io(base: str) -> Reading[IoCounters]:
    try:
        rows = (line.partition(b":") for line in _read(f"{base}/io").splitlines())
        values = {key.decode(): int(value) for key, _, value in rows}
    except OSError as error:
        return Reading(unread=_why(error))
    except ValueError:
        return Reading(unread="not in the form that proc(5) describes")
    names = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes")
    return Reading(IoCounters(**{name: values.get(name, 0) for name in names}))


def _count_files(base: str) -> int | None:
    try:
        return len(os.listdir(f"{base}/fd"))
    except OSError:
        return None


def _read_files_limit(base: str) -> int | None:
    """The soft limit. Source: proc_pid_limits(5)."""
    try:
        found = _FILES_LIMIT.search(_read(f"{base}/limits"))
    except OSError:
        return None
    return None if found is None else int(found[1])


def _read_files(base: str) -> Reading[tuple[OpenFile, ...]]:
    try:
        numbers = sorted(int(name) for name in os.listdir(f"{base}/fd"))
    except OSError as error:
        return Reading(unread=_why(error))
    found = []
    for number in numbers[:MOST_FILES]:
        try:
            target = os.readlink(os.fsencode(f"{base}/fd/{number}"))
        except OSError:
            continue
        found.append(OpenFile(number, target.decode("utf-8", "replace")))
    return Reading(tuple(found))
