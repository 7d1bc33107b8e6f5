"""The launch held against the end: counters, disks, cards, the kernel log's window. Plain values in, readings out.

The values come from files of the run, so none is believed to have its form. What is missing on either side is unread,
with the side named; a counter that went back was started anew.
"""

from __future__ import annotations

from typing import Any

from holdfast.diagnosis.evidence import NOT_LOOKED, Reading
from holdfast.model.wire import as_number, as_whole

from .evidence import DiskChange, LevelChange
from .look import read_own_group

Facts = dict[str, Any]
KERNEL_SLACK_S = 60.0
"""The log's clock is not corrected as the wall clock is; over weeks they part by seconds (printk: local_clock)."""


def as_object(value: object) -> Facts:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_objects(value: object) -> list[Facts]:
    """The objects of a list; nothing of what is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


def as_cards(value: object) -> list[Facts]:
    """The cards of a list that have a UUID, their faults as text."""
    found = []
    for card in as_objects(value):
        faults = card.get("faults")
        if isinstance(card.get("uuid"), str):
            found.append({**card, "faults": [str(fault) for fault in faults] if isinstance(faults, list) else []})
    return found


def _missing(aftermath: Facts, baseline: Facts, what: str) -> str:
    if "elsewhere" in aftermath:
        return str(aftermath["elsewhere"])
    if not baseline:
        return "nothing was written down at launch"
    for side, when in ((baseline, "at launch"), (aftermath, "at the end")):
        reason = as_object(side.get("unread")).get(what)
        if reason:
            return f"{reason} ({when})"
    return "it was not read"


def compare_field(baseline: Facts, aftermath: Facts, name: str) -> Reading[bool]:
    """Whether a value differs between launch and end."""
    before, after = baseline.get(name), aftermath.get(name)
    if before is None or after is None:
        return Reading(unread=_missing(aftermath, baseline, name))
    return Reading(before != after)


def compare_boots(manifest: Facts, baseline: Facts, aftermath: Facts) -> Reading[bool]:
    """Whether the box was restarted between launch and end."""
    before, after = baseline.get("boot_id") or manifest.get("boot_id"), aftermath.get("boot_id")
    if not before or not after:
        return Reading(unread=_missing(aftermath, baseline, "boot_id"))
    return Reading(before != after)


def subtract_counter(baseline: Facts, aftermath: Facts, name: str) -> Reading[int]:
    """By how much a counter of the box rose."""
    before, after = as_whole(baseline.get(name)), as_whole(aftermath.get(name))
    if before is None or after is None:
        return Reading(unread=_missing(aftermath, baseline, name))
    if after < before or compare_boots({}, baseline, aftermath).value:
        return Reading(unread="the box was started again since: it counts anew")
    return Reading(after - before)


def find_own_kills(usage: Facts, cgroup: Facts, sample: Facts) -> Reading[int]:
    """OOM kills in the run's own group: as read before it was removed, else as it stands, else as last sampled."""
    kills = as_whole(usage.get("oom_kills"))
    if kills is None:
        kills = read_own_group(cgroup)
    if kills is None and (as_whole(sample.get("oom_kills")) or 0) > 0:
        kills = as_whole(sample.get("oom_kills"))
    if kills is not None:
        return Reading(kills)
    if not cgroup:
        return Reading(unread="the run had no control group of its own that counts")
    return Reading(unread="its control group is gone and nobody read its counters before")


def compare_levels(baseline: Facts, aftermath: Facts, cgroup: Facts) -> tuple[LevelChange, ...]:
    """By how much the OOM counters of the groups around the run's own rose."""
    v1 = as_object(cgroup.get("v1"))
    own = {path for path in (cgroup.get("unified"), v1.get("memory")) if isinstance(path, str)}
    now = {str(level.get("path")): level for level in as_objects(aftermath.get("memory_levels"))}
    found = []
    for level in as_objects(baseline.get("memory_levels")):
        path = str(level.get("path"))
        if path in own:
            continue  # its counter goes with it: `own_kills`
        kills = _subtract_level(level, now.get(path), aftermath, baseline)
        found.append(LevelChange(path, kills, as_whole(level.get("limit_bytes"))))
    return tuple(found)


