"""Detectors of memory: the kernel's OOM killer, daemons before it, /dev/shm, the card's (V1 to V6 but V4). Pure.

Counters decide, never the exit code: 137 or SIGKILL without a counter that moved is a kill from outside (FAIL-14). A
group's own counter counts kills of the box's OOM killer too, so a zero there speaks against both.
"""

from __future__ import annotations

import math
import re

from holdfast.diagnosis.ended.baseline import SHM
from holdfast.diagnosis.ended.evidence import FULL_BYTES, EndedEvidence
from holdfast.diagnosis.evidence import Detection, KernelEvent, KernelKind, LineRole
from holdfast.diagnosis.remedies import FEWER, LESS
from holdfast.model.pattern import compile_later
from holdfast.model.units import format_bytes, parse_bytes
from holdfast.model.verdict import Clue, Confidence, FailureClass

from .answers import find_words, no, skipped, unread, unread_log, weigh, yes
from .signals import describe_signal

KILL, TERM, BUS = 9, 15, 7
OOM = FailureClass.OUT_OF_MEMORY
ROOM = 1.2
"""What to ask for, by what was in use at the peak (SLM-10)."""
AT_THE_LIMIT = 0.95
"""A peak of this part of the limit, or more, was cut off by it: how much is needed is not known."""
_HELD = compile_later(r"Process (\d+) has ([\d.]+ \w+) memory in use")
"""Source: torch, c10/cuda/CUDACachingAllocator.cpp."""
_OF_WORKERS = compile_later(
    r"DataLoader worker|BrokenProcessPool|WorkerLostError|SIGKILL|Signal 9|signal 9|died with|-9\b|[Kk]illed|"
    r"exited unexpectedly|MemoryError|bad_alloc|Cannot allocate|EOFError|BrokenPipe|Connection(?:Reset|Refused)"
)
"""Exceptions that a killed child causes in its parent."""
_LOADS = compile_later(r"(?i)\b(?:data ?loaders?|num_workers|workers?)\b")


def judge_group_oom(evidence: EndedEvidence) -> Detection:
    """V1: the kernel killed for lack of memory within the run's own group, or a group around it."""
    if not evidence.ran:
        return skipped("V1", OOM)
    named = _named_events(evidence, memory_group=True)
    if named:
        clues = [_describe_event(event, evidence.run_id) for event in named]
        return _say_oom("V1", _weigh_named(named, evidence), evidence, *clues)
    own = evidence.own_kills
    if own.value:
        clue = Clue("the OOM counter of its control group rose: the kernel killed within it", "memory.events")
        return _say_oom("V1", _weigh_own(evidence), evidence, clue)
    if own.known:
        return no("V1", OOM, Clue("the OOM counter of its control group did not move", "memory.events"))
    if evidence.host_kills.known and not evidence.host_kills.value and not evidence.late:
        return no("V1", OOM, Clue("the kernel killed nothing on the whole box for lack of memory", "/proc/vmstat"))
    rose = [level for level in evidence.levels if level.kills.value]
    if rose and evidence.signal == KILL and not evidence.late:
        clue = Clue(f"the OOM counter of {rose[0].path} rose; others may share that group", rose[0].path)
        return _say_oom("V1", Confidence.POSSIBLE, evidence, clue)
    return unread("V1", OOM, Clue(f"OOM counter of its control group: {own.unread}", "memory.events"))


def _weigh_named(named: list[KernelEvent], evidence: EndedEvidence) -> Confidence:
    """Certain when the job itself was the victim; a worker's death is one that a job can survive."""
    if any(event.pid in evidence.pids for event in named):
        return Confidence.CERTAIN
    weighed = _weigh_own(evidence)
    if weighed is not Confidence.POSSIBLE and not evidence.survived_kills:
        return Confidence.CERTAIN
    return weighed


