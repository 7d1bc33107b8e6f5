"""What a Xid means and what to do about it: the table as data, and the judgement of one card's events.

The table is ``xids.tsv`` beside this file; a mapping of the administrator's (code to severity) goes before it. The
rules of the judgement: only trusted lines; only this card; only this boot (the log's) and newer than asked; 45 and
everything else that is only watched decides nothing; an error of the job's kind speaks against the card only when it
comes back; a code that is not in the table is watched and said to be unknown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from holdfast.diagnosis.evidence import Answer, Detection, KernelEvent, KernelKind
from holdfast.model.gpu import XidEvent, shorten_pci
from holdfast.model.record import record, replace
from holdfast.model.verdict import Clue, Confidence, FailureClass

from .parse import NO_TIME

DETECTOR = "G1"
LOST = "G2"
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "xids.tsv")
REPEAT_WINDOW_S = 24 * 3600.0
HEARD_WITHIN_S = 60.0
"""NVML hands a Xid out when it is asked, so its time is later than the log's: up to this much is the same event."""
CLOCKS_DIFFER_S = 5.0
"""The log's clock and CLOCK_MONOTONIC drift apart by this much at most in practice."""
NVLINK5 = range(144, 151)
RECOVERY_CHANGED = 154
CONTAINED = 94
"""A memory error that ended one program only: the card's, though starting again is all there is to do."""
SHOWN = 3
"""Lines of one code that are repeated as evidence: the first and the last ones."""


class Severity(str, Enum):
    """What a code asks for: look at the job, note it, set the card aside, leave the box, or read the line."""

    APP = "app"
    WATCH = "watch"
    CARD = "card"
    HOST = "host"
    ASK = "ask"


@record
class Xid:
    """One code. `repeat` separate events on one card in 24 h make the card suspect (0: never).

    Events less than `burst_s` seconds apart are one. `vendor`, `gpud` and `kubernetes` are what others do about it.
    """

    code: int
    mnemonic: str
    severity: Severity
    repeat: int
    burst_s: float
    meaning: str
    action: str
    vendor: str = ""
    gpud: str = ""
    kubernetes: str = ""
    source: str = ""
    known: bool = True


