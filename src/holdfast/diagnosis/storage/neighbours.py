"""Who else works in a directory: other runs of the same working directory, and files that processes have open."""

from __future__ import annotations

import os
import pwd
import stat
import time
from typing import Any

from holdfast.host.clock import parse_utc
from holdfast.host.files import files
from holdfast.host.process.processes import list_pids, read_environ, read_uid
from holdfast.model import wire
from holdfast.model.ids import is_run_id
from holdfast.model.record import record

MOST_RUNS = 5000
"""With more runs beside this one it is not looked whether one shared its working directory: it counts as shared."""
SLACK_NS = 2_000_000_000
"""File systems round their times, and the first record is written a little before the job begins."""


@record
class RunWindow:
    """While a run was alive, in nanoseconds since 1970."""

    begin_ns: int = 0
    end_ns: int = 0


def find_neighbour(run_dir: str, workdir: str) -> tuple[RunWindow, str]:
    """While the run was alive, and why its working directory is not its alone; empty when nothing speaks against it."""
    real, none = os.path.realpath(workdir), RunWindow()
    if _is_shared(real):
        return none, "is no directory of its own: nothing is pruned there"
    if _is_of_a_run(real):
        return none, "lies in the directory of a run: nothing is pruned there"
    own = _read_life(run_dir)
    if own is None:
        return none, "when this run began cannot be read: nothing is pruned there"
    end = own.end_ns or time.time_ns()
    window = RunWindow(own.begin_ns - SLACK_NS, end + SLACK_NS)
    root, own_name = os.path.split(run_dir.rstrip("/"))
    try:
        names = [name for name in os.listdir(root) if is_run_id(name) and name != own_name]
    except OSError as error:
        return window, f"other runs cannot be listed ({error.strerror}): nothing is pruned there"
    if len(names) > MOST_RUNS:
        return window, f"{len(names)} runs lie beside this one: too many to see who shared it"
    for name in names:
        if _shares(f"{root}/{name}", real, window):
            return window, f"{name} worked in it at the same time: whose scratch is whose cannot be told"
    elsewhere = _find_living(own_name, real)
    if elsewhere:
        return window, f"{elsewhere} works in it now"
    return window, ""


def _is_shared(real: str) -> bool:
    """Whether it is the root, a home directory, or one in which every account may write, like /tmp."""
    if real in {"/", *map(os.path.realpath, (os.path.expanduser("~"), _read_home()))}:
        return True
    try:
        return bool(os.stat(real).st_mode & stat.S_IWOTH)
    except OSError:
        return False  # it is not there, which is told elsewhere


def _read_home() -> str:
    """The home directory of this account by the box's own record; HOME may say another, or nothing."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"


def _is_of_a_run(real: str) -> bool:
    """Whether it is a run's directory, or lies in one: what is there belongs to that run, checkpoints and all."""
    parts = real.split("/")
    heads = ("/".join(parts[: number + 1]) for number, part in enumerate(parts) if is_run_id(part))
    return any(os.path.lexists(f"{head}/{wire.RUN}") for head in heads)


def _shares(run_dir: str, workdir: str, window: RunWindow) -> bool:
    life = _read_life(run_dir, workdir)
    return life is not None and life.begin_ns <= window.end_ns and (not life.end_ns or life.end_ns >= window.begin_ns)


def _read_life(run_dir: str, workdir: str | None = None) -> RunWindow | None:
    """When a run began and ended (0: not yet); None when it cannot be told, or it ran in another directory.

    With `workdir`, a record that cannot be read counts as one of that directory: not known is not "elsewhere".
    """
    try:
        record = wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)
        begin = int(parse_utc(str(record.get("created_at"))) * 1e9)
        place = _read_workdir(record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return None if workdir is None else RunWindow()
    if workdir is not None and place and not _overlap(os.path.realpath(place), workdir):
        return None
    return RunWindow(begin, _read_end(run_dir))


def _read_workdir(record: dict[str, Any]) -> str:
    job = record.get("job")
    place = job.get("workdir") if isinstance(job, dict) else None
    return place if isinstance(place, str) else ""


def _overlap(first: str, second: str) -> bool:
    return first == second or first.startswith(f"{second}/") or second.startswith(f"{first}/")


def _read_end(run_dir: str) -> int:
    """When the newest attempt ended, 0 when it has no exit record.

    The record's own time is wrong where nobody saw the end (the box went down, the supervisor was killed): it is
    written by whoever looks next, days later. The last sign of life before it counts then.
    """
    try:
        numbers = [int(name) for name in os.listdir(f"{run_dir}/{wire.ATTEMPTS}") if name.isascii() and name.isdigit()]
        attempt = wire.attempt_dir(run_dir, max(numbers, default=0))
        written = os.stat(f"{attempt}/{wire.EXIT}").st_mtime_ns
    except OSError:
        return 0
    try:
        status = wire.parse_object(files.read_bytes(f"{attempt}/{wire.EXIT}"), wire.EXIT).get("status")
    except (OSError, ValueError):
        status = None
    if isinstance(status, dict):
        try:
            # A keeper may have seen the end long before somebody wrote this record.
            return min(written, int(parse_utc(str(status.get("ended_at"))) * 1e9))
        except ValueError:
            return written
    return max((_read_mtime(f"{attempt}/{name}") for name in (wire.HEARTBEAT, wire.OUTPUT)), default=0) or written


def _read_mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _find_living(own: str, workdir: str) -> str:
    """A living run of this account, other than ours, of which a process stands in the directory."""
    mine = os.geteuid()
    for pid in list_pids():
        if read_uid(pid) != mine:
            continue
        run_id = (read_environ(pid) or {}).get("HOLDFAST_RUN_ID", "")
        if not run_id or run_id == own:
            continue
        try:
            if _overlap(os.readlink(f"/proc/{pid}/cwd"), workdir):
                return run_id
        except OSError:
            continue
    return ""


def list_open_files(uid: int) -> frozenset[tuple[int, int]]:
    """Device and inode of every file that a process of the account has open or mapped.

    On btrfs and overlayfs the device of a mapping is not that of the file, so there only open descriptors and the
    program itself are found. Source: proc_pid_maps(5).
    """
    found: set[tuple[int, int]] = set()
    for pid in list_pids():
        if read_uid(pid) != uid:
            continue
        base = f"/proc/{pid}/fd"
        try:
            names = os.listdir(base)
        except OSError:
            continue
        for name in (*(f"{base}/{fd}" for fd in names), f"/proc/{pid}/exe"):
            try:
                facts = os.stat(name)
            except OSError:
                continue
            found.add((facts.st_dev, facts.st_ino))
        found |= _list_mapped(pid)
    return frozenset(found)


def _list_mapped(pid: int) -> set[tuple[int, int]]:
    """A mapping keeps a file in use after its descriptor was closed, as libraries for checkpoints and data sets do."""
    found: set[tuple[int, int]] = set()
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            for line in file:
                fields = line.split(None, 5)
                if len(fields) > 5 and fields[4] != b"0":
                    major, _, minor = fields[3].partition(b":")
                    found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
    except (OSError, ValueError):
        return found
    return found