def _weigh_own(evidence: EndedEvidence) -> Confidence:
    if evidence.ended.request is not None or evidence.code == 0:
        return Confidence.POSSIBLE
    if evidence.signal == KILL:
        return Confidence.POSSIBLE if evidence.survived_kills else Confidence.CERTAIN
    matches = () if evidence.log.value is None else evidence.log.value.matches
    told = [match for match in matches if match.role is not LineRole.ROOT and _OF_WORKERS.search(match.line)]
    if told or find_words(evidence, OOM) is not None:
        return Confidence.CERTAIN
    foreign = evidence.exception and not _OF_WORKERS.search(evidence.exception)
    return Confidence.POSSIBLE if foreign else Confidence.LIKELY


def _say_oom(detector: str, confidence: Confidence, evidence: EndedEvidence, *clues: Clue) -> Detection:
    found = list(clues)
    if (peak := evidence.peak_bytes) is not None:
        of = "" if evidence.limit_bytes is None else f" of {format_bytes(evidence.limit_bytes)}"
        found.append(Clue(f"memory at its peak: {format_bytes(peak)}{of}", "memory.peak"))
    facts = {"less": describe_less(evidence), "more": describe_more(evidence)}
    unknown = (
        () if not evidence.kernel_unread else (Clue(f"who was killed, from the kernel log: {evidence.kernel_unread}"),)
    )
    return yes(detector, OOM, confidence, *found, unknown=unknown, gotchas=("U9",), facts=facts)


def describe_less(evidence: EndedEvidence) -> str:
    """How to need less: with fewer workers first only where its output speaks of any."""
    log = evidence.log.value
    texts = (evidence.exception, *(() if log is None else (log.tail, log.traceback)))
    return FEWER if any(map(_LOADS.search, texts)) else LESS


def describe_more(evidence: EndedEvidence) -> str:
    """Where more memory comes from: a higher limit, where the run has one of its own, else another place."""
    limit, peak = evidence.limit_bytes, evidence.peak_bytes
    restart = f"holdfast restart {evidence.run_id}".rstrip()
    seen = (
        ""
        if peak is None
        else f"{format_bytes(int(peak * ROOM))} is a fifth more than was seen in use, and what lasts "
    )
    seen += "" if peak is None else "a moment is not seen"
    if limit is None:
        more = "run it where more memory is free: no limit of its own was met"
        more += (f" ({seen})" if seen else "") + f", so what ran out is the box's, or its container's: {restart}"
    else:
        told = [f"now {format_bytes(limit)}"]
        if peak is not None and peak >= limit * AT_THE_LIMIT:
            told.append("all of it was in use, so how much is needed is not known")
        elif seen:
            told.append(seen)
        size = format_bytes(max(2 * limit, int((peak or 0) * ROOM)))
        told.append(f"try {size}")
        more = f"raise limits.memory ({'; '.join(told)}): {restart} --limit-memory {size.replace(' ', '')}"
    return more


def explain_uncounted(evidence: EndedEvidence) -> dict[str, str]:
    """What to do about a job that says it got no memory while no counter moved: one request was too large.

    Where its peak is at its limit, that explains it.
    """
    limit, peak = evidence.limit_bytes, evidence.peak_bytes
    if limit is not None and (peak is None or peak >= limit * AT_THE_LIMIT):
        return {"more": describe_more(evidence)}
    why = "no memory limit is set" if limit is None else f"its limit of {format_bytes(limit)} was not reached"
    return {
        "less": f"see how much it asks for at the line that failed, and whether that is meant ({why}, and nothing was "
        "killed for memory: the system refused one request as a whole)",
        "more": f"run it where more memory is free: holdfast restart {evidence.run_id}".rstrip(),
    }


def saw_no_kill(evidence: EndedEvidence) -> bool:
    """Whether a counter that a kill for lack of memory would have moved was read, and did not move."""
    if evidence.own_kills.known:
        return not evidence.own_kills.value
    return evidence.host_kills.known and not evidence.host_kills.value and not evidence.late