def read_table() -> dict[int, Xid]:
    """The whole table, code to entry."""
    with open(TABLE, encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    table: dict[int, Xid] = {}
    for row in lines[1:]:
        code, mnemonic, severity, repeat, burst_s, meaning, action, vendor, gpud, kubernetes, source = row
        table[int(code)] = Xid(
            code=int(code),
            mnemonic=mnemonic,
            severity=Severity(severity),
            repeat=int(repeat),
            burst_s=float(burst_s),
            meaning=meaning,
            action=action,
            vendor=vendor,
            gpud=gpud,
            kubernetes=kubernetes,
            source=source,
        )
    return table


def find_xid(code: int, overrides: Mapping[int, str] | None = None, *, table: Mapping[int, Xid] | None = None) -> Xid:
    """What a code means; one that is not in the table is watched and `known` is False.

    Args:
        code: the number in the line.
        overrides: the administrator's severities by code, in words.
        table: a table that was read already.

    Raises:
        ValueError: an override is none of the severities.
    """
    entry = (read_table() if table is None else table).get(code) or Xid(
        code=code,
        mnemonic="",
        severity=Severity.WATCH,
        repeat=0,
        burst_s=60.0,
        meaning="unknown code: not in the table of this version",
        action="Look it up at docs.nvidia.com/deploy/xid-errors.",
        source="not in the table",
        known=False,
    )
    if overrides and code in overrides:
        return replace(entry, severity=_read_severity(code, overrides[code]), source="the rules file")
    return entry


def _read_severity(code: int, word: str) -> Severity:
    try:
        return Severity(word)
    except ValueError:
        known = ", ".join(member.value for member in Severity)
        raise ValueError(f"Xid {code}: {word!r} is no severity (known: {known})") from None


def merge_events(kernel: Sequence[KernelEvent], heard: Iterable[XidEvent]) -> tuple[KernelEvent, ...]:
    """The log's events and those that NVML handed out, each event once.

    NVML does not report every code, and the log may not be readable, so neither is enough alone. One line of the log
    stands for one report of the same card and code; two reports of one code stay two.
    """
    free = [event for event in kernel if event.kind is KernelKind.XID and event.trusted]
    merged = list(kernel)
    for report in heard:
        pci = shorten_pci(report.pci_bus_id or "")
        same = next((event for event in free if _is_same(event, report, pci)), None)
        if same is not None:
            free.remove(same)
            continue
        values = {"code": str(report.code), "pci": pci, "uuid": report.uuid, "heard": "nvml"}
        if report.gpu_instance is not None:
            values["gpu_instance"] = str(report.gpu_instance)
        text = f"the driver reported Xid {report.code} of the card at {pci or report.uuid}"
        merged.append(KernelEvent(KernelKind.XID, report.seconds, text, values=values))
    return tuple(sorted(merged, key=lambda event: event.seconds))


def _is_same(event: KernelEvent, report: XidEvent, pci: str) -> bool:
    if event.values.get("code") != str(report.code) or event.values.get("pci") != pci:
        return False
    return event.seconds == NO_TIME or -HEARD_WITHIN_S <= event.seconds - report.seconds <= CLOCKS_DIFFER_S


def judge_xids(
    events: Sequence[KernelEvent],
    *,
    pci: str | Iterable[str] | None,
    since_seconds: float = 0.0,
    overrides: Mapping[int, str] | None = None,
) -> tuple[Detection, ...]:
    """What the events say of one card (or of some): a detection for each code, the gravest first; none when silent.

    YES for `HARDWARE` speaks against the card, YES for `BUG` points at the job, NO only notes what was seen, UNKNOWN is
    a line without a time, one whose weight could not be told, or an error of the job's kind that came back with other
    processes: the same bug started again looks like that, too. `facts` has `card`, `code`, `severity`, `count`,
    `action`.

    Args:
        events: of this boot's log, and of `merge_events`.
        pci: the card's address, or several; None for all cards of the box.
        since_seconds: only newer events count, on the log's clock (about CLOCK_MONOTONIC); what is older still counts
            as a repetition.
        overrides: as `find_xid`.
    """
    wanted = None if pci is None else {shorten_pci(one) for one in ([pci] if isinstance(pci, str) else pci)} - {""}
    table = read_table()
    groups: dict[tuple[str, int], list[KernelEvent]] = {}
    lost: dict[str, list[KernelEvent]] = {}
    for event in events:
        card = event.values.get("pci", "")
        if wanted is not None and card not in wanted:
            continue
        code = event.values.get("code", "")
        if event.kind is KernelKind.XID and code.isdigit():
            groups.setdefault((card, int(code)), []).append(event)
        elif event.kind is KernelKind.CARD_LOST:
            lost.setdefault(card, []).append(event)
    found = [one for card, lines in lost.items() for one in _judge_lost(card, lines, since_seconds)]
    for (card, number), lines in groups.items():
        found += _judge_code(find_xid(number, overrides, table=table), card, lines, since_seconds)
    answers, sure = [Answer.YES, Answer.UNKNOWN, Answer.NO], [*reversed(Confidence)]
    found.sort(
        key=lambda one: (answers.index(one.answer), one.kind is not FailureClass.HARDWARE, sure.index(one.confidence))
    )
    return tuple(found)


def _is_new(event: KernelEvent, since: float) -> bool:
    return event.seconds == NO_TIME or event.seconds >= since


def _clues(events: Sequence[KernelEvent]) -> tuple[Clue, ...]:
    shown = [*events[:1], *events[1:][-(SHOWN - 1) :]]
    return tuple(Clue(event.text, _source(event)) for event in shown)


def _source(event: KernelEvent) -> str:
    where = "NVML" if event.values.get("heard") == "nvml" else "kernel log"
    return where if event.seconds == NO_TIME else f"{where}, {event.seconds:.0f} s after boot"


def _facts(card: str, code: str, severity: Severity, count: int, action: str) -> dict[str, str]:
    return {"card": card, "code": code, "severity": severity.value, "count": str(count), "action": action}


def _judge_lost(card: str, events: Sequence[KernelEvent], since: float) -> Iterator[Detection]:
    """The card fell off the bus: once is enough, and a forged line is not."""
    new = [event for event in events if _is_new(event, since)]
    if not new:
        return
    real = [event for event in new if event.trusted]
    facts = _facts(card, "", Severity.HOST, len(real), find_xid(79).action)
    if not real:
        yield _forged(LOST, new, facts)
        return
    yield Detection(LOST, FailureClass.HARDWARE, Answer.YES, Confidence.CERTAIN, _clues(real), facts=facts)


def _forged(detector: str, events: Sequence[KernelEvent], facts: dict[str, str]) -> Detection:
    said = Clue(f"written by a process, not by the kernel: {events[0].text}", "kernel log, facility other than 0")
    return Detection(detector, FailureClass.HARDWARE, Answer.NO, evidence_against=(said,), facts=facts)


def _judge_code(xid: Xid, card: str, events: Sequence[KernelEvent], since: float) -> Iterator[Detection]:
    new = [event for event in events if _is_new(event, since)]
    if not new:
        return
    real = [event for event in new if event.trusted]
    facts = _facts(card, str(xid.code), xid.severity, len(real), xid.action)
    if not real:
        yield _forged(DETECTOR, new, facts)
        return
    hardware, meaning = FailureClass.HARDWARE, Clue(f"Xid {xid.code}: {xid.meaning}", xid.source)
    clues = (*_clues(real), meaning)
    if all(event.seconds == NO_TIME for event in real) and since > 0:
        undated = Clue(f"when this was written is not told: {real[0].text}", "kernel log")
        yield Detection(DETECTOR, hardware, Answer.UNKNOWN, unknown=(undated, meaning), facts=facts)
        return
    severity, unsure = _read_severity_of_lines(xid, real)
    facts["severity"] = severity.value
    if severity in (Severity.CARD, Severity.HOST):
        yield Detection(DETECTOR, hardware, Answer.YES, Confidence.CERTAIN, clues, facts=facts)
    elif unsure:
        yield Detection(DETECTOR, hardware, Answer.UNKNOWN, unknown=clues, facts=facts)
    elif severity is Severity.WATCH:
        yield Detection(DETECTOR, hardware, Answer.NO, evidence_against=clues, facts=facts)
    elif xid.code == CONTAINED:
        yield Detection(DETECTOR, hardware, Answer.YES, Confidence.LIKELY, clues, facts=facts)
    else:
        yield Detection(DETECTOR, FailureClass.BUG, Answer.YES, Confidence.LIKELY, clues, facts=facts)
        times = count_separate(events, xid.burst_s, until=real[-1].seconds)
        if xid.repeat and times >= xid.repeat:
            again = Clue(f"{times} separate events of Xid {xid.code} on this card within 24 h", "kernel log")
            yield Detection(DETECTOR, hardware, Answer.UNKNOWN, unknown=(again, *clues), facts=facts)


def _read_severity_of_lines(xid: Xid, events: Sequence[KernelEvent]) -> tuple[Severity, bool]:
    """The severity that counts, and whether the lines that had to say it did not.

    NVLink 5 errors carry the word Fatal or Nonfatal; 154 names the action that the driver wants.
    """
    if xid.severity is not Severity.ASK:
        return xid.severity, False
    text = " ".join(event.text for event in events)
    if xid.code in NVLINK5:
        words = text.lower()
        if "nonfatal" in words and "fatal" not in words.replace("nonfatal", ""):
            return Severity.WATCH, False
        return (Severity.CARD, False) if "fatal" in words else (Severity.ASK, True)
    if xid.code == RECOVERY_CHANGED:
        # "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)": what it is now counts.
        now = events[-1].text.rpartition(" to ")[2].lower()
        if "none" in now:
            return Severity.WATCH, False
        if "reboot" in now:
            return Severity.HOST, False
        return (Severity.CARD, False) if "reset" in now or "drain" in now else (Severity.ASK, True)
    return Severity.ASK, True


def count_separate(events: Sequence[KernelEvent], burst_s: float, *, until: float) -> int:
    """How many events apart from each other a card had in the 24 h up to `until`.

    One failure writes many lines, and one process that goes on after an error writes them for hours: lines close
    together, and lines of one process, are one.
    """
    count, last = 0, -burst_s - 1.0
    pids: set[int] = set()
    for event in sorted(events, key=lambda event: event.seconds):
        if not event.trusted or not until - REPEAT_WINDOW_S <= event.seconds <= until or event.seconds == NO_TIME:
            continue
        if event.seconds - last > burst_s and event.pid not in pids:
            count += 1
        last = event.seconds
        if event.pid is not None:
            pids.add(event.pid)
    return count
