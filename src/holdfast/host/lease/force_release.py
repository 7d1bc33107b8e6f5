"""Releases a lease from outside, and removes the records of dead holders.

A lease whose run is provably gone holds nothing any more; anybody may say so. One that still holds is broken only by
its owner or root, on purpose and with a written reason, and the break is written down before it happens. Nothing here
ends a process: whoever still uses the card goes on using it, and is named.

Invariants: the audit line comes first; a lock file is only removed under its gate and never when another run shares it;
what is swept was proved dead under its own lock.
"""

from __future__ import annotations

import os
import time

from holdfast.host.files.public_files import list_left_temporaries
from holdfast.model.errors import NoSuchRun, NotPermitted, StorageError, UsageError
from holdfast.model.record import record

from . import area as lease_area
from . import foreign_locks, lock_files, records, tickets
from .area import LeaseArea, write_audit
from .records import FoundRecord, RecordJudgement
from .usage import note_left

_GATE_TRIES, _GATE_PAUSE_S = 50, 0.002
# Nobody needs longer between writing a temporary file and renaming it.
_TEMPORARY_AGE_S = 600.0
_LONGEST_INDEX = 3


@record
class BrokenLease:
    """What breaking a lease did. `removed` are paths; `kept` lock files that another run shares or that are not ours.

    `still_running` are processes of the run that may still be using the card.
    """

    run_id: str
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    still_running: tuple[int, ...]


def break_lease(area: LeaseArea, run_id: str, *, force: bool = False, reason: str = "") -> BrokenLease:
    """End the lease of a run, as the account that we are.

    Anybody can write a record with anybody's run id: ours is meant, where we have one, and else the only one there is.

    Raises:
        NoSuchRun: no lease of that run is in the area.
        UsageError: several accounts have a record of that run, and it cannot be told which one is meant.
        NotPermitted: it still holds and is not ours, or `force` and `reason` are missing.
        StorageError: the break cannot be written down; nothing was broken.
    """
    found = [s for s in records.read_records(area)[0] if s.record.run_id == run_id]
    if not found:
        raise NoSuchRun(f"no lease of run {run_id} in {', '.join(area.directories)}", hint="Look at `holdfast gpus`.")
    seen_records = _choose_account(found)
    judge = records.Judge()
    judged = [(seen, judge.judge(seen)) for seen in seen_records]
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
            keys = {seen.key for seen in seen_records}
            for path in _still_locked(area, files, seen_records):
                shared = _is_shared(area, path, keys)
                (removed if not shared and _remove(path) else kept).append(path)
    finally:
        files.close()
    pids = {pid for _, judgement in judged for pid in judgement.pids}
    return BrokenLease(run_id, tuple(removed), tuple(kept), tuple(sorted(pids)))


def _choose_account(found: list[FoundRecord]) -> list[FoundRecord]:
    """The records of one account: ours, unless we are root and others have some too; else those of the only one."""
    uids = {seen.record.uid for seen in found}
    if os.geteuid() != 0 and os.geteuid() in uids:
        return [seen for seen in found if seen.record.uid == os.geteuid()]
    if len(uids) > 1:
        run_id, users = found[0].record.run_id, sorted({seen.record.user for seen in found})
        raise UsageError(
            f"{' and '.join(users)} have records of run {run_id}: {', '.join(seen.path for seen in found)}",
            hint="One of them is not its owner: ask both, and remove the record that is false.",
        )
    return found


def _require_right(judged: list[tuple[FoundRecord, RecordJudgement]], *, force: bool, reason: str) -> None:
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


def _lock_all(area: LeaseArea, files: lock_files.LockFiles, seen_records: list[FoundRecord]) -> bool:
    devices = [device for seen in seen_records for device in seen.record.devices]
    plan = lock_files.plan_locks(area, devices, share=False)
    # What is not there nobody holds: a stranger's record can name any number of cards.
    return all(not os.path.lexists(path) or _try_lock(files, path) for path, _ in plan)


def _try_lock(files: lock_files.LockFiles, path: str) -> bool:
    """Whether the lock could be had; what somebody put in its place, or cannot be opened, is as good as held."""
    try:
        return files.try_lock(path, exclusive=True)
    except StorageError:
        return False