def explain_worker(evidence: EndedEvidence) -> dict[str, str]:
    """What to do about a worker that was gone while no counter moved: its pool says neither how nor why."""
    limit, peak = evidence.limit_bytes, evidence.peak_bytes
    if limit is not None and (peak is None or peak >= limit * AT_THE_LIMIT):
        return {"more": describe_more(evidence)}
    return {
        "less": "see what the worker itself said before its last line: the kernel killed nothing of it for memory, "
        "so it crashed, left by itself (`os._exit`), or somebody or its own pool (dask's nanny, by a limit of its own) "
        "ended it; if it was for memory, use fewer workers, share their data (memory-mapped files)",
        "more": f"run it where more memory is free: holdfast restart {evidence.run_id}".rstrip(),
    }


def _named_events(evidence: EndedEvidence, *, memory_group: bool) -> list[KernelEvent]:
    """OOM kills of ours in the kernel log: those by a group's limit, or those of the whole box."""
    events = evidence.find_kernel_events(KernelKind.OOM_KILL)
    return [
        event
        for event in events
        if evidence.is_ours(event) and (event.values.get("constraint") == "CONSTRAINT_MEMCG") is memory_group
    ]


def _describe_event(event: KernelEvent, run_id: str) -> Clue:
    where = event.values.get("oom_memcg")
    whose = "the run's own control group" if where and f"/{run_id}." in where else where
    limit = f" by the limit of {whose}" if whose else ""
    return Clue(
        f"the kernel killed {event.comm or event.values.get('task', '?')} (pid {event.pid}){limit}", "kernel log"
    )


def judge_host_oom(evidence: EndedEvidence) -> Detection:
    """V2: the whole box ran out of memory and the kernel took this run."""
    if not evidence.ran:
        return skipped("V2", OOM)
    named = _named_events(evidence, memory_group=False)
    if named:
        return _say_oom(
            "V2", _weigh_named(named, evidence), evidence, *(_describe_event(event, evidence.run_id) for event in named)
        )
    host = evidence.host_kills
    if evidence.own_kills.known and not evidence.own_kills.value:
        others = "; it did kill others on this box" if host.value else ""
        return no("V2", OOM, Clue(f"the kernel's OOM killer took nothing of this run{others}", "memory.events"))
    if host.known and not host.value and not evidence.late:
        return no("V2", OOM, Clue("the box's OOM counter did not move", "/proc/vmstat"))
    unknown = [] if host.known else [Clue(f"OOM counter of the box: {host.unread}", "/proc/vmstat")]
    if evidence.kernel_unread:
        unknown.append(Clue(f"kernel log: {evidence.kernel_unread}", "kernel log"))
    if host.value and not evidence.own_kills.known and evidence.signal == KILL and not evidence.late:
        clue = Clue("the box's OOM counter rose while it lived, and SIGKILL ended it", "/proc/vmstat")
        return yes("V2", OOM, Confidence.POSSIBLE, clue, unknown=tuple(unknown), gotchas=("U9",))
    if evidence.late:
        unknown.append(Clue("the box was looked at long after the end: its counters tell of others too"))
    return unread("V2", OOM, *unknown) if unknown else no("V2", OOM)


def judge_daemons(evidence: EndedEvidence) -> Detection:
    """V3: a memory daemon (systemd-oomd, earlyoom) killed before the kernel had to."""
    asked = evidence.ended.request is not None
    if asked or not evidence.ran or (evidence.witnessed and evidence.signal not in (KILL, TERM)):
        return skipped("V3", OOM)
    if not evidence.killers.known:
        return unread("V3", OOM, Clue(f"words of memory daemons: {evidence.killers.unread}", "journal"))
    lines = evidence.killers.value or ()
    ours = [line for line in lines if _names_us(line, evidence)]
    if ours:
        facts = {"less": describe_less(evidence), "more": describe_more(evidence)}
        return yes("V3", OOM, Confidence.CERTAIN, *(Clue(line[:300], "journal") for line in ours[:3]), facts=facts)
    kills = [line for line in lines if re.search(r"[Kk]illed |sending SIG", line)]
    if kills:
        clue = Clue(f"a memory daemon killed while it lived: {kills[-1][:300]}", "journal")
        return yes("V3", OOM, Confidence.POSSIBLE, clue)
    return no("V3", OOM, Clue("no memory daemon wrote of a kill", "journal"))