def _subtract_level(before: Facts, after: Facts | None, aftermath: Facts, baseline: Facts) -> Reading[int]:
    first, last = as_whole(before.get("oom_kills")), as_whole((after or {}).get("oom_kills"))
    if first is None or last is None or last < first:
        return Reading(unread=_missing(aftermath, baseline, "memory_levels"))
    if compare_boots({}, baseline, aftermath).value:
        return Reading(unread="the box was started again since")
    return Reading(last - first)


def compare_disks(baseline: Facts, aftermath: Facts) -> tuple[DiskChange, ...]:
    """The run's disks at the end, with what they were at launch."""
    before = {(str(disk.get("role")), str(disk.get("path"))): disk for disk in as_objects(baseline.get("disks"))}
    found = []
    for disk in as_objects(aftermath.get("disks")):
        free = as_whole(disk.get("free_bytes"))
        was = as_object(before.get((str(disk.get("role")), str(disk.get("path")))))
        found.append(
            DiskChange(
                role=str(disk.get("role")),
                path=str(disk.get("path")),
                free_bytes=Reading(free) if free is not None else Reading(unread=str(disk.get("unread") or NOT_LOOKED)),
                free_inodes=as_whole(disk.get("free_inodes")),
                total_bytes=as_whole(disk.get("total_bytes")),
                read_only=disk.get("read_only") is True,
                was_read_only=was.get("read_only") if isinstance(was.get("read_only"), bool) else None,
                devices=_join_devices(was.get("devices"), disk.get("devices")),
            )
        )
    return tuple(found)


def _join_devices(*looks: object) -> tuple[str, ...] | None:
    """The devices behind a path at launch and at the end, which need not be the same; None: neither look could tell."""
    known = [look for look in looks if isinstance(look, list)]
    return tuple(sorted({str(name) for look in known for name in look})) if known else None


def kernel_begin(baseline: Facts, aftermath: Facts) -> float | None:
    """From when an event is new, in seconds of the log's clock; None when that is not known."""
    since = as_number(baseline.get("monotonic_s"))
    # Of another boot, the whole log is newer.
    return None if since is None or compare_boots({}, baseline, aftermath).value else since - KERNEL_SLACK_S


def kernel_end(aftermath: Facts, ended_s: float | None) -> float | None:
    """Until when an event of the kernel's log can have to do with the end."""
    now_s, wall_s = as_number(aftermath.get("monotonic_s")), as_number(aftermath.get("epoch_s"))
    if now_s is None or wall_s is None or ended_s is None:
        return None
    return now_s - (wall_s - ended_s) + KERNEL_SLACK_S


def decode_killers(facts: object) -> Reading[tuple[str, ...]]:
    """What memory daemons wrote, as a look has kept it."""
    if not isinstance(facts, dict):
        return Reading(unread=NOT_LOOKED)
    if facts.get("unread"):
        return Reading(unread=str(facts["unread"]))
    lines = facts.get("lines")
    return Reading(tuple(map(str, lines)) if isinstance(lines, list) else ())


def find_cards(final: Facts, manifest: Facts) -> tuple[Facts, ...]:
    """The run's cards at the end.

    A card that the driver can no longer name has no UUID; it is found by its number. One that is missing from a whole
    reading of others is a lost one too (GPU_IS_LOST and an absent card are both seen after a fall off the bus).
    """
    now = as_cards(final.get("cards"))
    by_uuid = {card.get("uuid"): card for card in now}
    known = {card.get("uuid") for card in as_cards(manifest.get("cards"))}
    found = []
    for card in as_cards(manifest.get("cards")):
        uuid, index = card.get("uuid"), card.get("index")
        nameless = [other for other in now if other.get("index") == index and other.get("uuid") not in known]
        if uuid in by_uuid:
            found.append(by_uuid[uuid])
        elif nameless and nameless[0].get("faults"):
            found.append({**nameless[0], "uuid": uuid})
        elif now and final.get("complete") is True:
            found.append({"uuid": uuid, "index": index, "faults": ["lost: the driver lists other cards, not this one"]})
    return tuple(found)


def find_unread_cards(final: Facts, manifest: Facts) -> str:
    """Why the cards could not be read at the end; empty when they were, or there were none."""
    wanted = len(as_cards(manifest.get("cards")))
    if len(find_cards(final, manifest)) >= wanted:
        return ""
    reason = final.get("reason")
    return f"the cards were not read at the end{f': {reason}' if reason else ''}"
