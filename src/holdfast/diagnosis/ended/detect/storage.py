"""Detectors of storage: bytes, inodes, quota, read-only or faulty, a broken checkpoint (D1 to D5). Pure.

The messages of libraries often do not name the cause ("iostream error" is a full disk), so what was written is joined
with what the disks said soon after the end. Space may be there again by then: a job's temporary files go with it.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.ended.evidence import FULL_BYTES, DiskChange, EndedEvidence
from holdfast.diagnosis.evidence import Detection, KernelEvent, KernelKind
from holdfast.diagnosis.logs.words.storage import DAMAGED
from holdfast.model.pattern import compile_later
from holdfast.model.units import format_bytes
from holdfast.model.verdict import Clue, Confidence, FailureClass

from .answers import find_words, no, skipped, unread, unread_log, weigh, yes

FULL, FAULT = FailureClass.DISK_FULL, FailureClass.STORAGE_FAULT
_QUOTA = compile_later(r"quota exceeded|Errno 122|EDQUOT", re.IGNORECASE)
_BROKEN = compile_later(r"iostream error|PytorchStreamWriter|unexpected pos \d+")
_PATH = compile_later(r"'(?P<quoted>/[^']+)'|(?<![\w/.:])(?P<plain>/[^\s'\":,;()\[\]]+)")
"""A file that a message names: OSError and coreutils quote it, others write it before or behind a colon."""
WRITTEN = ("run", "checkpoints", "work", "mirror", "disk")
"""Roles of paths that a job writes to."""


def judge_bytes(evidence: EndedEvidence) -> Detection:
    """D1: a disk that the job writes to had no bytes left."""
    full = [disk for disk in _written(evidence) if _is_full(disk)]
    return _judge_full("D1", evidence, full, "bytes")


def judge_inodes(evidence: EndedEvidence) -> Detection:
    """D2: no inodes were left, whatever `df` says of bytes."""
    full = [disk for disk in _written(evidence) if disk.free_inodes == 0 and not disk.read_only]
    return _judge_full("D2", evidence, full, "inodes")


def _judge_full(detector: str, evidence: EndedEvidence, full: list[DiskChange], what: str) -> Detection:
    if not evidence.ran or evidence.code == 0:
        return skipped(detector, FULL)
    words = find_words(evidence, FULL)
    gotchas = ("U6",) if what == "bytes" else ("U7",)
    if full:
        clues = tuple(Clue(f"{disk.path} has {_describe_free(disk, what)} left", disk.path) for disk in full[:3])
        said = words.evidence_for if words is not None else ()
        # Without words a full disk is only a sign: its own message may have been what did not fit.
        sure = weigh(words, proven=True) if words is not None else Confidence.POSSIBLE
        return yes(detector, FULL, sure, *said, *clues, gotchas=gotchas, facts={"path": full[0].path})
    if words is not None and what == "bytes":
        return _judge_said(evidence, words)
    unknown = [
        Clue(f"{disk.path}: {disk.free_bytes.unread}", disk.path) for disk in _written(evidence) if _is_unread(disk)
    ]
    if not evidence.disks:
        unknown.append(Clue("the run's disks were not measured"))
    if unknown:
        return unread(detector, FULL, *unknown)
    return (
        no(detector, FULL, Clue(f"the run's disks have {what} left", "statvfs"))
        if what == "bytes"
        else no(detector, FULL)
    )


def _judge_said(evidence: EndedEvidence, words: Detection) -> Detection:
    """It wrote of a full disk, and now there is room: a quota, another disk, or files that went with the job."""
    against = [
        Clue(f"{disk.path} has {_describe_free(disk, 'bytes')} free now", disk.path)
        for disk in _written(evidence)[:1]
        if not _is_unread(disk)
    ]
    unknown = (Clue("quotas, and files that went with the job, are not seen by a look at the disk now", "statvfs"),)
    return yes(
        "D1",
        FULL,
        words.confidence,
        *words.evidence_for,
        against=tuple(against),
        unknown=unknown,
        gotchas=("U6",),
        facts={**words.facts, "path": _name_full(words.facts)},
    )


def _name_full(facts: dict[str, str]) -> str:
    """The file system that a line about a full disk means: that of the file that it names."""
    found = _PATH.search(facts.get("line", ""))
    path = facts.get("path") or (found and (found["quoted"] or found["plain"]))
    return f"the file system of {path} (df, df -i)" if path else "the disk that it wrote to: those of the run have room"


def judge_quota(evidence: EndedEvidence) -> Detection:
    """D3: a quota was reached; the disk itself may have plenty of space."""
    words = find_words(evidence, FULL)
    line = _find_line(evidence, _QUOTA)
    if words is not None and line:
        return yes("D3", FULL, words.confidence, Clue(line, "output.log"), facts={"path": "your quota (quota -s)"})
    return _no_words("D3", FULL, evidence)


def judge_fault(evidence: EndedEvidence) -> Detection:
    """D4: a disk became read-only, or answered with input/output errors or stale handles.

    The kernel tells of every device of the box: only those that carry a file system of the run's count.
    """
    words = find_words(evidence, FAULT)
    turned = [disk for disk in evidence.disks if disk.read_only and disk.was_read_only is False]
    told = evidence.find_kernel_events(KernelKind.READ_ONLY, KernelKind.IO_ERROR)
    events = [event for event in told if _find_disk(evidence, event) is not None]
    clues = list(words.evidence_for) if words is not None else []
    clues += [Clue(f"{disk.path} was writable at launch and is read-only now", "mountinfo") for disk in turned]
    if words is not None or turned:
        clues += [Clue(event.text[:300], "kernel log") for event in events[:3]]
        facts = {"path": turned[0].path} if turned else _name_path(evidence, events)
        if words is not None and not turned:
            # Where the kernel speaks of the disk, what cannot be read is more than one file's fault.
            on_disk = bool(events) and words.facts.get("remedy") == DAMAGED
            facts = {**facts, **{key: text for key, text in words.facts.items() if key != "remedy" or not on_disk}}
        return yes("D4", FAULT, weigh(words, proven=bool(turned or events)), *clues, facts=facts)
    if events:
        seen = (Clue(event.text[:300], "kernel log") for event in events[:3])
        return yes("D4", FAULT, Confidence.POSSIBLE, *seen, facts=_name_path(evidence, events))
    if told and any(disk.devices is None for disk in evidence.disks):
        names = ", ".join(sorted({event.values.get("device", "?") for event in told}))
        why = f"the kernel's log has errors of {names[:100]}; whether the run uses that cannot be told here"
        return unread("D4", FAULT, Clue(why, "kernel log"))
    if evidence.kernel_unread:
        return unread("D4", FAULT, Clue(f"kernel log: {evidence.kernel_unread}", "kernel log"))
    return _no_words("D4", FAULT, evidence)


def _find_disk(evidence: EndedEvidence, event: KernelEvent) -> DiskChange | None:
    """The first of the run's disks that lies on the device of a kernel event."""
    name = event.values.get("device", "").rpartition("/")[2]
    return next((disk for disk in evidence.disks if disk.devices is not None and name in disk.devices), None)