def _names_us(line: str, evidence: EndedEvidence) -> bool:
    if evidence.group and evidence.group in line:
        return True
    if any(re.search(rf"process {pid}\b", line) for pid in evidence.pids):
        return True
    killed = re.search(r"[Kk]illed (/\S+)", line)
    return killed is not None and any(level.path.endswith(killed[1]) for level in evidence.levels)


def judge_shared_memory(evidence: EndedEvidence) -> Detection:
    """V5: /dev/shm was full, or what a mapping shows was cut away (SIGBUS)."""
    words = find_words(evidence, FailureClass.SHARED_MEMORY)
    shm = next((disk for disk in evidence.disks if disk.role == "shm"), None)
    full = shm is not None and shm.free_bytes.value is not None and shm.free_bytes.value < FULL_BYTES
    if evidence.signal == BUS or words is not None:
        clues = [Clue(describe_signal(BUS), "status.json")] if evidence.signal == BUS else []
        clues += list(words.evidence_for) if words is not None else []
        unknown: tuple[Clue, ...] = ()
        if full:
            clues.append(Clue(f"{SHM} is still full", SHM))
        elif shm is None or not shm.free_bytes.known:
            unknown = (Clue(f"how full {SHM} was", SHM),)
        proven = (evidence.signal == BUS and evidence.code is None) or full
        return yes("V5", FailureClass.SHARED_MEMORY, weigh(words, proven=proven), *clues, unknown=unknown)
    if not evidence.log.known:
        return unread("V5", FailureClass.SHARED_MEMORY, *unread_log(evidence))
    return no("V5", FailureClass.SHARED_MEMORY)


def judge_card_memory(evidence: EndedEvidence) -> Detection:
    """V6: the memory of a card was not enough; who else was on it decides whether a retry can help."""
    words = find_words(evidence, FailureClass.GPU_OUT_OF_MEMORY)
    if words is None:
        known = evidence.log.known
        return (
            no("V6", FailureClass.GPU_OUT_OF_MEMORY)
            if known
            else unread("V6", FailureClass.GPU_OUT_OF_MEMORY, *unread_log(evidence))
        )
    clues, against, unknown, facts = list(words.evidence_for), [], [], dict(words.facts)
    held = _HELD.findall(facts.get("holders", ""))
    clues += [Clue(f"process {pid} held {size} of the card", "output.log") for pid, size in held]
    facts["first"] = _see_first(held, facts.get("total", ""))
    if evidence.expandable:
        facts["segments"] = ""
    if evidence.has_cards is False:
        facts["alone"] = "; with --gpus 1 it would have had a card for itself"
    if evidence.tenants:
        clues += [Clue(f"also on its cards: {tenant}", "NVML") for tenant in evidence.tenants]
        facts["tenants"] = "; ".join(evidence.tenants)
        facts.pop("remedy", None)
    elif evidence.cards_unread or not evidence.cards:
        unknown.append(Clue(f"who else was on the cards: {evidence.cards_unread or 'no card was leased'}", "NVML"))
    else:
        against.append(Clue("no other process was on its cards when it had ended", "NVML"))
    return yes(
        "V6",
        FailureClass.GPU_OUT_OF_MEMORY,
        words.confidence,
        *clues,
        against=tuple(against),
        unknown=tuple(unknown),
        gotchas=("U10",),
        facts=facts,
    )


def _see_first(held: list[tuple[str, str]], total: str) -> str:
    """Which other process held most of a card, by the words of torch; empty where none did."""
    most = max(held, key=lambda one: _as_bytes(one[1]), default=None)
    if most is None or _as_bytes(most[1]) <= _as_bytes(total) / 2:
        return ""
    return (
        f"first see whose process {most[0]} is, which held {most[1]} of the card's {total}: somebody else's, or "
        "another rank or worker of the job; "
    )


def _as_bytes(text: str) -> float:
    """A size as torch prints it (``9.30 GiB``); infinite where it is none, so that nothing follows from it."""
    try:
        return float(parse_bytes(text.replace(" ", "")))
    except ValueError:
        return math.inf
