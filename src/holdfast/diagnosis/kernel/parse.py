"""Lines of the kernel's log to events: whom it killed, which card failed, which disk, which server.

Three forms come in: records of ``/dev/kmsg`` (``pri,seq,usec,flags;text``), lines of ``dmesg`` or of the journal, and
bare text. Every pattern is anchored at the line's beginning, because a line can repeat text that a process chose (its
name, its cgroup's). A line whose facility is not the kernel's was written by a process and is not trusted; where the
form does not tell the facility, the line counts as the kernel's only if the caller says so.

Sources: Documentation/ABI/testing/dev-kmsg; mm/oom_kill.c, mm/memcontrol.c, kernel/hung_task.c, kernel/watchdog.c,
arch/x86/mm/fault.c, net/sunrpc/clnt.c, block/blk-core.c of Linux 6.18; docs.nvidia.com/deploy/xid-errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.diagnosis.evidence import KernelEvent, KernelKind
from holdfast.model.gpu import shorten_pci
from holdfast.model.pattern import compile_later
from holdfast.model.record import record

NO_TIME = -1.0
"""`KernelEvent.seconds` of a line that does not say when."""
KERNEL_FACILITY = 0
LONGEST_TEXT = 400
_ESCAPE = compile_later(r"\\x([0-9a-f]{2})")
_RECORD = compile_later(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.DOTALL)
_RAW = compile_later(r"(?:<(\d+)>)?\[\s*(\d+\.\d+)\]\s?(?:\S+ kernel: )?(.*)", re.DOTALL)
_DECODED = compile_later(r"(\w+)\s*:\w+\s*: \[\s*(\d+\.\d+)\] (.*)", re.DOTALL)
_DATED = compile_later(r"\[\w{3} \w{3}\s+\d+ [\d:]+ \d{4}\] (.*)", re.DOTALL)
_SYSLOG = compile_later(r"\w{3}\s+\d+ [\d:]{8} \S+ kernel: (?:\[\s*(\d+\.\d+)\] )?(.*)", re.DOTALL)
_PCI = r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"


@record
class KernelMessage:
    """One message: `facility` None where the form does not say, `seconds` since boot or `NO_TIME`."""

    text: str
    seconds: float = NO_TIME
    sequence: int = 0
    facility: int | None = None


def read_line(text: str) -> KernelMessage:
    """One record or line in any of the three forms. Does not raise; what has no known form is bare text."""
    text = text.rstrip("\n")
    if found := _RECORD.fullmatch(text):
        priority, sequence, microseconds, message = found.groups()
        # Lines after the first are the record's dictionary (SUBSYSTEM=...); control bytes are written as \xNN.
        message = _ESCAPE.sub(lambda byte: chr(int(byte[1], 16)), message.partition("\n")[0])
        return KernelMessage(message, int(microseconds) / 1e6, int(sequence), int(priority) >> 3)
    if found := _RAW.fullmatch(text):
        priority, seconds, message = found.groups()
        return KernelMessage(message, float(seconds), 0, None if priority is None else int(priority) >> 3)
    if found := _DECODED.fullmatch(text):
        name, seconds, message = found.groups()
        return KernelMessage(message, float(seconds), 0, KERNEL_FACILITY if name == "kern" else 1)
    if found := _DATED.fullmatch(text):
        return KernelMessage(found[1])
    if found := _SYSLOG.fullmatch(text):
        return KernelMessage(found[2], NO_TIME if found[1] is None else float(found[1]))
    return KernelMessage(text)


def parse_lines(
    lines: Iterable[KernelMessage], *, trust_injected: bool = False, trust_unmarked: bool = False
) -> tuple[KernelEvent, ...]:
    """The events among messages, in order."""
    found: list[KernelEvent] = []
    pending: _Pending | None = None
    for line in lines:
        trusted = trust_injected or line.facility == KERNEL_FACILITY or (line.facility is None and trust_unmarked)
        # The card's driver prints messages of several lines: one record of /dev/kmsg. In any other record only the
        # first line counts, since a name that a process chose may hold a line break.
        parts = line.text.split("\n")
        for part in parts if parts[0].startswith("NVRM:") else parts[:1]:
            event, pending = _step(part, line, pending, trusted=trusted)
            if event is not None:
                found.append(event)
    return tuple(found)


@record
class _Pending:
    """The first line of "The NVIDIA GPU ... has fallen off the bus" was seen; `left` more lines may follow."""

    pci: str
    trusted: bool
    left: int


_GPU_FIRST = compile_later(r"NVRM: The NVIDIA GPU " + _PCI)
_GPU_LAST = compile_later(r"(?:NVRM: )?.*fallen off the bus and is not responding")


def _step(
    text: str, line: KernelMessage, pending: _Pending | None, *, trusted: bool
) -> tuple[KernelEvent | None, _Pending | None]:
    """One line: an event or None, and what waits for its end."""
    if pending is not None and pending.trusted == trusted and _GPU_LAST.match(text):
        return _make(KernelKind.CARD_LOST, text, line, {"pci": pending.pci}, trusted=trusted), None
    if first := _GPU_FIRST.match(text):
        pci = shorten_pci(first["pci"])
        if "fallen off the bus" in text:
            return _make(KernelKind.CARD_LOST, text, line, {"pci": pci}, trusted=trusted), None
        return None, _Pending(pci, trusted, left=3)
    if pending is not None:
        pending = _Pending(pending.pci, pending.trusted, pending.left - 1) if pending.left > 1 else None
    return _parse(text, line, trusted=trusted), pending


def _make(
    kind: KernelKind,
    text: str,
    line: KernelMessage,
    values: dict[str, str],
    *,
    trusted: bool,
) -> KernelEvent:
    pid = values.pop("pid", "")
    comm = values.pop("comm", "")
    return KernelEvent(
        kind=kind,
        seconds=line.seconds,
        text=text[:LONGEST_TEXT],
        sequence=line.sequence,
        pid=int(pid) if pid.isdigit() else None,
        comm=comm,
        trusted=trusted,
        values={key: value for key, value in values.items() if value},
    )


_PATTERNS: tuple[tuple[KernelKind, re.Pattern[str]], ...] = (
    (
        KernelKind.XID,
        compile_later(
            r"NVRM: Xid \(" + _PCI + r"(?: GPU-I:(?P<gpu_instance>[0-9a-fA-F]+))?"
            r"(?: GPU-CI:(?P<compute_instance>[0-9a-fA-F]+))?\): (?P<code>\d{1,5})(?!\d)"
            r"(?:, pid='?(?P<pid><unknown>|\d+)'?)?(?:, name='?(?P<comm>[^,']*)'?)?(?:,? (?P<detail>.*))?"
        ),
    ),
    (KernelKind.CARD_LOST, compile_later(r"NVRM: GPU (?:at )?" + _PCI + r": GPU has fallen off the bus")),
    (
        KernelKind.OOM_KILL,
        compile_later(
            # The end is looked for first: a line cut short in a group's name must not be tried in every possible way.
            r"oom-kill:(?=.*,pid=\d+,uid=\d+$)constraint=(?P<constraint>\w+),nodemask=.*?,cpuset=.*?,mems_allowed=[0-9,-]*?,"
            r"(?:oom_memcg=(?P<oom_memcg>.*?)|global_oom),task_memcg=(?P<task_memcg>.*),task=(?P<task>.*),"
            r"pid=(?P<pid>\d+),uid=(?P<uid>\d+)$"
        ),
    ),
    (
        KernelKind.OOM_VICTIM,
        compile_later(
            r"(?:(?P<scope>Memory cgroup out of memory|Out of memory[^:]*): )?"
            r"Killed process (?P<pid>\d+) \((?P<comm>.*)\),? (?:UID \d+ )?"
            r"total-vm:(?P<total_vm_kb>\d+)kB, anon-rss:(?P<anon_rss_kb>\d+)kB"
        ),
    ),
    (
        KernelKind.HUNG_TASK,
        compile_later(r"INFO: task (?P<comm>.+):(?P<pid>\d+) blocked for more than (?P<blocked_s>\d+) seconds"),
    ),
    (
        KernelKind.SOFT_LOCKUP,
        compile_later(
            r"(?:watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<stuck_s>\d+)s!"
            r" \[(?P<comm>.+):(?P<pid>\d+)\]"
        ),
    ),
    (
        KernelKind.SEGFAULT,
        compile_later(
            r"(?:traps: )?(?P<comm>.{0,15})\[(?P<pid>\d+)\]:? (?P<what>segfault|general protection fault"
            r"|general protection|trap \w+|unhandled exception)(?: at (?P<address>[0-9a-fx]+))?"
            r"(?:.* in (?P<library>\S+)\[)?"
        ),
    ),
    (KernelKind.NFS, compile_later(r"(?:nfs|NFS|lockd): server (?P<server>\S+) (?P<state>not responding|OK)\b")),
    (
        KernelKind.READ_ONLY,
        compile_later(
            r"EXT[234]-fs \((?P<device>[^)]+)\): (?:Remounting filesystem read-only|.*aborting journal)"
            # Each part ends with a character that it cannot hold: else a long line is tried in every possible way.
            r"|BTRFS:?(?: \w+)?:? \(device (?P<btrfs>[^ :)]+)(?:[ :][^)]*)?\).*forced readonly"
            r"|XFS \((?P<xfs>[^)]+)\): .*(?:Filesystem has been shut down|[Ss]hutting down filesystem)"
        ),
    ),
    (
        KernelKind.IO_ERROR,
        compile_later(
            r"(?:blk_update_request: |print_req_error: )?"
            r"(?:critical (?:medium|target|space allocation) error|I/O error), dev (?P<device>\S+?), sector \d+"
            r"|Buffer I/O error on dev(?:ice)? (?P<buffer>[^ ,]+)"
            r"|EXT[234]-fs error \(device (?P<ext>[^)]+)\)"
            r"|XFS \((?P<xfs>[^)]+)\): (?:metadata|log) I/O error"
        ),
    ),
)
_KEYS = compile_later(
    r"NVRM|oom-kill|Killed process|blocked for more|lockup|\[\d+\]|server|FS|fs |I/O error|error, dev"
)
"""What every known line contains; most lines of a log contain none of it and cost one search."""


def _parse(text: str, line: KernelMessage, *, trusted: bool) -> KernelEvent | None:
    if _KEYS.search(text) is None:
        return None
    for kind, pattern in _PATTERNS:
        found = pattern.match(text)
        if found is not None:
            values = {key: value for key, value in found.groupdict().items() if value is not None}
            return _make(kind, text, line, _tidy(kind, values), trusted=trusted)
    return None


def _tidy(kind: KernelKind, values: dict[str, str]) -> dict[str, str]:
    """Values under the names that `KernelKind` promises."""
    for name in ("btrfs", "xfs", "buffer", "ext"):
        if name in values:
            values["device"] = values.pop(name)
    if kind in (KernelKind.XID, KernelKind.CARD_LOST):
        values["pci"] = shorten_pci(values["pci"])
    if kind is KernelKind.XID:
        values["process"] = "" if values.get("comm", "").startswith("<") else values.get("comm", "")
        if values.get("comm", "").startswith("<"):
            values["comm"] = ""
    if kind is KernelKind.OOM_KILL:
        values["comm"] = values["task"]
    if kind is KernelKind.OOM_VICTIM:
        # Before Linux 4.20 the line does not say which; a reader must not guess.
        scope = values.get("scope", "")
        values["scope"] = scope and ("memcg" if scope.startswith("Memory cgroup") else "global")
    return values
