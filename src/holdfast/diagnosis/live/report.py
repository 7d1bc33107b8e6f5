"""What a look at a live process comes to: a verdict, and ordered sections of what was seen and what could not be."""

from __future__ import annotations

from holdfast.diagnosis.evidence import Reading
from holdfast.model.record import field, record
from holdfast.model.units import format_count
from holdfast.model.verdict import Clue, Verdict

from .case import Case
from .change import ProcessChange
from .detect.hangs import describe_thread
from .detect.waits import Wait, name_call
from .gather.snapshot import TreeSnapshot
from .gather.stacks import CollectedStacks
from .gather.tools import ToolRun

NOT_ASKED = "not asked for"
MOST_LINES = 160
MOST_PROCESSES = 12
OVERSHOWN_SHARE = 0.005


@record
class Section:
    """One part of the report: lines for people, and what could not be read, each with why."""

    name: str
    title: str
    lines: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@record
class LiveReport:
    """The whole answer. `wall_s` and `cpu_s` (ours and our children's) are what the look cost."""

    name: str
    verdict: Verdict
    sections: tuple[Section, ...] = ()
    processes: int = 0
    threads: int = 0
    window_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    deep: bool = False
    clues: tuple[Clue, ...] = field(default_factory=tuple)


def build_sections(
    case: Case,
    after: TreeSnapshot,
    *,
    stacks: Reading[CollectedStacks],
    kernel: dict[int, Reading[str]],
    tools: tuple[ToolRun, ...],
    missing: tuple[str, ...],
) -> tuple[Section, ...]:
    """The sections, in the fixed order from cheap to invasive (DIAG-01)."""
    return (
        _states(case, after),
        _cpu(case),
        _io(case),
        _files(case),
        _kernel(kernel),
        _python(case, stacks, tools),
        _calls(case, tools, missing),
        _cards(case),
        _storage(case),
    )


def _cut(lines: list[str]) -> tuple[str, ...]:
    if len(lines) <= MOST_LINES:
        return tuple(lines)
    return (*lines[:MOST_LINES], f"... and {len(lines) - MOST_LINES} more")


def _processes(case: Case) -> tuple[ProcessChange, ...]:
    """The processes worth a line: those that do the job first."""
    focus = case.focus()
    pids = {process.pid for process in focus}
    return (*focus, *(process for process in case.change.processes if process.pid not in pids))[:MOST_PROCESSES]


def _states(case: Case, after: TreeSnapshot) -> Section:
    lines, unread = [], []
    for process in _processes(case):
        if process.after.is_dead:
            lines.append(f"pid {process.pid} ({process.after.name}): ended, not reaped")
            continue
        deciding = process.deciding
        if deciding is not None:
            moved = "" if not deciding.is_still else ", the same in both looks and never woke"
            lines.append(describe_thread(process, deciding) + moved)
        others: dict[str, int] = {}
        for thread in process.threads:
            if thread is not deciding:
                shown = thread.after.wait.value
                others[shown] = others.get(shown, 0) + 1
        if others:
            told = ", ".join(f"{count} wait for {what}" if what != Wait.RUNNING.value else f"{count} run"
                             for what, count in others.items())  # fmt: skip
            lines.append(f"  its other threads: {told}")
        unread += [f"pid {process.pid}: {name}: {why}" for name, why in process.after.main.unread.items()]
    if case.change.started:
        lines.append(f"started between the looks: {', '.join(map(str, case.change.started[:10]))}")
    if case.change.ended:
        lines.append(f"ended between the looks: {', '.join(map(str, case.change.ended[:10]))}")
    if after.left_out:
        unread.append(f"{format_count(after.left_out, 'more process was', 'more processes were')} not looked at")
    unread += [f"pid {pid} vanished while it was looked at" for pid in after.gone[:5]]
    return Section("states", "state and wait channels", _cut(lines), _cut(unread))


def _cpu(case: Case) -> Section:
    change, box = case.change, case.box
    lines = [f"the tree used {change.cores:.2f} CPUs over {change.window_s:.1f} s"]
    unread = list(box.unread)
    if change.queued_s is None:
        unread.append("schedstat: how long threads waited for a CPU")
    else:
        lines[0] += f", and its threads waited {change.queued_s / change.window_s:.2f} s in each second for one"
    for process in _processes(case):
        switches = "? switches" if process.switches is None else format_count(process.switches, "switch", "switches")
        lines.append(f"pid {process.pid} ({process.after.name}): {process.share:.2f} CPUs, {switches}")
        tops = sorted(process.threads, key=lambda thread: -thread.ran_s)[:3]
        lines += [f"  thread {thread.after.tid} ({thread.after.name}): {thread.share:.0%}"
                  for thread in tops if thread.share > OVERSHOWN_SHARE and len(process.threads) > 1]  # fmt: skip
    if box.allowed_cpus is not None:
        lines.append(f"it may use {box.allowed_cpus:g} of {format_count(box.cpus, 'CPU')}")
    if box.throttled_share is not None:
        lines.append(f"its quota held it back in {box.throttled_share:.0%} of the periods")
    if box.others_cores is not None:
        load = "" if box.load is None else f", load {box.load:.1f}"
        lines.append(f"others on this host used {box.others_cores:.2f} CPUs{load} (context only)")
    return Section("cpu", "CPU between the two looks", _cut(lines), _cut(unread))


def _io(case: Case) -> Section:
    lines, unread = [], []
    for process in _processes(case):
        if process.io is None:
            unread.append(f"pid {process.pid}: {process.after.io.unread or process.before.io.unread}")
            continue
        io = process.io
        lines.append(
            f"pid {process.pid} ({process.after.name}): {io.calls} reads and writes, {io.rchar} bytes in, {io.wchar} "
            f"out; {io.read_bytes} read from and {io.write_bytes} written to disks"
        )
    return Section("io", "input and output between the two looks", _cut(lines), _cut(unread))