def _still_locked(area: LeaseArea, files: lock_files.LockFiles, seen_records: list[FoundRecord]) -> list[str]:
    """Lock files of the broken lease that somebody still holds, with the gates of their cards closed by us."""
    devices = [device for seen in seen_records for device in seen.record.devices]
    for card in sorted({device.card_uuid for device in devices}):
        for directory in area.directories:
            gate = f"{directory}/{lock_files.gate_name(card)}"
            for _ in range(_GATE_TRIES):
                if _try_lock(files, gate):
                    break
                time.sleep(_GATE_PAUSE_S)
    plan = lock_files.plan_locks(area, devices, share=False)
    return [path for path, _ in plan if not _try_lock(files, path)]


def _is_shared(area: LeaseArea, path: str, broken: set[tuple[str, int, int]]) -> bool:
    """Whether a lease that is none of the `broken` ones is on the card of this lock file."""
    name, judge = os.path.basename(path), records.Judge()
    return any(
        name in (lock_files.lock_name(device.card_uuid), lock_files.lock_name(device.uuid))
        and seen.key not in broken
        and judge.judge(seen).holds
        for seen in records.read_records(area)[0]
        for device in seen.record.devices
    )


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _write_audit(
    area: LeaseArea, judged: list[tuple[FoundRecord, RecordJudgement]], *, gone: bool, reason: str
) -> None:
    """Append one line to this account's own audit file: nobody can write or cut that of another."""
    record = judged[0][0].record
    facts = {
        "run_id": record.run_id,
        "owner": record.user,
        "owner_uid": record.uid,
        "devices": sorted({device.uuid for seen, _ in judged for device in seen.record.devices}),
        "gone": gone,
        "evidence": [judgement.why for _, judgement in judged],
        "still_running": sorted({pid for _, judgement in judged for pid in judgement.pids}),
        "reason": reason,
    }
    write_audit(area, "break_lease", facts)


def remove_void_records(area: LeaseArea) -> tuple[str, ...]:
    """Remove void records, dead tickets, left temporary files and lock files published for runs that are gone.

    Ours only; as root everybody's. Answers the paths that were removed.
    """
    judge = records.Judge()
    removed = [
        seen.path
        for seen in records.read_records(area)[0]
        if _is_ours(seen.path) and not judge.judge(seen).holds and _sweep_record(area, seen)
    ]
    line = (ticket.path for ticket in tickets.list_earlier(area, None))
    removed.extend(path for path in line if _is_ours(path) and tickets.is_dead(path) and _remove(path))
    left = list_left_temporaries(lease_area.list_names(area, "."), age_s=_TEMPORARY_AGE_S)
    removed.extend(path for path in left if _remove(path))
    removed.extend(_sweep_hand_written(area))
    return tuple(removed)


def _is_ours(path: str) -> bool:
    try:
        return os.geteuid() in (0, os.lstat(path).st_uid)
    except OSError:
        return False


def _sweep_record(area: LeaseArea, seen: FoundRecord) -> bool:
    files = lock_files.LockFiles()
    try:
        if not _lock_all(area, files, [seen]) or records.judge_record(seen).holds:
            return False
        note_left(area, seen)
        return _remove(seen.path)
    finally:
        files.close()


def _sweep_hand_written(area: LeaseArea) -> list[str]:
    """A record is written before its lock files are published, so without a record that holds they mean nothing."""
    try:
        names = os.listdir(area.hand_written)
    except OSError:
        return []
    judge = records.Judge()
    holding = {s.record.run_id for s in records.read_records(area)[0] if judge.judge(s).holds}
    removed = []
    for name in names:
        index = name.removeprefix("gpu_").removesuffix(".lock")
        # Anybody can make any number of names there; no box has so many cards.
        if not (index.isascii() and index.isdigit() and len(index) <= _LONGEST_INDEX):
            continue
        if not _is_ours(foreign_locks.lock_path(area.hand_written, int(index))):
            continue
        lock = foreign_locks.read_lock(area.hand_written, int(index))
        if lock is None or lock.run_id is None or lock.run_id in holding:
            continue
        if _remove(lock.path):
            removed.append(lock.path)
    return removed
