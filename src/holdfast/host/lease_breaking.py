"""Ending a lease from outside, and clearing away what the dead have left.

A lease whose run is provably gone holds nothing any more; anybody may say so. One that still holds is broken only by
its owner or root, on purpose and with a written reason, and the break is written down before it happens. Nothing here
ends a process: whoever still uses the card goes on using it, and is named.

Invariants: the audit line comes first; a lock file is only removed under its gate and never when another run shares it;
what is swept was proved dead under its own lock.
"""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.errors import NoSuchRun, NotPermitted, StorageError
from . import clock, foreign_locks, lease_area, lease_records, lock_files, processes, tickets
from .files import write_all
from .usage import note_left

if TYPE_CHECKING:
    from .lease_area import Area
    from .lease_records import Judgement, SeenRecord

_GATE_TRIES, _GATE_PAUSE_S = 50, 0.002
# Nobody needs longer between writing a temporary file and renaming it.
_TEMPORARY_AGE_S = 60.0


@dataclass(frozen=True, slots=True)
class Broken:
    """What breaking a lease did. `removed` are paths; `kept` lock files that another run shares or that are not ours.

    `still_running` are processes of the run that may still be using the card.
    """

    run_id: str
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    still_running: tuple[int, ...]


def break_lease(area: Area, run_id: str, *, force: bool = False, reason: str = "") -> Broken:
    """End the lease of a run, as the account that we are.

    Raises:
        NoSuchRun: no lease of that run is in the area.
        NotPermitted: it still holds and is not ours, or `force` and `reason` are missing.
        StorageError: the break cannot be written down; nothing was broken.
    """
    seen_records = [s for s in lease_records.read_records(area)[0] if s.record.run_id == run_id]
    if not seen_records:
        raise NoSuchRun(f"no lease of run {run_id} in {', '.join(area.directories)}", hint="Look at `holdfast gpus`.")
    judged = [(seen, lease_records.judge(seen)) for seen in seen_records]
    files = lock_files.LockFiles()
    try:
        gone = not any(judgement.holds for _, judgement in judged) and _lock_all(area, files, seen_records)
        if not gone:
            files.unlock()
            _require_right(judged, force=force, reason=reason)
        _write_audit(area, judged, gone=gone, reason=reason)
        for seen in seen_records if gone else ():
            note_left(area, seen)
        removed = [seen.path for seen in seen_records if _remove(seen.path)]
        kept: list[str] = []
        if not gone:
            for path in _still_locked(area, files, seen_records):
                shared = _is_shared(area, path, run_id)
                (removed if not shared and _remove(path) else kept).append(path)
    finally:
        files.close()
    pids = {pid for _, judgement in judged for pid in judgement.pids}
    return Broken(run_id, tuple(removed), tuple(kept), tuple(sorted(pids)))


def _require_right(judged: list[tuple[SeenRecord, Judgement]], *, force: bool, reason: str) -> None:
    record = judged[0][0].record
    holding = [judgement for _, judgement in judged if judgement.holds]
    why = holding[0].why if holding else "its lock is still held"
    if os.geteuid() not in (0, record.uid):
        raise NotPermitted(
            f"the lease of run {record.run_id} belongs to {record.user} and still holds: {why}",
            hint=f"Ask {record.user} or an administrator.",
        )
    if not force or not reason.strip():
        raise NotPermitted(
            f"the lease of run {record.run_id} still holds: {why}",
            hint="Stop the run; or break its lease with --force and --reason, and know that its processes go on.",
        )


def _lock_all(area: Area, files: lock_files.LockFiles, seen_records: list[SeenRecord]) -> bool:
    devices = [device for seen in seen_records for device in seen.record.devices]
    plan = lock_files.plan_locks(area, devices, share=False)
    return all(files.try_lock(path, exclusive=True) for path, _ in plan)


def _still_locked(area: Area, files: lock_files.LockFiles, seen_records: list[SeenRecord]) -> list[str]:
    """Lock files of the broken lease that somebody still holds, with the gates of their cards closed by us."""
    devices = [device for seen in seen_records for device in seen.record.devices]
    for card in sorted({device.card_uuid for device in devices}):
        for directory in area.directories:
            gate = f"{directory}/{lock_files.gate_name(card)}"
            for _ in range(_GATE_TRIES):
                if files.try_lock(gate, exclusive=True):
                    break
                time.sleep(_GATE_PAUSE_S)
    plan = lock_files.plan_locks(area, devices, share=False)
    return [path for path, _ in plan if not files.try_lock(path, exclusive=True)]