def _name_path(evidence: EndedEvidence, events: list[KernelEvent]) -> dict[str, str]:
    disks = [disk for event in events if (disk := _find_disk(evidence, event)) is not None]
    return {"path": disks[0].path} if disks else {}


def judge_checkpoint(evidence: EndedEvidence) -> Detection:
    """D5: writing a checkpoint broke without a stated reason: storage, not the code. Words of a fault are a reason."""
    line = _find_line(evidence, _BROKEN)
    if not line or find_words(evidence, FAULT) is not None:
        return _no_words("D5", FULL, evidence)
    full = [disk for disk in _written(evidence) if _is_full(disk) or disk.free_inodes == 0]
    clues = (Clue(line, "output.log"), *(Clue(f"{disk.path} is full", disk.path) for disk in full[:1]))
    facts = {"path": full[0].path} if full else {}
    return yes("D5", FULL, Confidence.CERTAIN if full else Confidence.LIKELY, *clues, gotchas=("U6",), facts=facts)


def _no_words(detector: str, kind: FailureClass, evidence: EndedEvidence) -> Detection:
    return no(detector, kind) if evidence.log.known else unread(detector, kind, *unread_log(evidence))


def _written(evidence: EndedEvidence) -> list[DiskChange]:
    return [disk for disk in evidence.disks if disk.role.rstrip("0123456789") in WRITTEN]


def _is_full(disk: DiskChange) -> bool:
    free = disk.free_bytes.value
    return free is not None and free < FULL_BYTES and not disk.read_only


def _is_unread(disk: DiskChange) -> bool:
    return not disk.free_bytes.known


def _describe_free(disk: DiskChange, what: str) -> str:
    return f"{disk.free_inodes} inodes" if what == "inodes" else format_bytes(disk.free_bytes.value or 0)


def _find_line(evidence: EndedEvidence, pattern: re.Pattern[str]) -> str:
    matches = () if evidence.log.value is None else evidence.log.value.matches
    lines = [*(match.line for match in matches), evidence.exception]
    return next((line.strip()[:300] for line in lines if pattern.search(line)), "")