def _files(case: Case) -> Section:
    lines, unread = [], []
    for process in _processes(case):
        files = process.after.files
        if files.value is None:
            unread.append(f"pid {process.pid}: open files: {files.unread}")
            continue
        kinds = [file.target.partition(":")[0] if ":[" in file.target else "file" for file in files.value]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        if process.after.files_limit is not None:
            counts += f" ({process.after.files_open} of {process.after.files_limit} descriptors)"
        streams = [f"{name} to {process.after.target_of(number)}" for number, name in ((1, "output"), (2, "errors"))
                   if process.after.target_of(number)]  # fmt: skip
        lines.append(f"pid {process.pid} ({process.after.name}): {counts}; {', '.join(streams)}")
        for thread in process.threads:
            on = case.waited.get(thread.after.tid)
            if on is not None:
                peer = f", the other end is {on.peer}{on.silence}" if on.peer else ""
                lines.append(f"  thread {thread.after.tid} waits on {', '.join(on.targets[:6])}{peer}")
    lines += [clue.text for clue in case.progress.clues]
    unread += [case.progress.unread] if case.progress.unread else []
    return Section("files", "files, pipes, sockets; the run's own signs", _cut(lines), _cut(unread))


def _kernel(kernel: dict[int, Reading[str]]) -> Section:
    lines, unread = [], []
    for tid, stack in kernel.items():
        if stack.value is None:
            unread.append(f"thread {tid}: {stack.unread}")
        elif stack.value:
            lines.append(f"thread {tid}: {stack.value}")
    return Section("kernel_stack", "kernel stacks", _cut(lines), _cut(unread))


def _python(case: Case, stacks: Reading[CollectedStacks], tools: tuple[ToolRun, ...]) -> Section:
    lines: list[str] = []
    unread = list(stacks.value.refused) if stacks.value is not None else []
    if stacks.value is None:
        # Not to ask is a decision, to get no answer is not.
        (lines if stacks.unread.startswith(NOT_ASKED) else unread).append(stacks.unread)
    for pid, dumps in case.dumps.items():
        tops = [dump.top or "no Python frame" for dump in dumps]
        moved = "the same place twice" if len(set(tops)) == 1 else "it moved"
        lines.append(f"pid {pid}: {tops[-1]}" + (f" ({moved})" if len(tops) > 1 else ""))
        lines += [f"  {frame.describe()}" for frame in dumps[-1].main[1:12]]
    for run in tools:
        if run.tool.value in ("py-spy", "gdb"):
            lines += [f"{run.tool.value} on pid {run.pid}:", *run.text.splitlines()[:40]]
            unread += _tool_problems(run)
    return Section("stacks", "stacks", _cut(lines), _cut(unread))


def _tool_problems(run: ToolRun) -> list[str]:
    told = [f"{run.tool.value} on pid {run.pid}: {run.problem}"] if run.problem else []
    if run.left_stopped:
        after = "it was continued" if run.continued else f"continue it with `kill -CONT {run.pid}`"
        told.append(f"{run.tool.value} left pid {run.pid} stopped; {after}")
    return told


def _calls(case: Case, tools: tuple[ToolRun, ...], missing: tuple[str, ...]) -> Section:
    lines, unread = [], []
    for process in _processes(case):
        deciding = process.deciding
        if deciding is not None and deciding.after.syscall is not None:
            lines.append(f"pid {process.pid} ({process.after.name}): in {name_call(deciding.after.syscall)}")
        elif deciding is not None and "syscall" in deciding.after.unread:
            unread.append(f"pid {process.pid}: {deciding.after.unread['syscall']}")
    for run in tools:
        if run.tool.value == "strace":
            lines += [f"{run.tool.value} on pid {run.pid}:", *run.text.splitlines()[:20]]
            unread += _tool_problems(run)
    return Section("calls", "system calls", _cut(lines), _cut([*unread, *missing]))


def _cards(case: Case) -> Section:
    if not case.target.cards and not case.cards.value:
        return Section("cards", "cards", ("the run has none",))
    lines = []
    for card in (case.cards.value or ((),))[-1]:
        told = [
            f"{label} {value:.0f}{unit}"
            for label, value, unit in (
                ("utilisation", card.utilisation_pct, " %"),
                ("memory traffic", card.memory_utilisation_pct, " %"),
                ("power", card.power_w, " W"),
                ("of", card.power_limit_w, " W"),
                ("clock", card.sm_clock_mhz, " MHz"),
            )
            if value is not None
        ]
        lines.append(f"{card.name}: {', '.join(told) or 'tells no numbers'}")
    return Section("cards", "cards", _cut(lines), () if case.cards.known else (case.cards.unread,))


def _storage(case: Case) -> Section:
    lines = []
    for pid, places in case.suspects.items():
        lines += [f"pid {pid} has files on {p.mount_point} ({p.mount_kind}, from {p.mount_source})" for p in places]
    pressure = case.box.pressure.get("io.full")
    unread = []
    if pressure is None:
        unread.append("/proc/pressure/io")
    else:
        lines.append(f"the host stalled on I/O {pressure:.0%} of the time (context only)")
    busy = ", ".join(f"{name} {share:.0%}" for name, share in sorted(case.box.disk_shares.items()) if share >= 0.01)
    lines += [f"the part of the time in which disks had requests: {busy}"] if busy else []
    findings = case.flight.value or ()
    lines += [f"Flight Recorder: {finding.describe()}" for finding in findings]
    return Section("storage", "storage and dumps", _cut(lines), _cut(unread))