def _is_shared(area: Area, path: str, run_id: str) -> bool:
    name = os.path.basename(path)
    return any(
        name in (lock_files.lock_name(device.card_uuid), lock_files.lock_name(device.uuid))
        and seen.record.run_id != run_id
        and lease_records.judge(seen).holds
        for seen in lease_records.read_records(area)[0]
        for device in seen.record.devices
    )


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _write_audit(area: Area, judged: list[tuple[SeenRecord, Judgement]], *, gone: bool, reason: str) -> None:
    """Append one line to this account's own audit file: nobody can write or cut that of another."""
    record, actor = judged[0][0].record, os.geteuid()
    line = {
        "schema": 1,
        "time": clock.utc_now(),
        "action": "break_lease",
        "by": processes.user_name(actor),
        "uid": actor,
        "run_id": record.run_id,
        "owner": record.user,
        "owner_uid": record.uid,
        "devices": sorted({device.uuid for seen, _ in judged for device in seen.record.devices}),
        "gone": gone,
        "evidence": [judgement.why for _, judgement in judged],
        "still_running": sorted({pid for _, judgement in judged for pid in judgement.pids}),
        "reason": reason,
    }
    path = f"{area.directories[0]}/{audit_name(actor)}"
    try:
        _append_public(path, (json.dumps(line) + "\n").encode())
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}; the lease was not broken",
            hint="Ask an administrator to look at that file.",
        ) from error


def audit_name(uid: int) -> str:
    """The name of an account's audit file in the area: JSON lines."""
    return f"audit-{uid}.jsonl"


def _append_public(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(descriptor, 0o644)
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_nlink != 1 or seen.st_uid != os.geteuid():
            raise OSError(1, "it is not a plain file of this account", path)
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(area: Area) -> tuple[str, ...]:
    """Remove void records, dead tickets, left temporary files and lock files published for runs that are gone.

    Ours only; as root everybody's. Answers the paths that were removed.
    """
    removed = [
        seen.path
        for seen in lease_records.read_records(area)[0]
        if _is_ours(seen.path) and not lease_records.judge(seen).holds and _sweep_record(area, seen)
    ]
    line = tickets.list_earlier(area, None)
    removed.extend(path for path in line if _is_ours(path) and tickets.is_dead(path) and _remove(path))
    removed.extend(path for path in _list_left_temporaries(area) if _remove(path))
    removed.extend(_sweep_hand_written(area))
    return tuple(removed)


def _is_ours(path: str) -> bool:
    try:
        return os.geteuid() in (0, os.lstat(path).st_uid)
    except OSError:
        return False


def _sweep_record(area: Area, seen: SeenRecord) -> bool:
    files = lock_files.LockFiles()
    try:
        if not _lock_all(area, files, [seen]) or lease_records.judge(seen).holds:
            return False
        note_left(area, seen)
        return _remove(seen.path)
    finally:
        files.close()


def _list_left_temporaries(area: Area) -> list[str]:
    left = []
    for directory, name in lease_area.list_names(area):
        writer = name.removesuffix(".tmp").rpartition(".")[2]
        if not (name.startswith(".") and name.endswith(".tmp") and writer.isascii() and writer.isdigit()):
            continue
        path = f"{directory}/{name}"
        if not _is_ours(path) or processes.read_stat(int(writer)) is not None:
            continue
        try:
            old = clock.epoch_s() - os.lstat(path).st_mtime > _TEMPORARY_AGE_S
        except OSError:
            continue
        left.extend([path] if old else [])
    return left


def _sweep_hand_written(area: Area) -> list[str]:
    """A record is written before its lock files are published, so without a record that holds they mean nothing."""
    try:
        names = os.listdir(area.hand_written)
    except OSError:
        return []
    holding = {s.record.run_id for s in lease_records.read_records(area)[0] if lease_records.judge(s).holds}
    removed = []
    for name in names:
        index = name.removeprefix("gpu_").removesuffix(".lock")
        lock = foreign_locks.read_lock(area.hand_written, int(index)) if index.isascii() and index.isdigit() else None
        if lock is None or lock.run_id is None or lock.run_id in holding or not _is_ours(lock.path):
            continue
        if _remove(lock.path):
            removed.append(lock.path)
    return removed
